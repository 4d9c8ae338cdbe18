"""Why scores are divided by the square root of the key width, and not of the number of words (an erratum).

q·k is a sum of d_k products. If components have mean 0 and variance 1, its variance is d_k; the number of words is
the number of such sums, and changes none of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from regard.lab.claim import CONFIRMED, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.layers.attention import SelfAttention
from regard.layers.contract import Context
from regard.layers.record import AttentionWeights, Record
from regard.layers.scores import Dot


@dataclass(frozen=True)
class Settings:
    """The key widths and numbers of words, of which the smallest and largest are compared."""

    key_widths: tuple[int, ...] = (8, 32, 128, 512)
    words: tuple[int, ...] = (8, 32, 128, 512)
    repeats: int = 20


SCORES = {"unscaled": Dot(scaled=False), "scaled": Dot()}


class ScoreRecord(Record):
    """Records the standard deviation of scores instead of weights."""

    deviation = 0.0

    @torch.no_grad()
    def record_attention(self, name: str, weights: AttentionWeights, output: torch.Tensor) -> None:
        """Compare the queries and keys of this layer."""
        given = weights.score_inputs()
        assert given is not None
        self.deviation = float((given.query @ given.key.transpose(-1, -2) * given.scale).std())


def deviation(score: Dot, key_width: int, words: int, seed: int) -> float:
    """The standard deviation of a layer's scores at initialization, for random words."""
    torch.manual_seed(seed)
    layer = SelfAttention(1, score=score, key_width=key_width).build(64)
    with torch.no_grad():
        # Queries and keys of variance 1, whatever the initialization of their projections.
        layer.query_key_value.weight.copy_(torch.randn_like(layer.query_key_value.weight) / 8)
        layer.query_key_value.bias.zero_()
        record = ScoreRecord()
        layer(torch.randn(4, words, 64), Context(record=record))
    return record.deviation


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """The deviation of scores by key width and by number of words, and both exponents."""
    chosen, score = trial.settings, SCORES[trial.arm]
    middle_width, middle_words = chosen.key_widths[1], chosen.words[1]
    seeds = [1000 * trial.seed + number for number in range(trial.scaled("repeats"))]
    by_width = [_mean(score, width, middle_words, seeds) for width in chosen.key_widths]
    by_words = [_mean(score, middle_width, words, seeds) for words in chosen.words]
    return {
        **{f"deviation, key width {width}": value for width, value in zip(chosen.key_widths, by_width)},
        **{f"deviation, words {words}": value for words, value in zip(chosen.words, by_words)},
        "exponent of the key width": exponent(chosen.key_widths, by_width),
        "exponent of the number of words": exponent(chosen.words, by_words),
    }


def _mean(score: Dot, key_width: int, words: int, seeds: list[int]) -> float:
    return math.fsum(deviation(score, key_width, words, seed) for seed in seeds) / len(seeds)


def exponent(sizes: tuple[int, ...], values: list[float]) -> float:
    """The p of value = c * size^p, from the smallest and the largest size."""
    return math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0])


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    width = numbers.values("unscaled", "exponent of the key width")
    scaled = numbers.values("scaled", "exponent of the key width")
    words = numbers.values("unscaled", "exponent of the number of words")
    if all(abs(one - 0.5) < 0.1 for one in width) and all(abs(one) < 0.1 for one in (*scaled, *words)):
        return CONFIRMED
    return REFUTED if all(one > 0.25 for one in words) or all(one < 0.25 for one in width) else NOT_DECIDED


CLAIM = Claim(
    name="scale",
    question="Are scores divided by the square root of d_k because they grow with the width of the keys, and not "
    "with the number of words?",
    source="Vaswani 2017, section 3.2.1 and footnote 4; an erratum of the notes (d_k as the number of words)",
    method="The scores of a self-attention layer with queries and keys of variance 1: their standard deviation by "
    "key width at a fixed number of words, and by number of words at a fixed key width, with and without the scale.",
    rule="Deviation = c * size^p. Confirmed if in every seed p is within 0.1 of 1/2 for the key width without the "
    "scale, and within 0.1 of 0 for the key width with the scale and for the number of words. Refuted if p of the "
    "number of words is above 1/4, or p of the key width below 1/4, in every seed.",
    caveats="At initialization; training may make keys and queries as large or small as it likes.",
    minutes=1,
    fewest=1,
    arms=tuple(SCORES),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Standard deviation of scores", "deviation,", log=True),
)
