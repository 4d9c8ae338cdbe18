"""Logs of a training run: metrics.jsonl, TensorBoard, and progress on the terminal."""

from __future__ import annotations

import io
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from regard.errors import DiskTrouble, printable
from regard.progress import Cell, place
from regard.schema import finite
from regard.store.files import disk_errors, write_file
from regard.training.step import Step
from regard.training.validate import Validation


class Appender:
    """Appends whole records to a file; while the disk is full, records wait in memory."""

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        self.path, self.note = path, note
        self.waiting: list[bytes] = []

    def add(self, record: bytes) -> None:
        """Append a record after those that wait; a full disk is reported once and does not stop the run."""
        try:
            self.append(b"".join([*self.waiting, record]))
            self.waiting = []
        except DiskTrouble as error:
            if not self.waiting:
                self.note(f"warning: {error} Training continues and tries again.")
            self.waiting.append(record)

    def append(self, content: bytes) -> None:
        """Append all of the content or nothing."""
        with disk_errors(self.path, len(content)), open(self.path, "ab", buffering=0) as file:
            end, rest = file.tell(), content
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(end)
                raise


class Log:
    """Appends to metrics.jsonl, and to TensorBoard if installed; on resume both drop what is later than the checkpoint.

    `unlogged` are the lines that still waited for room on the disk when the checkpoint was saved.
    """

    def __init__(self, folder: Path, step: int, unlogged: Sequence[str], note: Callable[[str], None]) -> None:
        self.lines = Appender(folder / "metrics.jsonl", note)
        self.board = Appender(_events(folder / "tensorboard"), note) if _has_tensorboard() else None
        if self.board is not None:
            self.board.add(_record(file_version="brain.Event:2"))
            # It voids later events of earlier files.
            self.board.add(_record(step=step + 1, session_log={"status": "START"}))
        kept: list[bytes] = []
        if self.lines.path.exists():
            kept = [line for line in self.lines.path.read_bytes().splitlines(keepends=True) if _until(line, step)]
            write_file(self.lines.path, b"".join(kept))
        for line in unlogged:
            if _until(line.encode(), step) and line.encode() not in kept:
                self.append(line)

    @property
    def unlogged(self) -> list[str]:
        """The lines that wait for room on the disk."""
        return [line.decode() for line in self.lines.waiting if line]

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Append a line of metrics."""
        self.append(json.dumps(finite({"step": step, **values})) + "\n")

    def close(self) -> None:
        """Try a last time to write the lines that wait, and report those that remain."""
        if self.lines.waiting:
            self.lines.add(b"")
        if self.lines.waiting:
            self.lines.note(f"warning: {len(self.unlogged):,} lines could not be written to {self.lines.path}.")

    def append(self, line: str) -> None:
        """Append a line to metrics.jsonl, and its numbers to TensorBoard."""
        self.lines.add(line.encode())
        values = json.loads(line)
        points = [
            {"tag": name.replace("valid_", "valid/"), "simple_value": value}
            for name, value in values.items()
            if isinstance(value, (int, float)) and name not in ("step", "last")
        ]
        if self.board is not None:
            self.board.add(_record(step=values["step"], summary={"value": points}))


def _has_tensorboard() -> bool:
    """Whether the extra `tensorboard` is installed; metrics.jsonl needs nothing."""
    return find_spec("tensorboard") is not None


def _events(folder: Path) -> Path:
    """The path of a TensorBoard event file, one per process."""
    with disk_errors(folder, 0):
        folder.mkdir(exist_ok=True)
    return folder / f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.0"


def _record(**fields: Any) -> bytes:
    """An event as a TensorBoard record."""
    from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
    from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

    record = io.BytesIO()
    RecordWriter(record).write(Event(wall_time=time.time(), **fields).SerializeToString())
    return record.getvalue()


def _until(line: bytes, step: int) -> bool:
    """Whether a line is complete and not later than the step."""
    try:
        values = json.loads(line)
        # The validation after the last step is repeated.
        return line.endswith(b"\n") and int(values["step"]) <= step and not values.get("last")
    except (ValueError, KeyError, TypeError):
        return False


class Watcher:
    """Receives the progress of a run."""

    def start(self, step: int, steps: int) -> None:
        """The run starts at this step."""

    def note(self, text: str) -> None:
        """A message for a person."""

    def stepped(self, number: int, step: Step, tokens_per_second: float) -> None:
        """A step is done."""

    def validated(self, number: int, validation: Validation, better: bool) -> None:
        """A validation is done."""

    def end(self) -> None:
        """The run is over."""


class Quiet(Watcher):
    """Prints nothing."""


class Lines(Quiet):
    """Plain lines, for pipes and log files: validations, some steps, the last step."""

    def __init__(self, every: float = 10.0, stream: TextIO | None = None) -> None:
        self.every = every  # minimum seconds between two lines about steps
        self.stream = stream  # None: standard output
        self.first = self.steps = 0
        self.began = self.printed = 0.0

    def start(self, step: int, steps: int) -> None:
        self.first, self.steps = step, steps
        self.began = self.printed = time.monotonic()

    def print(self, line: str) -> None:
        """Print a line; a full disk or a closed pipe does not stop the run."""
        with suppress(OSError):
            print(line, flush=True, file=self.stream)

    def note(self, text: str) -> None:
        self.print(text)

    def stepped(self, number: int, step: Step, tokens_per_second: float) -> None:
        now = time.monotonic()
        if number < self.steps and now < self.printed + self.every:
            return
        self.printed = now
        self.print(self.progress(number, step, tokens_per_second))

    def progress(self, number: int, step: Step, tokens_per_second: float) -> str:
        """The step, its loss, the speed and the time left."""
        left = (self.steps - number) * (time.monotonic() - self.began) / (number - self.first)
        speed = f"{tokens_per_second:,.0f} tokens/s" + (f", about {span(left)} left" if left >= 1 else "")
        return f"step {number:,} of {self.steps:,}: training loss {step.loss:.4g}, {speed}"

    def validated(self, number: int, validation: Validation, better: bool) -> None:
        self.print(f"step {number:,}: {summary(validation)}{' *' if better else ''}")


class Notebook(Lines):
    """The same lines in the cell of a notebook, where the line about steps updates."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()

    def print(self, line: str) -> None:
        self.cell.print(line)

    def stepped(self, number: int, step: Step, tokens_per_second: float) -> None:
        self.cell.status(self.progress(number, step, tokens_per_second))

    def end(self) -> None:
        self.cell.show()


