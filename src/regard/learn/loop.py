"""The one training loop: learn, validate, save, and go on after anything as if nothing had happened."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import DiskTrouble, Interrupted
from regard.learn.guard import Signals
from regard.learn.log import Log
from regard.learn.progress import Watcher
from regard.learn.settings import Training
from regard.learn.trainer import Step, Trainer
from regard.learn.validate import Validation, validate
from regard.models.model import Network
from regard.store.checkpoint import Checkpoint, newest_checkpoint, prune, save_checkpoint, steps_found
from regard.store.files import write_file
from regard.store.folder import write_weights
from regard.text.corpus import Corpus
from regard.text.problem import Samples
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Job:
    """All that a run needs besides a folder."""

    network: Network
    tokenizers: tuple[Tokenizer, Tokenizer | None]
    train: Samples
    valid: tuple[Corpus, Samples] | None
    settings: Training
    fingerprint: dict[str, Any]  # what must be the same when the run goes on
    card: Callable[[dict[str, Any]], str]  # README.md from the run's results


def checkpoints(folder: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return folder / "checkpoints"


def unwatched(point: str) -> None:
    """Nobody is told which point of a save was reached; tests of durability are."""


class Run:
    """A job in its folder."""

    reached = staticmethod(unwatched)

    def __init__(self, job: Job, folder: Path, device: torch.device, watcher: Watcher) -> None:
        self.job, self.folder, self.watcher = job, folder, watcher
        self.trainer = Trainer(job.network, job.train, job.settings, device)
        self.best: dict[str, Any] | None = None  # step and value of the weights in model.safetensors
        self.worse = 0  # validations since then
        self.seconds = 0.0  # spent learning, over all the run's lives
        self.finished = False
        self.saved: int | None = None
        self.unkept: dict[str, Tensor] | None = None  # the best weights, while the disk is full
        found = newest_checkpoint(checkpoints(folder), lambda text: watcher.note(f"warning: {text}"))
        if found is not None:
            self.restore(found)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        state = checkpoint.state()
        self.trainer.restore(checkpoint, state["position"])
        self.best, self.worse, self.seconds = state["best"], state["worse"], state["seconds"]
        self.finished = state["finished"] and (self.trainer.step >= self.job.settings.steps or self.stopping)
        self.saved = checkpoint.step
        if self.trainer.step:
            self.watcher.note(f"resuming at step {self.trainer.step:,} of {self.job.settings.steps:,}")

    def go(self) -> None:
        """Learn until the last step, a signal, or until validations stop improving."""
        if self.finished:
            self.watcher.note(f"{self.folder} is finished at step {self.trainer.step:,}. {self.remedy}")
            return
        self.log = Log(self.folder, self.trainer.step)
        self.watcher.begin(self.trainer.step, self.job.settings.steps)
        try:
            with Signals().watched() as signals:
                self.learn(signals)
                self.finish()
        finally:
            self.log.close()
            self.watcher.end()

    def learn(self, signals: Signals) -> None:
        """The loop."""
        settings, trainer = self.job.settings, self.trainer
        pace = Pace()
        while trainer.step < settings.steps and not self.stopping:
            step = trainer.advance()
            self.seconds += pace.took(step)
            self.watcher.stepped(trainer.step, step, pace.tokens_per_second)
            if trainer.step % settings.log_every == 0:
                self.log.write(trainer.step, self.measured(step, pace))
            if self.job.valid is not None and trainer.step % settings.valid_every == 0:
                self.worse = 0 if self.validate(trainer.best_guess()) else self.worse + 1
                pace = Pace()
            if trainer.step % settings.save_every == 0:
                self.save()
                pace = Pace()
            if signals.received is not None:
                self.interrupted(signals.received)

    @property
    def remedy(self) -> str:
        """How a finished run may go on."""
        if self.stopping:
            return "Raise train.patience to go on."
        if self.job.settings.schedule.aims:
            return "Its rate has come down to the end; to learn longer, choose another --out."
        return "Raise train.steps to go on."

    def measured(self, step: Step, pace: Pace) -> dict[str, float]:
        """What is written down of a step."""
        return {
            "loss": step.loss,
            "gradient_norm": step.norm,
            "rate": step.rate,
            "epoch": self.trainer.epoch,
            "tokens_per_second": round(pace.tokens_per_second),
            "seconds": round(self.seconds, 2),
        }

    @property
    def stopping(self) -> bool:
        """Whether patience has run out."""
        return self.job.settings.patience is not None and self.worse >= self.job.settings.patience

    def interrupted(self, number: int) -> None:
        """Save where we are, and say how to go on."""
        self.save(last=True)
        name = signal.Signals(number).name
        raise Interrupted(
            f"stopped by {name} at step {self.trainer.step:,}; it is saved in {self.folder}. "
            "Run the same command to go on.",
            signal=number,
        )

    def validate(self, weights: dict[str, Tensor], *, last: bool = False) -> bool:
        """Judge some weights, and keep them in model.safetensors if they are the best so far; -> whether they are."""
        assert self.job.valid is not None
        settings, (corpus, samples) = self.job.settings, self.job.valid
        with self.trainer.judged(weights) as network:
            found = validate(
                network, self.job.tokenizers, corpus, samples,
                lines=settings.valid_lines, shown=settings.samples, batch_tokens=settings.batch_tokens,
            )  # fmt: skip
        better = self.best is None or self.value(found) > self.best["value"]
        if better:
            self.best = {"step": self.trainer.step, "value": self.value(found), "numbers": found.numbers}
            self.keep(weights)
        numbers: dict[str, Any] = {f"valid_{name}": value for name, value in found.numbers.items()}
        self.log.write(self.trainer.step, {**numbers, "last": True} if last else numbers)
        self.watcher.validated(self.trainer.step, found, better)
        return better

    def keep(self, weights: dict[str, Tensor]) -> None:
        """Write model.safetensors; a full disk is no reason to stop, for the next checkpoint tries again."""
        self.unkept = None
        try:
            write_weights(self.folder, weights)
        except DiskTrouble as error:
            self.unkept = {name: tensor.detach().clone() for name, tensor in weights.items()}
            self.watcher.note(f"warning: {error} Training goes on and tries again.")

    def value(self, validation: Validation) -> float:
        """What is to be made as large as possible."""
        name = self.job.settings.best if self.job.settings.best in validation.numbers else "loss"
        value = validation.numbers[name]
        if math.isnan(value):
            return -math.inf
        return -value if name == "loss" else value

    def save(self, *, last: bool = False) -> None:
        """Write a checkpoint; a full disk is no reason to stop before the last one."""
        settings, trainer = self.job.settings, self.trainer
        state = {
            "position": trainer.position(), "best": self.best, "worse": self.worse, "seconds": self.seconds,
            "finished": self.finished, "fingerprint": self.job.fingerprint,
        }  # fmt: skip
        try:
            saved = save_checkpoint(
                checkpoints(self.folder), trainer.step, state=state, tensors=trainer.tensors(), reached=self.reached
            )
            if self.best is None:
                write_weights(self.folder, trainer.best_guess())
            elif self.unkept is not None:
                write_weights(self.folder, self.unkept)
                self.unkept = None
            self.saved = saved.step
            prune(
                checkpoints(self.folder), keep=max(settings.keep, settings.average, 2), every=settings.save_every,
                keep_every=settings.keep_every, reached=self.reached,
            )  # fmt: skip
        except DiskTrouble as error:
            if last:
                raise
            kept = "nothing is saved yet" if self.saved is None else f"step {self.saved:,} is intact"
            self.watcher.note(f"warning: {error} {kept.capitalize()}; training goes on and tries again.")

    def finish(self) -> None:
        """Judge the average of the last checkpoints, save, and write the model card."""
        settings = self.job.settings
        if settings.average > 1:
            self.save(last=True)
            self.consider(self.averaged())
        elif self.job.valid is not None and self.trainer.step % settings.valid_every:
            self.validate(self.trainer.best_guess(), last=True)
        self.finished = True
        self.save(last=True)
        results = {"steps": self.trainer.step, "seconds": self.seconds, "best": self.best}
        write_file(self.folder / "README.md", self.job.card(results).encode())

    def consider(self, weights: dict[str, Tensor]) -> None:
        """Take the average: if it validates better, or if nothing validates."""
        if self.job.valid is None:
            write_weights(self.folder, weights)
        else:
            self.watcher.note(f"the average of the last {self.job.settings.average} checkpoints:")
            self.validate(weights, last=True)

    def averaged(self) -> dict[str, Tensor]:
        """The mean of the last checkpoints' weights; one that a signal saved in between is gone by now."""
        folder = checkpoints(self.folder)
        name = "model" if self.trainer.averages is None else "averages"
        steps = steps_found(folder)[-self.job.settings.average :]
        groups = [Checkpoint(folder / f"step-{step}", step).tensors(name) for step in steps]
        return {key: torch.stack([group[key] for group in groups]).mean(dim=0) for key in groups[0]}


class Pace:
    """How fast the run goes, forgetting what is long past."""

    def __init__(self) -> None:
        self.last, self.tokens_per_second = time.perf_counter(), 0.0

    def took(self, step: Step) -> float:
        """The seconds since the last step."""
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        speed = step.tokens / max(seconds, 1e-9)
        self.tokens_per_second = speed if not self.tokens_per_second else 0.95 * self.tokens_per_second + 0.05 * speed
        return seconds
