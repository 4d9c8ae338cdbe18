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

from regard import messages
from regard.data.batching import Place
from regard.data.read.corpus import Corpus
from regard.data.samples import Samples
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import DiskTrouble, Interrupted, RegardError, RunFailed
from regard.models.model import Network
from regard.store.checkpoint import Checkpoint, checkpoints, prune, save_checkpoint, steps_found
from regard.store.files import disk_trouble, unwatched, write_file
from regard.store.folder import write_weights
from regard.training.distributed import World
from regard.training.log import Log, Watcher
from regard.training.settings import Training
from regard.training.step import Step, Trainer
from regard.training.validate import Validation, validate


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
    start: Checkpoint | None = None  # where the run goes on
    changed: tuple[str, ...] = ()  # "train" or "valid", where that text is another than the checkpoint's


class Run:
    """A job in its folder."""

    reached = staticmethod(unwatched)

    def __init__(
        self, job: Job, folder: Path, device: torch.device, watcher: Watcher, world: World | None = None
    ) -> None:
        self.job, self.folder, self.watcher, self.world = job, folder, watcher, world or World(device)
        self.trainer = Trainer(job.network, job.train, job.settings, device, self.world)
        self.best: dict[str, Any] | None = None  # step and value of the weights in model.safetensors
        self.worse = 0  # validations since then
        self.seconds = 0.0  # spent learning, over all the run's lives
        self.finished = False
        self.saved: int | None = None
        self.unkept: dict[str, Tensor] | None = None  # what model.safetensors should hold, while the disk is full
        self.unsaved: list[Snapshot] = []  # checkpoints that the average will need, while the disk is full
        self.unlogged: list[str] = []
        if job.start is not None:
            self.restore(job.start)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        state = checkpoint.state()
        self.trainer.restore(checkpoint, state["position"])
        self.best, self.worse, self.seconds = state["best"], state["worse"], state["seconds"]
        self.finished = state["finished"] and (self.trainer.step >= self.job.settings.steps or self.stopping)
        self.saved, self.unlogged = checkpoint.step, state["unlogged"]
        if "train" in self.job.changed:
            self.trainer.place = Place(self.trainer.place.epoch + 1)
        if "valid" in self.job.changed:
            self.best, self.worse = None, 0
        if self.trainer.step:
            self.watcher.note(f"resuming at step {self.trainer.step:,} of {self.job.settings.steps:,}")

    def go(self) -> None:
        """Learn until the last step, a signal, or until validations stop improving."""
        if self.finished:
            self.watcher.note(f"{self.folder} is finished at step {self.trainer.step:,}. {self.remedy}")
            return
        if self.world.first:
            self.log = Log(self.folder, self.trainer.step, self.unlogged, self.watcher.note)
        with disk_trouble(checkpoints(self.folder), 0):
            checkpoints(self.folder).mkdir(exist_ok=True)  # by which a model is known to be a run's own
        self.watcher.begin(self.trainer.step, self.job.settings.steps)
        try:
            with self.trainer.signals.watched():
                self.learn()
                self.finish()
        except RunFailed as error:
            raise RunFailed(f"{error} {self.intact}") from error
        finally:
            if self.world.first:
                self.log.close()
            self.watcher.end()

    def learn(self) -> None:
        """The loop."""
        settings, trainer = self.job.settings, self.trainer
        pace = Pace()
        while trainer.step < settings.steps and not self.stopping:
            step = trainer.advance()
            if step.cut:
                self.watcher.note(messages.CUT(step=trainer.step, parts=step.cut))
            self.seconds += pace.took(step)
            self.watcher.stepped(trainer.step, step, pace.tokens_per_second)
            if self.world.first and trainer.step % settings.log_every == 0:
                self.log.write(trainer.step, self.measured(step, pace))
            if self.job.valid is not None and trainer.step % settings.valid_every == 0:
                self.worse = 0 if self.judge(trainer.best_guess()) else self.worse + 1
                pace = Pace()
            if trainer.step % settings.save_every == 0:
                self.save()
                pace = Pace()
            if step.signal:
                self.interrupted(step.signal)

    @property
    def remedy(self) -> str:
        """How a finished run may go on."""
        if self.stopping:
            return "Raise train.patience to go on."
        if self.job.settings.schedule.aims:
            return "Its rate has come down to the end; to learn longer, choose another --out."
        return "Raise train.steps to go on."

    @property
    def intact(self) -> str:
        """What a run that cannot go on has not lost."""
        return "Nothing is saved yet." if self.saved is None else f"Last good checkpoint: step {self.saved:,}."

    def measured(self, step: Step, pace: Pace) -> dict[str, float]:
        """What is written down of a step."""
        return {
            "loss": step.loss,
            "gradient_norm": step.norm,
            "rate": step.learning_rate,
            "epoch": self.trainer.place.epoch,
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

    def judge(self, weights: dict[str, Tensor]) -> bool:
        """The first process validates; -> whether these are the best weights so far."""
        return bool(self.world.lead(lambda: self.validate(weights)))

    def validate(self, weights: dict[str, Tensor], *, last: bool = False) -> bool:
        """Judge some weights, and keep them in model.safetensors if they are the best so far; -> whether they are."""
        assert self.job.valid is not None
        settings, (corpus, samples) = self.job.settings, self.job.valid
        with self.trainer.judged(weights) as network:
            found = validate(
                network, self.job.tokenizers, corpus, samples,
                lines=settings.valid_lines, shown=settings.samples, batch_tokens=settings.budget,
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
            write_weights(self.folder, weights, self.reached)
        except DiskTrouble as error:
            self.unkept = {name: tensor.detach().clone() for name, tensor in weights.items()}
            self.watcher.note(f"warning: {error} Training goes on and tries again.")

    def value(self, validation: Validation) -> float:
        """What is to be made as large as possible."""
        value = validation.numbers[self.job.settings.best]
        if math.isnan(value):
            return -math.inf
        return -value if self.job.settings.best == "loss" else value

    def save(self, *, last: bool = False) -> None:
        """Gather all that a checkpoint holds; the first process writes it."""
        tensors = self.trainer.tensors()
        saved = int(self.world.lead(lambda: self.write(tensors, last=last)))
        self.saved = None if saved < 0 else saved

    def write(self, tensors: dict[str, dict[str, Tensor]], *, last: bool) -> int:
        """Write a checkpoint, after the weights it speaks of; a full disk is no reason to stop before the last one.

        -> the step of the newest checkpoint, or -1.
        """
        settings, trainer, folder = self.job.settings, self.trainer, checkpoints(self.folder)
        state = {
            "position": trainer.position(), "best": self.best, "worse": self.worse, "seconds": self.seconds,
            "finished": self.finished, "unlogged": self.log.unlogged, "fingerprint": self.job.fingerprint,
        }  # fmt: skip
        now: Snapshot = (trainer.step, state, tensors)
        try:
            if self.best is None and not self.finished:
                self.unkept = tensors.get("averages", tensors["model"])
            if self.unkept is not None:
                write_weights(self.folder, self.unkept, self.reached)
                self.unkept = None
            for step, then, groups in (*self.unsaved, now):
                self.saved = save_checkpoint(folder, step, state=then, tensors=groups, reached=self.reached).step
            self.unsaved = []
            prune(
                folder, trainer.step, keep=max(settings.keep, settings.average, 2), every=settings.save_every,
                keep_every=settings.keep_every, reached=self.reached,
            )  # fmt: skip
        except DiskTrouble as error:
            if last:
                raise DiskTrouble(f"{error} {self.intact}") from error
            self.watcher.note(f"warning: {error} {self.intact} Training goes on and tries again.")
            if settings.average > 1 and trainer.step % settings.save_every == 0:
                self.unsaved = [*self.unsaved, copied(now)][-settings.average :]
        return -1 if self.saved is None else self.saved

    def finish(self) -> None:
        """Judge the average of the last checkpoints, write the model card, and save."""
        weights = self.trainer.best_guess()
        if self.job.settings.average > 1:
            self.save(last=True)
        self.world.lead(lambda: self.conclude(weights))
        self.finished = True  # and nothing is left to be written but this
        self.save(last=True)

    def conclude(self, weights: dict[str, Tensor]) -> None:
        """What stands in model.safetensors at the end, and the model card."""
        settings = self.job.settings
        weights = self.averaged() if settings.average > 1 else weights
        if self.job.valid is None:
            self.keep(weights)
        elif settings.average > 1:
            self.watcher.note(f"the average of the last {settings.average} checkpoints:")
            self.validate(weights, last=True)
        elif self.trainer.step % settings.valid_every:
            self.validate(weights, last=True)
        results = {"steps": self.trainer.step, "seconds": self.seconds, "best": self.best}
        write_file(self.folder / "README.md", self.job.card(results).encode())

    def averaged(self) -> dict[str, Tensor]:
        """The mean of the last checkpoints' weights; one that a signal saved in between is gone by now."""
        folder, groups = checkpoints(self.folder), []
        name = "model" if self.trainer.averages is None else "averages"
        for step in steps_found(folder)[-self.job.settings.average :]:
            try:
                groups.append(Checkpoint(folder / f"step-{step}", step).tensors(name))
            except RegardError as error:
                self.watcher.note(f"warning: {error} It is left out of the average.")
        return {key: torch.stack([group[key] for group in groups]).mean(dim=0) for key in groups[0]}


# A step, its state, and its tensors: what a checkpoint is made of.
Snapshot = tuple[int, dict[str, Any], dict[str, dict[str, Tensor]]]


def copied(snapshot: Snapshot) -> Snapshot:
    """A snapshot that later steps do not change."""
    step, state, tensors = snapshot
    return step, state, {
        group: {name: tensor.detach().clone() for name, tensor in members.items()} for group, members in tensors.items()
    }  # fmt: skip


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
