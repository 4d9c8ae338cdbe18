"""Whether one model is better than another or only luckier: a paired bootstrap over lines (Koehn 2004)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from regard.judge.counts import Counts

SAMPLES, SEED = 1000, 12345  # as sacreBLEU has them
_TIE = 1e-9


@dataclass(frozen=True)
class Estimate:
    """A score, half of its 95 % interval, and the p-value of its difference from the first model's."""

    value: float
    margin: float | None = None
    p: float | None = None


def paired(counts: Sequence[Counts], score: Callable[[Counts], float]) -> list[Estimate]:
    """Score the sums over all lines, and over lines drawn with replacement, the same for every model.

    The draws are those of sacreBLEU, and so are its intervals. The test is two-sided: how often a resampled
    difference is as far from the real one as the real one is from none. From one line nothing can be drawn.
    """
    from sacrebleu.significance import estimate_ci

    models = np.stack(counts)
    lines = models.shape[1]
    values = [score(sums) for sums in models.sum(axis=1)]
    if lines < 2:
        return [Estimate(value) for value in values]
    draw = np.random.default_rng(SEED)
    draws = (np.bincount(draw.choice(lines, lines), minlength=lines).astype(float) for _ in range(SAMPLES))
    drawn = np.array([[score(sums) for sums in times @ models] for times in draws]).T
    found = []
    for place, (value, scores) in enumerate(zip(values, drawn)):
        real = value - values[0]
        far = np.abs(scores - drawn[0] - real) >= abs(real) - _TIE
        p = (int(far.sum()) + 1) / (SAMPLES + 1) if place else None
        found.append(Estimate(value, float(estimate_ci(scores)[1]), p))
    return found
