"""Scores with confidence intervals and paired bootstrap tests (Koehn 2004).

Every metric is a sum of statistics over lines: they are counted once per line, so scoring any subset of lines is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.metrics import Scoring, bits_per_byte

Counts = NDArray[np.float64]  # statistics per line; or their sum
Lines = NDArray[np.intp]  # indices of lines


@dataclass(frozen=True, eq=False)
class Metric:
    """The statistics of a line, the score of their sum, and the sacreBLEU signature, if there is one."""

    count: Callable[[Sequence[str]], Counts]
    score: Callable[[Counts], float]
    signature: str = ""


def metrics(*references: Sequence[str], scoring: Scoring | None = None) -> dict[str, Metric]:
    """Exact match in per cent, and BLEU and chrF from sacreBLEU's own counts."""
    scoring = scoring or Scoring()

    def matches(hypotheses: Sequence[str]) -> Counts:
        rows = zip(hypotheses, zip(*references))
        return np.array([[one in others, 1] for one, others in rows], dtype=np.float64)

    return {
        "exact": Metric(matches, lambda sums: float(100 * sums[0] / sums[1])),
        "bleu": _sacrebleu(scoring.bleu(references)),
        "chrf": _sacrebleu(scoring.chrf(references)),
    }


def bits(sums: Counts) -> float:
    """The bits per byte of summed nats and bytes."""
    return bits_per_byte(float(sums[0]), int(sums[1]))


@dataclass(frozen=True)
class Row:
    """The quality of a group of lines."""

    name: str
    lines: int
    exact: float
    bleu: float
    chrf: float


@dataclass(frozen=True, eq=False)
class Counted:
    """The statistics of all hypotheses of a model under every metric."""

    metrics: Mapping[str, Metric]
    counts: Mapping[str, Counts]

    def row(self, name: str, lines: Lines) -> Row:
        """The quality of some lines."""
        scores = {key: metric.score(self.counts[key][lines].sum(axis=0)) for key, metric in self.metrics.items()}
        return Row(name, len(lines), scores["exact"], scores["bleu"], scores["chrf"])

    def rows(self, buckets: Mapping[str, Lines]) -> tuple[Row, ...]:
        """The quality of each bucket of lines."""
        return tuple(self.row(name, lines) for name, lines in buckets.items())


def counted(hypotheses: Sequence[str], found: Mapping[str, Metric]) -> Counted:
    """The statistics of all hypotheses."""
    return Counted(found, {name: metric.count(hypotheses) for name, metric in found.items()})


def by_length(lengths: Sequence[int], most: int = 6) -> dict[str, Lines]:
    """Lines by length, in about six buckets of equally many lines; "9-12" holds the lengths 9 to 12."""
    if not len(lengths):
        return {}
    shares = np.linspace(0, 1, most + 1)[1:]
    ends = np.unique(np.quantile(lengths, shares, method="inverted_cdf")).astype(int)
    starts = [int(min(lengths)), *(ends[:-1] + 1)]
    bucket = np.searchsorted(ends, lengths)
    names = [str(end) if start == end else f"{start}-{end}" for start, end in zip(starts, ends)]
    return {name: np.flatnonzero(bucket == number) for number, name in enumerate(names)}


def by_group(groups: Sequence[str]) -> dict[str, Lines]:
    """Lines by group; numeric groups are in order."""
    of_line = np.array(groups, dtype=object)
    names = sorted(set(groups), key=int if is_numbered(groups) else str)
    return {name: np.flatnonzero(of_line == name) for name in names}


def is_numbered(names: Sequence[str]) -> bool:
    """Whether all names are numbers, which have an order."""
    return all(name.isdecimal() for name in names)


def _sacrebleu(metric: Any) -> Metric:
    """A metric of sacreBLEU that holds its references."""

    def count(hypotheses: Sequence[str]) -> Counts:
        return np.array(metric._extract_corpus_statistics(list(hypotheses), None), dtype=np.float64)

    def score(sums: Counts) -> float:
        return float(metric._compute_score_from_stats(sums.tolist()).score)

    return Metric(count, score, str(metric.get_signature()))


SAMPLES, SEED = 1000, 12345  # as in sacreBLEU
METHOD = f"paired bootstrap, {SAMPLES:,} resamples, seed {SEED}"
_TIE = 1e-9


@dataclass(frozen=True)
class BootstrapScore:
    """A score, half of its 95 % interval, and the p-value of its difference from the first model's."""

    value: float
    margin: float | None = None
    p: float | None = None


def paired(counts: Sequence[Counts], score: Callable[[Counts], float]) -> list[BootstrapScore]:
    """Paired bootstrap: score all lines, and lines drawn with replacement, the same draws for every model.

    Draws and intervals are those of sacreBLEU. The test is two-sided: how often a resampled difference is as far from
    the real one as the real one is from zero. One line alone gives no interval.
    """
    from sacrebleu.significance import estimate_ci

    models = np.stack(counts)
    lines = models.shape[1]
    values = [score(sums) for sums in models.sum(axis=1)]
    if lines < 2:
        return [BootstrapScore(value) for value in values]
    draw = np.random.default_rng(SEED)
    draws = (np.bincount(draw.choice(lines, lines), minlength=lines).astype(float) for _ in range(SAMPLES))
    drawn = np.array([[score(sums) for sums in times @ models] for times in draws]).T
    found = []
    for number, (value, scores) in enumerate(zip(values, drawn)):
        real = value - values[0]
        far = np.abs(scores - drawn[0] - real) >= abs(real) - _TIE
        p = (int(far.sum()) + 1) / (SAMPLES + 1) if number else None
        found.append(BootstrapScore(value, float(estimate_ci(scores)[1]), p))
    return found
