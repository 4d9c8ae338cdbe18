"""How good a model is, in numbers that compare."""

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
    exact: float  # per cent of lines that are right to the letter
    lines: int
    bleu_signature: str
    chrf_signature: str


def quality(hypotheses: Sequence[str], references: Sequence[str]) -> Quality:
    """BLEU, chrF and exact match of all lines together."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(), CHRF()
    said, right = list(hypotheses), [list(references)]
    exact = sum(one == other for one, other in zip(hypotheses, references))
    return Quality(
        bleu=bleu.corpus_score(said, right).score,
        chrf=chrf.corpus_score(said, right).score,
        exact=100 * exact / max(1, len(said)),
        lines=len(said),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


def perplexity(loss: float) -> float:
    """E to the mean cross entropy of a token."""
    return math.exp(loss) if loss < 700 else math.inf


def bits_per_byte(total: float, size: int) -> float:
    """The summed cross entropy in bits, over the UTF-8 bytes it pays for: compares across tokenizers."""
    return total / math.log(2) / max(1, size)


def agreement(said: NDArray[np.integer[Any]], right: NDArray[np.integer[Any]]) -> dict[str, float]:
    """Of names given as numbers: how many are right, the mean of their F1 scores, and Matthews' correlation."""
    names, numbered = np.unique(np.concatenate([said, right]), return_inverse=True)
    mine, theirs = numbered[: len(said)], numbered[len(said) :]
    hits = np.bincount(mine[mine == theirs], minlength=len(names)).astype(float)
    of_mine, of_theirs = (np.bincount(of, minlength=len(names)).astype(float) for of in (mine, theirs))
    total, right_ones = max(1, len(said)), hits.sum()
    spread = (total**2 - (of_mine**2).sum()) * (total**2 - (of_theirs**2).sum())
    together = right_ones * total - (of_mine * of_theirs).sum()
    return {
        "accuracy": float(right_ones / total),
        "f1": float(np.mean(2 * hits / np.maximum(1, of_mine + of_theirs))),
        "matthews": float(together / np.sqrt(spread)) if spread > 0 else 0.0,
    }


def correlation(said: NDArray[np.floating[Any]], right: NDArray[np.floating[Any]]) -> dict[str, float]:
    """Of numbers: how well they go together, as they are (Pearson) and by rank (Spearman)."""
    return {"pearson": _pearson(said, right), "spearman": _pearson(_ranks(said), _ranks(right))}


def _pearson(one: NDArray[Any], other: NDArray[Any]) -> float:
    one, other = one - one.mean(dtype=float), other - other.mean(dtype=float)
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return float((one * other).sum()) / size if size > 0 else 0.0


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """The place of each value in order; equal ones share the mean of their places."""
    _, numbered, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((2 * ends - counts - 1) / 2)[numbered]