class Bar(Quiet):
    """A progress bar on a terminal: loss, speed, time left; validations scroll above it."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        columns = TextColumn("[bold]training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[status]}")
        self.bar = Progress(*columns, TimeRemainingColumn(), console=self.console)
        self.task: TaskID | None = None

    def start(self, step: int, steps: int) -> None:
        self.task = self.bar.add_task("training", total=steps, completed=step, status="")
        self.bar.start()

    def note(self, text: str) -> None:
        self._print(escape(printable(text)))

    def stepped(self, number: int, step: Step, tokens_per_second: float) -> None:
        if self.task is not None:
            status = f"loss [bold]{step.loss:.3f}[/] · {tokens_per_second:,.0f} tokens/s"
            self.bar.update(self.task, completed=number, status=status)

    def validated(self, number: int, validation: Validation, better: bool) -> None:
        mark = " [green]best so far[/]" if better else ""
        self._print(f"[bold]step {number:,}[/] {escape(summary(validation))}{mark}")
        for sample in validation.samples:
            exact = sample.output == sample.reference
            verdict = "[green]exact[/]" if exact else f"[dim]reference {short(sample.reference)}[/]"
            self._print(f"   {short(sample.source)} → {short(sample.output)}  {verdict}")

    def end(self) -> None:
        with suppress(OSError):
            self.bar.stop()

    def _print(self, text: str) -> None:
        """Print a line; a terminal that was closed does not stop the run."""
        with suppress(OSError):
            self.console.print(text, highlight=False)


def short(text: str, max_characters: int = 60) -> str:
    """A text on one line, truncated, with markup escaped."""
    line = printable(" ".join(text.split()))
    return escape(line if len(line) <= max_characters else line[: max_characters - 1] + "…")


def summary(validation: Validation) -> str:
    """The metrics of a validation in one line."""
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in validation.metrics.items())


def span(seconds: float) -> str:
    """A duration in seconds, minutes, hours or days, whichever is readable."""
    if seconds < 1:
        return "less than a second"
    for unit, size, most in (("second", 1, 120), ("minute", 60, 120), ("hour", 3600, 48)):
        if round(seconds / size) < most:
            return _count(seconds / size, unit)
    return _count(seconds / 86400, "day")


def _count(value: float, unit: str) -> str:
    """A number with its unit, with a fraction only where it matters: 1 second, 2.5 hours, 31 hours."""
    number = f"{value:.1f}".removesuffix(".0") if value < 10 and unit != "second" else f"{value:.0f}"
    return f"{number} {unit}{'' if number == '1' else 's'}"


def watcher(stream: TextIO | None = None) -> Watcher:
    """A progress bar on a terminal, a cell in a notebook, plain lines elsewhere: on the stream, or standard output."""
    where = place()
    return Bar() if where == "terminal" else Notebook() if where == "notebook" else Lines(stream=stream)
