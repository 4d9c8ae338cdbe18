"""What the scale is for: large scores saturate the softmax, whose gradient then vanishes.

The Jacobian of the softmax is diag(p) - p p^T. Where one weight is near 1 and all others near 0, all its entries are
near 0, so neither queries nor keys learn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from regard.lab.claim import CONFIRMED, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.layers.scores import Dot


@dataclass(frozen=True)
class Settings:
    """Key widths, words, and the number of queries of each measurement."""

    key_widths: tuple[int, ...] = (4, 16, 64, 256, 1024)
    words: int = 32
    queries: int = 4000


SCORES = {"unscaled": Dot(scaled=False), "scaled": Dot()}


def softmax_facts(score: Dot, key_width: int, words: int, queries: int, seed: int) -> tuple[float, float]:
    """The mean entropy of weights, as a share of the largest, and the norm of the softmax' Jacobian."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(1, 1, queries, key_width, generator=generator)
    k = torch.randn(1, 1, words, key_width, generator=generator)
    weights = score.build(key_width, key_width).compare(q, k).double().softmax(-1).flatten(0, 2)
    entropy = -(weights * weights.clamp_min(1e-300).log()).sum(-1).mean() / math.log(words)
    squares = weights.square()
    # |diag(p) - p p^T|^2 = sum p^2 - 2 sum p^3 + (sum p^2)^2
    jacobian = squares.sum(-1) - 2 * (squares * weights).sum(-1) + squares.sum(-1).square()
    return float(entropy), float(jacobian.clamp_min(0).sqrt().mean())


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """Entropy and gradient by key width."""
    chosen = trial.settings
    found: dict[str, float] = {}
    for width in chosen.key_widths:
        entropy, jacobian = softmax_facts(
            SCORES[trial.arm], width, chosen.words, trial.scaled("queries"), trial.seed
        )  # fmt: skip
        found |= {f"entropy, key width {width}": entropy, f"gradient, key width {width}": jacobian}
    return found


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    names = [name for name in numbers.arms["scaled"] if name.startswith("gradient")]
    entropies = [name for name in numbers.arms["scaled"] if name.startswith("entropy")]
    kept = [
        last / first for first, last in zip(*(numbers.values("scaled", at) for at in (entropies[0], entropies[-1])))
    ]
    lost = [last / first for first, last in zip(*(numbers.values("unscaled", at) for at in (names[0], names[-1])))]
    fallen = [last / first for first, last in
              zip(*(numbers.values("unscaled", at) for at in (entropies[0], entropies[-1])))]  # fmt: skip
    if all(one > 0.9 for one in kept) and all(one < 0.5 for one in lost) and all(one < 0.5 for one in fallen):
        return CONFIRMED
    return REFUTED if all(one > 0.9 for one in lost) else NOT_DECIDED


CLAIM = Claim(
    name="saturation",
    question="Without the scale, do wide keys saturate the softmax, so that its gradient vanishes?",
    source="Vaswani 2017, section 3.2.1: 'pushing the softmax function into regions where it has extremely small "
    "gradients'",
    method="Queries and keys with components of variance 1, 32 words: the entropy of the weights (1: uniform) and "
    "the norm of the softmax' Jacobian, by key width, with the two score functions.",
    rule="From the smallest to the largest key width. Confirmed if in every seed the scaled score keeps 90% of its "
    "entropy, while the unscaled one loses half of its entropy and half of its gradient. Refuted if the unscaled "
    "score keeps 90% of its gradient in every seed.",
    caveats="At initialization, for independent queries and keys. How much slower training becomes is not measured.",
    minutes=1,
    fewest=1,
    arms=tuple(SCORES),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Norm of the softmax' Jacobian", "gradient,", log=True),
)
