"""Pre-norm against post-norm, by depth and learning rate, without warm-up.

norm(x + f(x)) divides the residual stream at each layer, so gradients near the output are large at the start (Xiong
2020); x + f(norm(x)) leaves a path without any norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.errors import RunFailed
from regard.lab.claim import CONFIRMED, HELD_OUT, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.lab.learning import build, learn, score
from regard.lab.tasks import lagged_copy
from regard.layers.join import PostNorm, PreNorm
from regard.layers.positions import Learned
from regard.models import zoo
from regard.training.optimizers import Constant


@dataclass(frozen=True)
class Settings:
    """Depths, learning rates, and the sizes of task, model and training."""

    depths: tuple[int, ...] = (2, 8)
    learning_rates: tuple[float, ...] = (0.001, 0.004, 0.016)
    width: int = 48
    symbols: int = 16
    length: int = 24
    lag: int = 3
    steps: int = 200


JOINS: dict[str, Any] = {"pre-norm": PreNorm(), "post-norm": PostNorm()}


def trained(trial: Trial[Settings], depth: int, learning_rate: float, share: float) -> float:
    """The accuracy after training without warm-up; a run that diverges has none."""
    chosen, steps = trial.settings, trial.scaled("steps")
    join, position = JOINS[trial.arm], Learned(trial.settings.length)
    model = zoo.gpt2(chosen.width, depth, 4, dropout=0.0, join=join, position=position, tied=False)
    network = build(model, chosen.symbols + 1, trial.seed)
    rows = lagged_copy(32 * steps, chosen.length, chosen.symbols, chosen.lag, trial.seed)
    try:
        learn(network, rows, trial, steps=steps, share=share, schedule=Constant(), learning_rate=learning_rate)
    except RunFailed:
        return 0.0
    return score(network, lagged_copy(256, chosen.length, chosen.symbols, chosen.lag, HELD_OUT)).accuracy


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """The accuracy by depth and learning rate."""
    grid = [(depth, rate) for depth in trial.settings.depths for rate in trial.settings.learning_rates]
    return {f"depth {depth}, {rate:g}": trained(trial, depth, rate, 1 / len(grid)) for depth, rate in grid}


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    names = list(numbers.arms["pre-norm"])
    deep = names[len(names) // 2 :]
    shallow = names[: len(names) // 2]
    gain = [numbers.lead("pre-norm", "post-norm", name) for name in deep]
    best = [max(leads) for leads in zip(*gain)]
    worst = [min(leads) for leads in zip(*gain)]
    if max(numbers.mean("pre-norm", name) for name in deep) < 0.9:
        return NOT_DECIDED
    trains = max(numbers.mean("post-norm", name) for name in shallow) > 0.9
    if trains and all(one > 0.2 for one in best) and all(one > -0.05 for one in worst):
        return CONFIRMED
    return REFUTED if all(one < 0.05 for one in best) else NOT_DECIDED


CLAIM = Claim(
    name="norm",
    question="Does a deep stack train without warm-up at more learning rates with pre-norm than with post-norm?",
    source="Xiong 2020; Vaswani 2017, section 3.1 (post-norm); notes on Add & Norm",
    method="A decoder is to name the token three positions before each, with both joins, two depths and three "
    "learning rates (constant, no warm-up). Equal steps. A run that diverges counts as 0.",
    rule="At the larger depth. Confirmed if in every seed pre-norm is more than 20 points better at some learning "
    "rate and at none more than 5 points worse, while post-norm trains (90%) at the smaller depth. Refuted if it is "
    "nowhere 5 points better in every seed. Not decided while pre-norm itself stays below 90% at every learning rate.",
    caveats="Whether post-norm is better in the end, with a tuned warm-up, is another question.",
    minutes=6,
    fewest=4.5,
    arms=tuple(JOINS),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Accuracy by depth and learning rate", "depth"),
)
