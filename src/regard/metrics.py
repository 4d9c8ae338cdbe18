"""Metrics: BLEU, chrF, TER, exact match, calibration, perplexity, bits per byte, accuracy, F1 and correlations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Quality:
    """Translations against references; BLEU, chrF and TER by sacreBLEU, each with its signature."""

    bleu: float
    chrf: float
    exact: float  # per cent of lines equal to one of their references
    lines: int
    bleu_signature: str
    chrf_signature: str
    ter: float | None = None  # translation edit rate (Snover 2006), in per cent; lower is better
    ter_signature: str = ""


@dataclass(frozen=True)
class Scoring:
    """How sacreBLEU compares: the tokenization of BLEU (None: 13a), letters in small ones, TER too."""

    tokenize: str | None = None
    lowercase: bool = False
    ter: bool = False

    def bleu(self, references: Sequence[Sequence[str]] | None = None) -> Any:
        """The metric BLEU."""
        from sacrebleu.metrics.bleu import BLEU

        return BLEU(tokenize=self.tokenize, lowercase=self.lowercase, references=_wrapped(references))

    def chrf(self, references: Sequence[Sequence[str]] | None = None) -> Any:
        """The metric chrF."""
        from sacrebleu.metrics.chrf import CHRF

        return CHRF(lowercase=self.lowercase, references=_wrapped(references))


def _wrapped(references: Sequence[Sequence[str]] | None) -> list[list[str]] | None:
    return None if references is None else [list(one) for one in references]


def quality(
    hypotheses: Sequence[str], *references: Sequence[str], scoring: Scoring | None = None
) -> Quality:  # fmt: skip
    """BLEU, chrF and exact match of all lines together, against one or more references per line."""
    scoring = scoring or Scoring()
    bleu, chrf, lines = scoring.bleu(), scoring.chrf(), list(hypotheses)
    wrapped = [list(one) for one in references]
    exact = sum(one in others for one, others in zip(hypotheses, zip(*references)))
    ter: Any = None
    if scoring.ter:
        from sacrebleu.metrics.ter import TER

        ter = TER(case_sensitive=not scoring.lowercase)
    return Quality(
        bleu=bleu.corpus_score(lines, wrapped).score,
        chrf=chrf.corpus_score(lines, wrapped).score,
        exact=100 * exact / max(1, len(lines)),
        lines=len(lines),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        ter=None if ter is None else ter.corpus_score(lines, wrapped).score,
        ter_signature="" if ter is None else str(ter.get_signature()),
    )


@dataclass(frozen=True)
class Reliability:
    """The expected calibration error (Naeini 2015), and the reliability curve: confidence, share right, number."""

    error: float
    count: int
    curve: tuple[tuple[float, float, int], ...]


def reliability(probabilities: NDArray[np.float64], right: NDArray[np.float64], bins: int = 10) -> Reliability:
    """How far confidences are from the share that is right, in bins of equal width."""
    numbers = np.minimum((probabilities * bins).astype(int), bins - 1)
    curve, error = [], 0.0
    for number in range(bins):
        inside = numbers == number
        if inside.any():
            confidence, share = float(probabilities[inside].mean()), float(right[inside].mean())
            curve.append((confidence, share, int(inside.sum())))
            error += abs(confidence - share) * float(inside.mean())
    return Reliability(error, len(probabilities), tuple(curve))


def perplexity(loss: float) -> float:
    """The exponential of the mean cross entropy per token."""
    return math.exp(loss) if loss < 700 else math.inf


def bits_per_byte(total: float, size: int) -> float:
    """Summed cross entropy, unknown characters included, in bits per UTF-8 byte; comparable across tokenizers."""
    return total / math.log(2) / max(1, size)


def agreement(predicted: NDArray[np.integer[Any]], expected: NDArray[np.integer[Any]]) -> dict[str, float]:
    """Accuracy, macro F1 and Matthews' correlation of label ids."""
    names, numbered = np.unique(np.concatenate([predicted, expected]), return_inverse=True)
    mine, theirs = numbered[: len(predicted)], numbered[len(predicted) :]
    hits = np.bincount(mine[mine == theirs], minlength=len(names)).astype(float)
    of_mine, of_theirs = (np.bincount(of, minlength=len(names)).astype(float) for of in (mine, theirs))
    total, right_ones = max(1, len(predicted)), hits.sum()
    spread = (total**2 - (of_mine**2).sum()) * (total**2 - (of_theirs**2).sum())
    together = right_ones * total - (of_mine * of_theirs).sum()
    return {
        "accuracy": float(right_ones / total),
        "f1": float(np.mean(2 * hits / np.maximum(1, of_mine + of_theirs))),
        "matthews": float(together / np.sqrt(spread)) if spread > 0 else 0.0,
    }


def correlation(predicted: NDArray[np.floating[Any]], expected: NDArray[np.floating[Any]]) -> dict[str, float]:
    """Pearson's and Spearman's correlation."""
    return {"pearson": _pearson(predicted, expected), "spearman": _pearson(_ranks(predicted), _ranks(expected))}


def _pearson(one: NDArray[Any], other: NDArray[Any]) -> float:
    one, other = one - one.mean(dtype=float), other - other.mean(dtype=float)
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return float((one * other).sum()) / size if size > 0 else 0.0


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """The rank of each value; equal values share the mean of their ranks."""
    _, numbered, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((2 * ends - counts - 1) / 2)[numbered]
