"""Residual connections by depth: x + f(norm(x)) against f(norm(x)).

The derivative of x + f(x) is 1 + f'(x): gradients reach the lowest layer however deep the stack. Without it they are
a product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.lab.claim import CONFIRMED, HELD_OUT, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.lab.learning import build, learn, score
from regard.lab.tasks import lagged_copy
from regard.layers.contract import Sublayer
from regard.layers.join import BranchJoined, Joined, PreNorm
from regard.layers.positions import Learned
from regard.models import zoo


@dataclass(frozen=True)
class Settings:
    """Depths, and the sizes of task, model and training."""

    depths: tuple[int, ...] = (1, 4, 8)
    width: int = 48
    symbols: int = 16
    length: int = 24
    lag: int = 3
    steps: int = 250


@dataclass(frozen=True)
class NormOnly(PreNorm):
    """f(norm(x)): pre-norm without the residual connection."""

    def build(self, sublayer: Sublayer, width: int, dropout: float) -> Joined:
        return BranchJoined(sublayer, self.norm.build(width), dropout)


JOINS: dict[str, Any] = {"residual": PreNorm(), "no residual": NormOnly()}


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """The accuracy of naming the token `lag` positions before each, by depth."""
    chosen, steps, found = trial.settings, trial.scaled("steps"), {}
    for depth in chosen.depths:
        position = Learned(chosen.length)
        model = zoo.gpt2(chosen.width, depth, 4, dropout=0.0, join=JOINS[trial.arm], position=position, tied=False)
        network = build(model, chosen.symbols + 1, trial.seed)
        rows = lagged_copy(32 * steps, chosen.length, chosen.symbols, chosen.lag, trial.seed)
        learn(network, rows, trial, steps=steps, share=1 / len(chosen.depths))
        held_out = lagged_copy(256, chosen.length, chosen.symbols, chosen.lag, HELD_OUT)
        found[f"accuracy at depth {depth}"] = score(network, held_out).accuracy
    return found


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    deepest = list(numbers.arms["residual"])[-1]
    lead = numbers.lead("residual", "no residual", deepest)
    if min(numbers.values("residual", deepest)) < 0.9:
        return NOT_DECIDED
    if all(one > 0.2 for one in lead):
        return CONFIRMED
    return REFUTED if all(one < 0.05 for one in lead) else NOT_DECIDED


CLAIM = Claim(
    name="residuals",
    question="Do residual connections make deep stacks trainable that do not train without them?",
    source="He 2015; Vaswani 2017, section 3.1; notes on short residual skip connections and on Add & Norm",
    method="A decoder is to name the token three positions before each, with and without the residual connection, "
    "with the same norms, by depth. Equal steps and learning rate (tuned for none).",
    rule="At the largest depth. Confirmed if in every seed the stack with residuals is more than 20 points better; "
    "refuted if less than 5 points in every seed. Not decided while it is itself below 90%.",
    caveats="With more steps, a lower learning rate or another initialization a stack without residuals may train.",
    minutes=3,
    fewest=2,
    arms=tuple(JOINS),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Accuracy by depth", "accuracy at depth"),
)
