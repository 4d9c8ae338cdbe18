"""Whether the lines of two files still belong together, told from their lengths alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LAGS = (-2, -1, 1, 2)
_SURE = 7.0  # standard deviations; chance alone reaches about 5 in ten thousand lines
_RELATED = 0.3  # below this correlation lengths say nothing about pairs
_ENOUGH = 30  # lines
_BETTER = 0.1  # how much better moved lines must agree
_BLOCK = 100_000
_SAMPLED = 100_000

Lengths = NDArray[np.int64]


@dataclass(frozen=True)
class Shift:
    """From `line` (counted from 1) to `last`, targets fit the source `lag` lines further on better than their own."""

    line: int
    last: int
    lag: int
    before: float  # correlation of lengths in front of the place
    after: float  # behind it
    shifted: float  # behind it, when the target is moved


def find_shift(sources: Lengths, targets: Lengths) -> Shift | None:
    """Where pairs stop belonging together, if they do.

    In aligned text long lines stand beside long ones. For each shift a running sum counts how much better the lines
    agree as they stand than when moved; it climbs while they are aligned, and where it falls for long, they are not.
    """
    count = min(len(sources), len(targets))
    if count < 2 * _ENOUGH:
        return None
    best: tuple[float, int, int, int] | None = None
    for lag in _LAGS:
        sureness, start, stop = _longest_fall(sources[:count], targets[:count], lag)
        if best is None or sureness > best[0]:
            best = sureness, start, stop, lag
    assert best is not None
    sureness, start, stop, lag = best
    outside = count - (stop - start)
    rows = _some(0, outside)
    rows += (rows >= start) * (stop - start)
    before = _correlation(sources[rows], targets[rows])
    if sureness < _SURE or stop - start < _ENOUGH or outside < _ENOUGH or before < _RELATED:
        return None
    inside, moved = _some(start, stop), _some(max(start, -lag), min(stop, count - lag))
    after = _correlation(sources[inside], targets[inside])
    shifted = _correlation(sources[moved + lag], targets[moved])
    if shifted < after + _BETTER:  # as in text that is sorted by length
        return None
    return Shift(start + 1, stop, lag, before, after, shifted)


def _longest_fall(sources: Lengths, targets: Lengths, lag: int) -> tuple[float, int, int]:
    """How sure it is that somewhere lines agree better when moved, and from where to where."""
    count = len(sources)
    scales = [_scale(side) for side in (sources, targets)]
    total = square = peak = 0.0
    peak_place, fall, found = 0, 0.0, (0, 0)
    for first in range(0, count, _BLOCK):
        rows = np.arange(first, min(count, first + _BLOCK))
        here, there = np.log1p(sources[rows]), np.log1p(sources[np.clip(rows + lag, 0, count - 1)])
        target = (np.log1p(targets[rows]) - scales[1][0]) / scales[1][1]
        gain = np.clip(target * (here - there) / scales[0][1], -4, 4)
        square += float(gain @ gain)
        running = total + np.cumsum(gain)
        peaks = np.maximum.accumulate(np.maximum(running, peak))
        falls = peaks - running
        lowest = int(falls.argmax())
        if falls[lowest] > fall:
            fall = float(falls[lowest])
            higher = np.flatnonzero(running[: lowest + 1] == peaks[lowest])
            found = (first + int(higher[0]) + 1 if len(higher) else peak_place), first + lowest + 1
        if peaks[-1] > peak:
            peak, peak_place = float(peaks[-1]), first + int(running.argmax()) + 1
        total = float(running[-1])
    length = max(1, found[1] - found[0])
    return fall / max(1e-9, np.sqrt(square / count * length)), found[0], found[1]


def _some(start: int, stop: int) -> Lengths:
    """Places between two, evenly spread when they are very many."""
    return np.arange(start, stop, max(1, (stop - start) // _SAMPLED))


def _scale(side: Lengths) -> tuple[float, float]:
    sample = np.log1p(side[_some(0, len(side))])
    return float(sample.mean()), max(1e-9, float(sample.std()))


def _correlation(one: Lengths, other: Lengths) -> float:
    if len(one) < 2:
        return 0.0
    one, other = np.log1p(one), np.log1p(other)
    if one.std() < 1e-9 or other.std() < 1e-9:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])
