"""A claim of the papers or notes that can be re-run: its question, the rule of its verdict, its measure, its picture.

A claim compares *arms* (models that differ in one part) over *seeds*. One arm with one seed is a trial; its measure
is a mapping from names to numbers. The rule is stated before the run, and the verdict is a pure function of all
numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from regard.progress import QUIET, Progress

Verdict = Literal["confirmed", "refuted", "not decided at this size"]
CONFIRMED: Verdict = "confirmed"
REFUTED: Verdict = "refuted"
NOT_DECIDED: Verdict = "not decided at this size"

HELD_OUT = 1 << 20
"""Added to a seed, it gives rows that no training with a seed below it has seen."""

S = TypeVar("S")


@dataclass(frozen=True)
class Numbers:
    """The measures of all trials: by arm and by name, one value per seed."""

    arms: Mapping[str, Mapping[str, Sequence[float]]]

    def values(self, arm: str, measure: str) -> Sequence[float]:
        """One value per seed."""
        return self.arms[arm][measure]

    def mean(self, arm: str, measure: str) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values(arm, measure))

    def lead(self, arm: str, other: str, measure: str) -> list[float]:
        """By seed: how much higher the measure of an arm is than that of another."""
        return [one - two for one, two in zip(self.values(arm, measure), self.values(other, measure))]

    def to_json(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Mean, spread (standard deviation) and the values of each seed."""
        return {
            arm: {
                name: {
                    "mean": statistics.fmean(values),
                    "spread": statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None,
                    "values": list(values),
                }
                for name, values in measures.items()
            }
            for arm, measures in self.arms.items()
        }


def by_lead(lead: Sequence[float], margin: float, refuting: float = 0.0) -> Verdict:
    """Confirmed if every seed leads by the margin, refuted if no seed leads by more than `refuting`."""
    if all(one >= margin for one in lead):
        return CONFIRMED
    return REFUTED if all(one <= refuting for one in lead) else NOT_DECIDED


@dataclass(frozen=True)
class Trial(Generic[S]):
    """One arm with one seed: all that a measure may read."""

    arm: str
    seed: int
    settings: S
    scale: float = 1.0  # of the full size: the minutes that were asked for, divided by the claim's own
    text: Path | None = None  # a text of the user's own
    fixed: tuple[str, ...] = ()  # settings that the user chose, which the minutes do not scale
    progress: Progress = field(default=QUIET, compare=False)  # receives the share of the trial that is done

    def scaled(self, name: str) -> int:
        """A count among the settings, such as steps, scaled by the minutes."""
        full = getattr(self.settings, name)
        return int(full) if name in self.fixed else max(1, round(full * self.scale))


@dataclass(frozen=True)
class Series:
    """The values of one line of a picture: for each label one value per seed."""

    name: str
    values: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Picture:
    """Series over labels, with the range over seeds; `joined` by lines where the labels are ordered."""

    title: str
    labels: Sequence[str]
    series: Sequence[Series]
    joined: bool = True
    log: bool = False


def by_label(title: str, prefix: str, *, log: bool = False) -> Callable[[Numbers], Picture]:
    """A line per arm over the measures whose names begin with `prefix`; what follows it is the label."""

    def picture(numbers: Numbers) -> Picture:
        first = next(iter(numbers.arms.values()))
        names = [name for name in first if name.startswith(prefix)]
        series = [Series(arm, [measures[name] for name in names]) for arm, measures in numbers.arms.items()]
        return Picture(title, [name.removeprefix(prefix).strip() for name in names], series, log=log)

    return picture


def by_arm(title: str, *measures: str, log: bool = False) -> Callable[[Numbers], Picture]:
    """A dot per arm for each of the measures."""

    def picture(numbers: Numbers) -> Picture:
        series = [Series(name, [numbers.values(arm, name) for arm in numbers.arms]) for name in measures]
        return Picture(title, list(numbers.arms), series, joined=False, log=log)

    return picture


@dataclass(frozen=True, kw_only=True)
class Claim(Generic[S]):
    """A claim: what is asked, how it is measured, and the rule of its verdict. Texts and minutes are literals."""

    name: str
    question: str  # one sentence
    source: str  # the paper or the notes
    method: str  # what is done: task, models, what is equal
    rule: str  # of the verdict, stated before the run
    caveats: str
    minutes: float  # of the full size, on one core
    fewest: float  # minutes of the quick size; less decides nothing
    arms: tuple[str, ...]
    settings: S  # a frozen dataclass; --set changes its fields
    measure: Callable[[Trial[S]], Mapping[str, float]]
    verdict: Callable[[Numbers], Verdict]
    picture: Callable[[Numbers], Picture]
    seeds: int = 3
    needs_text: int = 0  # bytes that a text of the user's own must have; 0: it takes none
