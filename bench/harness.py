"""Contestants work in turns within one process, so that what slows one down slows the others too."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from regard.errors import InputError

Contestants = Mapping[str, Callable[[], float]]
"""By name: does a block of work and returns its speed in units per second."""


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles of some numbers."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread:
        """The quartiles, interpolated; of a single number, that number."""
        if len(numbers) == 1:
            return cls(numbers[0], numbers[0], numbers[0])
        return cls(*statistics.quantiles(numbers, n=4, method="inclusive"))


@dataclass(frozen=True)
class Result:
    """The speed of every contestant in every round."""

    name: str
    speeds: Mapping[str, tuple[float, ...]]

    def speed(self, contestant: str) -> Spread:
        """Units per second."""
        return Spread.of(self.speeds[contestant])

    def ratio(self, contestant: str, other: str) -> Spread:
        """How many times as fast one is as the other: of each round's two speeds, never of two medians."""
        return Spread.of([ours / theirs for ours, theirs in zip(self.speeds[contestant], self.speeds[other])])


def compare(name: str, contestants: Contestants, rounds: int) -> Result:
    """Warm up with a block each, then let all work in every round, every other round in reverse order."""
    if rounds < 1:
        raise InputError(f"rounds must be 1 or more, got {rounds} (--rounds).")
    for work in contestants.values():
        work()
    speeds: dict[str, list[float]] = {contestant: [] for contestant in contestants}
    for number in range(rounds):
        for contestant in list(contestants)[:: -1 if number % 2 else 1]:
            speeds[contestant].append(contestants[contestant]())
    return Result(name, {contestant: tuple(found) for contestant, found in speeds.items()})


def per_second(work: Callable[[], float]) -> Callable[[], float]:
    """Work that returns how much it did -> a block that returns its speed."""

    def block() -> float:
        start = time.perf_counter()
        done = work()
        return done / (time.perf_counter() - start)

    return block


def table(result: Result, unit: str, remarks: Mapping[str, str] | None = None) -> str:
    """Markdown: one line per contestant, the first against each of the others."""
    first = next(iter(result.speeds))
    lines = [f"| | {unit} | quartiles | {first} / this | quartiles | |", "|---|---|---|---|---|---|"]
    for contestant in result.speeds:
        speed, ratio = result.speed(contestant), result.ratio(first, contestant)
        times = "| |" if contestant == first else f"{ratio.median:.2f} | {ratio.low:.2f} to {ratio.high:.2f} |"
        remark = (remarks or {}).get(contestant, "")
        lines.append(
            f"| {contestant} | {speed.median:,.1f} | {speed.low:,.1f} to {speed.high:,.1f} | {times} {remark} |"
        )
    return "\n".join(lines)
