"""What a stack of attention alone cannot learn.

It averages values, and an average of averages is linear in the values. Without the feed-forward, each layer computes
the sum over j of a_ij W x_j. Only the weights a depend on the input in another way than linearly. A function of two
tokens such as their sum modulo m needs a nonlinearity after they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from regard.lab.claim import CONFIRMED, HELD_OUT, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.lab.learning import Rows, build, learn, score
from regard.lab.tasks import lagged_copy, modular_sum
from regard.layers.attention import SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.join import PreNorm
from regard.layers.patterns import Causal
from regard.layers.positions import Learned
from regard.models.model import AnySublayer, Model, Stack
from regard.models.readouts import Vocabulary


@dataclass(frozen=True)
class Settings:
    """Sizes of task, model and training."""

    width: int = 64
    modulus: int = 17
    length: int = 32
    steps: int = 500


ATTENTION = SelfAttention(4, Causal())
LAYERS: dict[str, tuple[tuple[AnySublayer, ...], ...]] = {
    "attention, 1 layer": ((ATTENTION,),),
    "attention, 3 layers": 3 * ((ATTENTION,),),
    "attention and feed-forward": ((ATTENTION, FeedForward(256, "relu")),),
}


def model(settings: Settings, layers: tuple[tuple[AnySublayer, ...], ...]) -> Model:
    """A decoder of these layers."""
    return Model(
        settings.width, embed=Embed(Learned(settings.length)), decoder=Stack(layers, PreNorm()),
        readout=Vocabulary(tied=False),
    )  # fmt: skip


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """Accuracy of copying the token before, which is linear, and of the sum of both tokens modulo m, which is not."""
    chosen, steps, found = trial.settings, trial.scaled("steps"), {}
    tasks: dict[str, Callable[[int, int], Rows]] = {
        "copying": lambda rows, seed: lagged_copy(rows, chosen.length, chosen.modulus, 1, seed),
        "sum modulo m": lambda rows, seed: modular_sum(rows, chosen.length, chosen.modulus, seed),
    }
    for name, task in tasks.items():
        network = build(model(chosen, LAYERS[trial.arm]), chosen.modulus + 1, trial.seed)
        learn(network, task(32 * steps, trial.seed), trial, steps=steps, share=0.5)
        found[f"accuracy, {name}"] = score(network, task(256, HELD_OUT)).accuracy
    return found


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    hard = "accuracy, sum modulo m"
    alone, deep = (numbers.values(arm, hard) for arm in ("attention, 1 layer", "attention, 3 layers"))
    copies = [value for arm in numbers.arms for value in numbers.values(arm, "accuracy, copying")]
    if min(*copies, *numbers.values("attention and feed-forward", hard)) < 0.95:
        return NOT_DECIDED
    if all(value < 0.6 for value in (*alone, *deep)):
        return CONFIRMED
    return REFUTED if all(value > 0.95 for value in (*alone, *deep)) else NOT_DECIDED


CLAIM = Claim(
    name="nonlinearity",
    question="Is there something that a stack of attention alone cannot learn, and attention with a feed-forward can?",
    source="notes on building blocks ('Problem 2: Non-linearities'); Vaswani 2017, section 3.3",
    method="Copy the token before (linear), and name the sum modulo 17 of the last two tokens (not linear): "
    "attention alone with 1 and 3 layers, and 1 layer of attention with a feed-forward. Residuals and layer norm in "
    "all; equal steps and learning rate.",
    rule="Confirmed if in every seed all three copy and the feed-forward adds, with 95% accuracy, while both stacks "
    "of attention alone are below 60% at adding. Refuted if both reach 95% at adding in every seed. Not decided if "
    "the first part fails.",
    caveats="Attention weights and layer norm are nonlinear too, so more layers of attention alone can do something: "
    "how much is the number of 3 layers. Chance is 6%.",
    minutes=3,
    fewest=2,
    arms=tuple(LAYERS),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Accuracy", "accuracy,"),
)
