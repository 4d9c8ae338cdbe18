"""Beyond the training length: 'the sinusoid may allow the model to extrapolate' (Vaswani 2017, section 3.5).

For a fixed offset k, PE(t + k) is a linear function of PE(t), so a model could attend by relative position anywhere.
A learned vector of a position that never occurred in training is noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from regard.lab.claim import CONFIRMED, HELD_OUT, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.lab.learning import Rows, build, ignored, learn, score
from regard.lab.tasks import lagged_copy
from regard.layers.positions import ALiBi, Learned, Position, RelativeBias, Rotary, Sinusoid
from regard.models import zoo


@dataclass(frozen=True)
class Settings:
    """Lengths of training and evaluation, and the sizes of model and training."""

    width: int = 64
    depth: int = 2
    symbols: int = 16
    length: int = 32
    longest: int = 96
    lag: int = 3
    steps: int = 400


POSITIONS: dict[str, Position] = {
    "sinusoid": Sinusoid(),
    "learned": Learned(96),
    "rotary": Rotary(),
    "relative bias": RelativeBias(),
    "ALiBi": ALiBi(),
}


def part(rows: Rows, first: int, last: int) -> Rows:
    """The same rows with targets from one position to another only."""
    at = torch.arange(rows.targets.shape[1]).expand_as(rows.targets)
    return replace(rows, targets=ignored(rows.targets, (at >= first) & (at < last)))


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """The accuracy within the training length and beyond it."""
    chosen, steps = trial.settings, trial.scaled("steps")
    model = zoo.gpt2(chosen.width, chosen.depth, 4, dropout=0.0, position=POSITIONS[trial.arm], tied=False)
    network = build(model, chosen.symbols + 1, trial.seed)
    learn(network, lagged_copy(32 * steps, chosen.length, chosen.symbols, chosen.lag, trial.seed), trial, steps=steps)
    rows = lagged_copy(128, chosen.longest, chosen.symbols, chosen.lag, HELD_OUT)
    edges = [0, chosen.length, (chosen.length + chosen.longest) // 2, chosen.longest]
    return {
        f"accuracy at positions {first} to {last - 1}": score(network, part(rows, first, last)).accuracy
        for first, last in pairwise(edges)
    }


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    inside, *_, beyond = numbers.arms["sinusoid"]
    if min(numbers.values("sinusoid", inside)) < 0.9:
        return NOT_DECIDED
    lost = [near - far for near, far in zip(numbers.values("sinusoid", inside), numbers.values("sinusoid", beyond))]
    ahead = numbers.lead("sinusoid", "learned", beyond)
    if all(one < 0.1 for one in lost) and all(one > 0.1 for one in ahead):
        return CONFIRMED
    return REFUTED if all(one > 0.2 for one in lost) else NOT_DECIDED


CLAIM = Claim(
    name="extrapolation",
    question="Do sinusoids let a model read texts longer than those it was trained on, where learned positions fail?",
    source="Vaswani 2017, section 3.5; Press 2022; notes on learned positions",
    method="Every token is to be answered with the token three positions before it. Training on 32 positions, "
    "evaluation on 96. Equal steps and learning rate (tuned for none). The learned table has 96 rows, of which "
    "training sees 32.",
    rule="At positions 64 to 95. Confirmed if in every seed the sinusoid loses less than 10 points of its accuracy "
    "within the training length, and is 10 points above learned positions. Refuted if it loses more than 20 points in "
    "every seed. Not decided while it is below 90% within the training length.",
    caveats="The causal mask also tells positions. Rotary, relative and ALiBi are reported: relative positions are "
    "made for this.",
    minutes=3,
    fewest=2,
    arms=tuple(POSITIONS),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Accuracy by position; 0 to 31 are trained", "accuracy at positions"),
)
