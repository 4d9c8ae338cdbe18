"""What a person sees while a model learns."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from regard.learn.trainer import Step
from regard.learn.validate import Validation


class Watcher(Protocol):
    """Is told how the run goes."""

    def begin(self, step: int, steps: int) -> None:
        """The run starts at this step."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def stepped(self, number: int, step: Step, tokens_per_second: float) -> None:
        """A step was taken."""

    def validated(self, number: int, validation: Validation, better: bool) -> None:
        """A validation was done."""

    def end(self) -> None:
        """The run is over."""


class Quiet:
    """Says nothing."""

    def begin(self, step: int, steps: int) -> None: ...
    def note(self, text: str) -> None: ...
    def stepped(self, number: int, step: Step, tokens_per_second: float) -> None: ...
    def validated(self, number: int, validation: Validation, better: bool) -> None: ...
    def end(self) -> None: ...


class Lines(Quiet):
    """Plain lines on standard output, for pipes and log files: validations, a step now and then, the last step."""

    def __init__(self, every: float = 10.0) -> None:
        self.every = every  # seconds at least between two lines of steps
        self.first = self.steps = 0
        self.began = self.said = 0.0

    def begin(self, step: int, steps: int) -> None:
        self.first, self.steps = step, steps
        self.began = self.said = time.monotonic()

    def note(self, text: str) -> None:
        _say(text)

    def stepped(self, number: int, step: Step, tokens_per_second: float) -> None:
        now = time.monotonic()
        if number < self.steps and now < self.said + self.every:
            return
        self.said = now
        left = (self.steps - number) * (now - self.began) / (number - self.first)
        speed = f"{tokens_per_second:,.0f} tokens/s" + (f", about {span(left)} left" if left >= 1 else "")
        _say(f"step {number:,} of {self.steps:,}: training loss {step.loss:.4g}, {speed}")

    def validated(self, number: int, validation: Validation, better: bool) -> None:
        _say(f"step {number:,}: {summary(validation)}{' *' if better else ''}")


class Bar(Quiet):
    """A live line on a terminal: loss, speed, time left; validations scroll above it."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("[bold]learning"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.task: TaskID | None = None

    def begin(self, step: int, steps: int) -> None:
        self.task = self.bar.add_task("learning", total=steps, completed=step, said="")
        self.bar.start()

    def note(self, text: str) -> None:
        self.console.print(escape(text), highlight=False)

    def stepped(self, number: int, step: Step, tokens_per_second: float) -> None:
        if self.task is not None:
            said = f"loss [bold]{step.loss:.3f}[/] · {tokens_per_second:,.0f} tokens/s"
            self.bar.update(self.task, completed=number, said=said)

    def validated(self, number: int, validation: Validation, better: bool) -> None:
        mark = " [green]best so far[/]" if better else ""
        self.console.print(f"[bold]step {number:,}[/] {escape(summary(validation))}{mark}", highlight=False)
        for sample in validation.samples:
            right = sample.said == sample.expected
            verdict = "[green]right[/]" if right else f"[dim]expected {short(sample.expected)}[/]"
            self.console.print(f"   {short(sample.source)} → {short(sample.said)}  {verdict}", highlight=False)

    def end(self) -> None:
        self.bar.stop()


def _say(line: str) -> None:
    """Print a line; a full disk under the output, or nobody who reads it any more, is no reason to stop learning."""
    with suppress(OSError):
        print(line, flush=True)


def short(text: str, longest: int = 60) -> str:
    """A text that fits on a line beside others, safe for the console."""
    line = " ".join(text.split())
    return escape(line if len(line) <= longest else line[: longest - 1] + "…")


def summary(validation: Validation) -> str:
    """The numbers of a validation in one line."""
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in validation.numbers.items())


def span(seconds: float) -> str:
    """A time as people say it: in seconds, minutes, hours or days."""
    if seconds < 1:
        return "less than a second"
    for unit, size, most in (("second", 1, 120), ("minute", 60, 120), ("hour", 3600, 48)):
        if round(seconds / size) < most:
            return _count(seconds / size, unit)
    return _count(seconds / 86400, "day")


def _count(value: float, unit: str) -> str:
    """So many of a unit, with a fraction only where it matters: 1 second, 2.5 hours, 31 hours."""
    said = f"{value:.1f}".removesuffix(".0") if value < 10 and unit != "second" else f"{value:.0f}"
    return f"{said} {unit}{'' if said == '1' else 's'}"


def watcher() -> Watcher:
    """A live line where a person watches, plain lines elsewhere."""
    return Bar() if sys.stderr.isatty() else Lines()
