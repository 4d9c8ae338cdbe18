"""Scores as sums over lines: each line is counted once, then any choice of lines has its score at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.metrics import bits_per_byte

Counts = NDArray[np.float64]  # lines by what is counted in each; or their sum
Places = NDArray[np.intp]  # of some lines


@dataclass(frozen=True, eq=False)
class Metric:
    """What is counted in each answer, the score of the sum over lines, and the signature, if there is one."""

    count: Callable[[Sequence[str]], Counts]
    score: Callable[[Counts], float]
    signature: str = ""


def metrics(references: Sequence[str]) -> dict[str, Metric]:
    """Exact match in per cent, and BLEU and chrF from sacreBLEU's own counts."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    def matches(hypotheses: Sequence[str]) -> Counts:
        return np.array([[said == right, 1] for said, right in zip(hypotheses, references)], dtype=np.float64)

    right = [list(references)]
    return {
        "exact": Metric(matches, _share),
        "bleu": _sacrebleu(BLEU(references=right)),
        "chrf": _sacrebleu(CHRF(references=right)),
    }


def bits(sums: Counts) -> float:
    """The bits per byte of summed nats and bytes."""
    return bits_per_byte(float(sums[0]), int(sums[1]))


@dataclass(frozen=True)
class Row:
    """The quality of some of the lines."""

    name: str
    lines: int
    exact: float
    bleu: float
    chrf: float


@dataclass(frozen=True, eq=False)
class Counted:
    """All answers of a model, counted under every metric."""

    metrics: Mapping[str, Metric]
    counts: Mapping[str, Counts]

    def row(self, name: str, places: Places) -> Row:
        """The quality of the lines at some places."""
        scores = {key: metric.score(self.counts[key][places].sum(axis=0)) for key, metric in self.metrics.items()}
        return Row(name, len(places), scores["exact"], scores["bleu"], scores["chrf"])

    def rows(self, buckets: Mapping[str, Places]) -> tuple[Row, ...]:
        """The quality of each bucket of lines."""
        return tuple(self.row(name, places) for name, places in buckets.items())


def counted(hypotheses: Sequence[str], found: Mapping[str, Metric]) -> Counted:
    """Count all answers."""
    return Counted(found, {name: metric.count(hypotheses) for name, metric in found.items()})


def by_length(lengths: Sequence[int], most: int = 6) -> dict[str, Places]:
    """Places by length, in about six buckets of equally many lines; "9-12" holds the lengths 9 to 12."""
    if not len(lengths):
        return {}
    shares = np.linspace(0, 1, most + 1)[1:]
    ends = np.unique(np.quantile(lengths, shares, method="inverted_cdf")).astype(int)
    starts = [int(min(lengths)), *(ends[:-1] + 1)]
    bucket = np.searchsorted(ends, lengths)
    names = [str(end) if start == end else f"{start}-{end}" for start, end in zip(starts, ends)]
    return {name: np.flatnonzero(bucket == place) for place, name in enumerate(names)}


def by_group(groups: Sequence[str]) -> dict[str, Places]:
    """Places by group, in order where groups are numbers."""
    of_line = np.array(groups, dtype=object)
    names = sorted(set(groups), key=int if is_numbered(groups) else str)
    return {name: np.flatnonzero(of_line == name) for name in names}


def is_numbered(names: Sequence[str]) -> bool:
    """Whether all names are numbers, so that they have an order."""
    return all(name.isdecimal() for name in names)


def _share(sums: Counts) -> float:
    return float(100 * sums[0] / sums[1])


def _sacrebleu(metric: Any) -> Metric:
    """A metric of sacreBLEU that holds its references."""

    def count(hypotheses: Sequence[str]) -> Counts:
        return np.array(metric._extract_corpus_statistics(list(hypotheses), None), dtype=np.float64)

    def score(sums: Counts) -> float:
        return float(metric._compute_score_from_stats(sums.tolist()).score)

    return Metric(count, score, str(metric.get_signature()))


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
