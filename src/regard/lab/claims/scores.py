"""Score functions of attention.

Dot product, general, additive, of reduced rank; mean pooling as the floor; local attention. q·k, q·Wk (Luong 2015),
v·tanh(Wq + Uk) (Bahdanau 2014), (Uq)·(Vk); or 0, which makes attention a mean of all states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from regard.lab.claim import CONFIRMED, HELD_OUT, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_arm
from regard.lab.learning import build, learn, score
from regard.lab.tasks import pairs
from regard.layers.patterns import LocalM
from regard.layers.scores import Additive, Dot, General, ReducedRank, Uniform
from regard.models import zoo
from regard.models.model import Model


@dataclass(frozen=True)
class Settings:
    """Sizes of task, model and training."""

    width: int = 64
    length: int = 16
    symbols: int = 16
    rows: int = 64  # per step
    steps: int = 400


def luong(width: int, **parts: object) -> Model:
    """Luong's model without input feeding."""
    return zoo.luong(width, 1, direction="bidirectional", input_feeding=False, dropout=0.0, **parts)  # type: ignore[arg-type]


MODELS: dict[str, Callable[[int], Model]] = {
    "dot": lambda width: luong(width, score=Dot(scaled=False)),
    "general": lambda width: luong(width, score=General()),
    "additive": lambda width: luong(width, score=Additive()),
    "rank 8": lambda width: luong(width, score=ReducedRank(8)),
    "local (monotonic)": lambda width: luong(width, score=General(), pattern=LocalM(2)),
    "mean pooling": lambda width: luong(width, score=Uniform()),
}
LEARNT = ("dot", "general", "additive", "rank 8")


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """The accuracy of copying a source."""
    chosen, steps = trial.settings, trial.scaled("steps")
    network = build(MODELS[trial.arm](chosen.width), chosen.symbols + 1, trial.seed)
    rows = pairs(chosen.rows * steps, (chosen.length,), chosen.symbols, trial.seed)
    learn(network, rows, trial, steps=steps, batch=chosen.rows)
    return {"accuracy": score(network, pairs(256, (chosen.length,), chosen.symbols, HELD_OUT)).accuracy}


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    leads = [one for arm in LEARNT for one in numbers.lead(arm, "mean pooling", "accuracy")]
    if all(one > 0.1 for one in leads):
        return CONFIRMED
    return REFUTED if all(one <= 0 for one in leads) else NOT_DECIDED


CLAIM = Claim(
    name="scores",
    question="Does every score function that compares beat mean pooling, which does not; and does a local window "
    "suffice where the order is kept?",
    source="Luong 2015, section 3.1 and table 4; Bahdanau 2014; notes on attention variants and on mean pooling",
    method="A source of random symbols is to be copied by Luong's model (LSTMs, no input feeding) with one score "
    "function after another; with a window of two tokens to each side (local-m); and with the mean of all states. "
    "Equal steps and learning rate (tuned for none).",
    rule="Confirmed if in every seed dot, general, additive and rank 8 are each at least 10 points above mean "
    "pooling; refuted if none is above it in any seed. The local window is reported, not judged.",
    caveats="Equal steps, not equal time: additive attention takes longer per step. Which of them is best is not "
    "asked: the order of such small models depends on the steps. Copying keeps the order, which is what local-m "
    "assumes.",
    minutes=3,
    fewest=2,
    arms=tuple(MODELS),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_arm("Accuracy of copying", "accuracy"),
)
