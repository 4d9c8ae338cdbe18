"""The training loop: train, validate, save checkpoints, stop early, average checkpoints, resume bit-identically."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import messages
from regard.data.batching import Cursor
from regard.data.read.corpus import Corpus
from regard.data.samples import Samples
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import DiskTrouble, Interrupted, RunFailed
from regard.models.model import Network
from regard.store.checkpoint import Checkpoint, checkpoints_folder, prune, save_checkpoint, saved_steps, verify
from regard.store.files import disk_errors, ignore_write_point
from regard.store.folder import write_weights
from regard.store.manifest import write_model_files
from regard.training.distributed import World
from regard.training.lock import require_lock
from regard.training.log import Log, Watcher
from regard.training.memory import first_epoch
from regard.training.settings import Training
from regard.training.step import Step, Trainer, cloned
from regard.training.validate import Validation, unknown_text, validate


@dataclass(frozen=True)
class Job:
    """The inputs of a run, besides its folder."""

    network: Network
    tokenizers: tuple[Tokenizer, Tokenizer | None]
    train: Samples
    valid: tuple[Corpus, Samples] | None
    settings: Training
    resume_facts: dict[str, Any]  # must be equal when the run resumes
    card: Callable[[dict[str, Any]], str]  # README.md from the run's results
    start: Checkpoint | None = None  # to resume from
    write: Callable[[Path, Mapping[str, Tensor], Callable[[str], None]], None] = write_weights  # the best weights
    changed: tuple[str, ...] = ()  # "train", "valid": splits with other text than the checkpoint's


class Run:
    """A training run in its folder."""

    on_write_point = staticmethod(ignore_write_point)

    def __init__(
        self, job: Job, folder: Path, device: torch.device, watcher: Watcher, world: World | None = None
    ) -> None:
        self.job, self.folder, self.watcher, self.world = job, folder, watcher, world or World(device)
        self.trainer = Trainer(job.network, job.train, job.settings, device, self.world)
        self.best: dict[str, Any] | None = None  # step and value of the weights in model.safetensors
        self.worse = 0  # validations since then, for early stopping
        self.seconds = 0.0  # of training, all resumes included
        self.finished = False
        self.saved: int | None = None
        # While the disk is full: the weights for model.safetensors, and checkpoints to be averaged at the end.
        self.unwritten: dict[str, Tensor] | None = None
        self.unsaved: list[Snapshot] = []
        self.unlogged: list[str] = []
        if job.start is not None:
            self.restore(job.start)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint."""
        state = checkpoint.state()
        self.trainer.restore(checkpoint, state["trainer"])
        self.best, self.worse, self.seconds = state["best"], state["worse"], state["seconds"]
        self.finished = state["finished"] and (self.trainer.step >= self.job.settings.steps or self.out_of_patience)
        self.saved, self.unlogged = checkpoint.step, state["unlogged"]
        if "train" in self.job.changed:
            self.trainer.cursor = Cursor(self.trainer.cursor.epoch + 1)
        if "valid" in self.job.changed:
            self.best, self.worse = None, 0
        if self.trainer.step:
            self.watcher.note(f"resuming at step {self.trainer.step:,} of {self.job.settings.steps:,}")
            self.note_new_total(state.get("steps") or state["resume_facts"]["train"].get("steps"))

    def note_new_total(self, before: int | None) -> None:
        """Tell that another number of steps changes the learning rate from here on."""
        settings, now = self.job.settings, self.job.settings.steps
        if before is None or self.trainer.step >= now:
            return
        old, new = (settings.learning_rate_at(self.trainer.step + 1, steps) for steps in (before, now))
        if old != new:
            self.watcher.note(
                f"train.steps was {before:,}: from step {self.trainer.step + 1:,} on, the learning rate follows the "
                f"schedule of {now:,} steps ({new:.2e} instead of {old:.2e})."
            )

    def announce(self) -> None:
        """Tell how often the run reads its text, and what it does otherwise than one might expect."""
        settings, schedule = self.job.settings, self.job.settings.schedule
        epoch = first_epoch(self.trainer.batches)
        about = "" if epoch.exact else "about "
        self.watcher.note(
            f"{settings.steps:,} steps are {about}{settings.steps / epoch.steps:.3g} epochs of {epoch.steps:,} steps."
        )
        if self.job.valid is None:
            self.watcher.note("nothing is validated, so the last weights are kept; to hold text out, name text.valid.")
        if (warmup := schedule.warmup_within(settings.steps)) < schedule.warmup:
            self.watcher.note(
                f"the warm-up of {schedule.warmup:,} steps is longer than the run; it is shortened to {warmup:,}, a "
                "tenth of the steps (train.schedule.warmup)."
            )

    def train(self) -> None:
        """Train until the last step, a signal, or early stopping."""
        if self.finished:
            self.watcher.note(f"{self.folder} is finished at step {self.trainer.step:,}. {self.how_to_continue}")
            return
        if self.world.first:
            self.log = Log(self.folder, self.trainer.step, self.unlogged, self.watcher.note)
        with disk_errors(checkpoints_folder(self.folder), 0):
            checkpoints_folder(self.folder).mkdir(exist_ok=True)  # marks the model of this folder as a run's own
        self.announce()
        self.watcher.start(self.trainer.step, self.job.settings.steps)
        try:
            with self.trainer.signals.watched():
                self.loop()
                self.finish()
        except RunFailed as error:
            raise RunFailed(f"{error} {self.last_checkpoint}") from error
        finally:
            if self.world.first:
                self.log.close()
            self.watcher.end()

    def loop(self) -> None:
        """Take steps, validate and save."""
        settings, trainer = self.job.settings, self.trainer
        pace = Pace()
        while trainer.step < settings.steps and not self.out_of_patience:
            step = trainer.advance()
            if step.accumulate:
                self.watcher.note(messages.CUT(step=trainer.step, parts=step.accumulate))
            self.seconds += pace.count(step)
            self.watcher.stepped(trainer.step, step, pace.tokens_per_second)
            if self.world.first and trainer.step % settings.log_every == 0:
                self.log.write(trainer.step, self.metrics(step, pace))
            if self.job.valid is not None and trainer.step % settings.valid_every == 0:
                self.worse = 0 if self.validate(trainer.evaluated_weights()) else self.worse + 1
                pace = Pace()
            if trainer.step % settings.save_every == 0:
                self.save()
                pace = Pace()
            if step.signal:
                self.interrupted(step.signal)
        if self.out_of_patience and trainer.step < settings.steps and self.best is not None:
            self.watcher.note(
                f"stopped early at step {trainer.step:,} of {settings.steps:,}: {self.worse:,} validations in a row "
                f"were no better than that of step {self.best['step']:,} (train.patience)."
            )

    @property
    def how_to_continue(self) -> str:
        """How to train a finished run further."""
        if self.out_of_patience:
            return "Raise train.patience to continue."
        return f"Give it more steps to continue: --set train.steps={2 * self.job.settings.steps}."

    @property
    def last_checkpoint(self) -> str:
        """A sentence about the newest checkpoint, for error messages."""
        return "Nothing is saved yet." if self.saved is None else f"Last good checkpoint: step {self.saved:,}."

    def metrics(self, step: Step, pace: Pace) -> dict[str, float]:
        """The metrics of a step, for the log."""
        return {
            "loss": step.loss, "gradient_norm": step.gradient_norm, "learning_rate": step.learning_rate,
            "epoch": self.trainer.cursor.epoch, "tokens_per_second": round(pace.tokens_per_second),
            "seconds": round(self.seconds, 2),
        }  # fmt: skip

    @property
    def out_of_patience(self) -> bool:
        """Early stopping: whether too many validations in a row brought no improvement."""
        return self.job.settings.patience is not None and self.worse >= self.job.settings.patience

    def interrupted(self, number: int) -> None:
        """Save a checkpoint and end the run."""
        self.save(last=True)
        name = signal.Signals(number).name
        raise Interrupted(
            f"stopped by {name} at step {self.trainer.step:,}; it is saved in {self.folder}. "
            "Run the same command to resume.",
            signal=number,
        )

    def validate(self, weights: dict[str, Tensor]) -> bool:
        """Validate on rank 0; -> whether these are the best weights so far."""
        return bool(self.world.on_rank_zero(lambda: self.validate_here(weights)))

    def validate_here(self, weights: dict[str, Tensor], *, last: bool = False) -> bool:
        """Validate, and write the weights to model.safetensors if they are the best so far; -> whether they are."""
        assert self.job.valid is not None
        settings, (corpus, samples) = self.job.settings, self.job.valid
        with self.trainer.evaluation_network(weights) as network:
            found = validate(
                network, self.job.tokenizers, corpus, samples,
                lines=settings.valid_lines, displayed=settings.samples, batch_tokens=settings.budget,
                unknown_nats=lambda: self.unknown_nats,
            )  # fmt: skip
        better = self.best is None or self.value(found) > self.best["value"]
        if better:
            self.best = {"step": self.trainer.step, "value": self.value(found), "metrics": found.metrics}
            self.write_best(weights)
        metrics: dict[str, Any] = {f"valid_{name}": value for name, value in found.metrics.items()}
        self.log.write(self.trainer.step, {**metrics, "last": True} if last else metrics)
        self.watcher.validated(self.trainer.step, found, better)
        return better

    @cached_property
    def unknown_nats(self) -> float:
        """The nats to spell what the tokenizer does not know of the validation text."""
        assert self.job.valid is not None
        return float(unknown_text(self.job.valid[1], self.job.tokenizers).nats.sum())

    def write_best(self, weights: dict[str, Tensor]) -> None:
        """Write model.safetensors; if the disk is full, the next checkpoint tries again."""
        self.unwritten = None
        try:
            self.job.write(self.folder, weights, self.on_write_point)
        except DiskTrouble as error:
            self.unwritten = cloned(weights)
            self.watcher.note(f"warning: {error} Training continues and tries again.")

    def value(self, validation: Validation) -> float:
        """The metric that decides which weights are best, as a number to maximize."""
        value = validation.metrics[self.job.settings.best]
        if math.isnan(value):
            return -math.inf
        return -value if self.job.settings.best == "loss" else value

    def save(self, *, last: bool = False) -> None:
        """Gather the tensors of a checkpoint, and write it on rank 0."""
        tensors = self.trainer.tensors()
        saved = int(self.world.on_rank_zero(lambda: self.write_checkpoint(tensors, last=last)))
        self.saved = None if saved < 0 else saved

    def write_checkpoint(self, tensors: dict[str, dict[str, Tensor]], *, last: bool) -> int:
        """Write a checkpoint, after the weights that it counts as best; a full disk fails only the last one.

        -> the step of the newest checkpoint, or -1.
        """
        require_lock(self.folder)
        settings, trainer, folder = self.job.settings, self.trainer, checkpoints_folder(self.folder)
        state = {
            "trainer": trainer.state(), "best": self.best, "worse": self.worse, "seconds": self.seconds,
            "steps": settings.steps, "finished": self.finished, "unlogged": self.log.unlogged,
            "resume_facts": self.job.resume_facts,
        }  # fmt: skip
        now: Snapshot = (trainer.step, state, tensors)
        try:
            if self.best is None and not self.finished:
                self.unwritten = tensors.get("ema", tensors["model"])
            if self.unwritten is not None:
                self.job.write(self.folder, self.unwritten, self.on_write_point)
                self.unwritten = None
            for step, state, groups in (*self.unsaved, now):
                saved = save_checkpoint(folder, step, state=state, tensors=groups, on_write_point=self.on_write_point)
                self.saved = saved.step
            self.unsaved = []
            prune(
                folder, trainer.step, keep=max(settings.keep, settings.average, 2), save_every=settings.save_every,
                keep_every=settings.keep_every, on_write_point=self.on_write_point,
            )  # fmt: skip
        except DiskTrouble as error:
            if last:
                raise DiskTrouble(f"{error} {self.last_checkpoint}") from error
            self.watcher.note(f"warning: {error} {self.last_checkpoint} Training continues and tries again.")
            if settings.average > 1 and trainer.step % settings.save_every == 0:
                copies = {group: cloned(members) for group, members in tensors.items()}
                self.unsaved = [*self.unsaved, (*now[:2], copies)][-settings.average :]
        return -1 if self.saved is None else self.saved

    def finish(self) -> None:
        """Average checkpoints, write the model card, and save."""
        weights = self.trainer.evaluated_weights()
        if self.job.settings.average > 1:
            self.save(last=True)
        self.world.on_rank_zero(lambda: self.finish_on_rank_zero(weights))
        self.finished = True  # only the checkpoint that records this is left to write
        self.save(last=True)

    def finish_on_rank_zero(self, weights: dict[str, Tensor]) -> None:
        """Write the final model.safetensors and the model card."""
        settings = self.job.settings
        weights = self.averaged_checkpoints() if settings.average > 1 else weights
        if self.job.valid is None:
            self.write_best(weights)
        elif settings.average > 1:
            self.watcher.note(f"the average of the last {settings.average} checkpoints:")
            self.validate_here(weights, last=True)
        elif self.trainer.step % settings.valid_every:
            self.validate_here(weights, last=True)
        results = {"steps": self.trainer.step, "seconds": self.seconds, "best": self.best}
        write_model_files(self.folder, {"README.md": self.job.card(results).encode()})

    def averaged_checkpoints(self) -> dict[str, Tensor]:
        """Checkpoint averaging: the mean of the last checkpoints' weights."""
        folder, groups = checkpoints_folder(self.folder), []
        name = "model" if self.trainer.ema is None else "ema"
        for step in saved_steps(folder)[-self.job.settings.average :]:
            fault = verify(folder / f"step-{step}")
            if fault is None:
                groups.append(Checkpoint(folder / f"step-{step}", step).tensors(name))
            else:
                self.watcher.note(f"warning: step-{step}/{fault}; it is left out of the average.")
        return {key: torch.stack([group[key] for group in groups]).mean(dim=0) for key in groups[0]}


Snapshot = tuple[int, dict[str, Any], dict[str, dict[str, Tensor]]]
"""The contents of a checkpoint: step, state, tensors."""


class Pace:
    """Training speed, as an exponential moving average."""

    def __init__(self) -> None:
        self.last, self.tokens_per_second = time.perf_counter(), 0.0

    def count(self, step: Step) -> float:
        """Count a step; -> the seconds since the last one."""
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        speed = step.tokens / max(seconds, 1e-9)
        self.tokens_per_second = speed if not self.tokens_per_second else 0.95 * self.tokens_per_second + 0.05 * speed
        return seconds
