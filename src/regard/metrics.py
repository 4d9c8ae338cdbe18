"""Metrics: BLEU, chrF, exact match, perplexity, bits per byte, accuracy, F1 and correlations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Quality:
    """Translations against references; BLEU and chrF by sacreBLEU, each with its signature."""

    bleu: float
    chrf: float
    exact: float  # per cent of lines equal to their reference
    lines: int
    bleu_signature: str
    chrf_signature: str


def quality(hypotheses: Sequence[str], references: Sequence[str]) -> Quality:
    """BLEU, chrF and exact match of all lines together."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(), CHRF()
    lines, wrapped = list(hypotheses), [list(references)]
    exact = sum(one == other for one, other in zip(hypotheses, references))
    return Quality(
        bleu=bleu.corpus_score(lines, wrapped).score,
        chrf=chrf.corpus_score(lines, wrapped).score,
        exact=100 * exact / max(1, len(lines)),
        lines=len(lines),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


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
