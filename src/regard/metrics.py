"""How good a model is, in numbers that compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


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
