"""The number of steps between two tokens: linear in an RNN, depth-bound in a convolution, constant in attention.

In a recurrent network, d steps lie between tokens at distance d. A stack of n convolutions of kernel width k connects
tokens up to n (k - 1) apart (a logarithm of d layers suffice only with dilation). Attention connects all in one
layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from regard.lab.claim import CONFIRMED, HELD_OUT, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.lab.learning import build, learn, score
from regard.lab.tasks import recalled
from regard.layers.convolution import Convolution, ScaledResidual
from regard.layers.embedding import Embed
from regard.layers.join import Replace
from regard.layers.positions import Learned
from regard.layers.recurrent import LSTM, RNN, Cell, Recurrent
from regard.models import zoo
from regard.models.model import Model, Stack
from regard.models.readouts import Vocabulary


@dataclass(frozen=True)
class Settings:
    """The distances, and the sizes of model and training."""

    width: int = 64
    distances: tuple[int, ...] = (4, 16, 64)
    symbols: int = 8
    kernel_width: int = 5
    convolutions: int = 4
    steps: int = 300


def recurrent(settings: Settings, cell: Cell) -> Model:
    """One recurrent layer."""
    stack = Stack(((Recurrent(cell),),), Replace())
    return Model(settings.width, embed=Embed(), decoder=stack, readout=Vocabulary(tied=False))


def convolution(settings: Settings) -> Model:
    """A stack of causal convolutions."""
    layers = settings.convolutions * ((Convolution(settings.kernel_width, causal=True),),)
    return Model(settings.width, embed=Embed(), decoder=Stack(layers, ScaledResidual()), readout=Vocabulary(tied=False))


MODELS: dict[str, Callable[[Settings], Model]] = {
    "RNN": lambda settings: recurrent(settings, RNN()),
    "LSTM": lambda settings: recurrent(settings, LSTM()),
    "convolution": convolution,
    "attention": lambda settings: zoo.gpt2(
        settings.width, 1, 4, dropout=0.0, position=Learned(max(settings.distances) + 1), tied=False
    ),
}


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """The accuracy of recalling a token, by its distance; a network is trained for each distance."""
    chosen, steps, found = trial.settings, trial.scaled("steps"), {}
    for distance in chosen.distances:
        network = build(MODELS[trial.arm](chosen), 2 * chosen.symbols + 1, trial.seed)
        rows = recalled(64 * steps, distance, chosen.symbols, trial.seed)
        learn(network, rows, trial, steps=steps, batch=64, share=1 / len(chosen.distances))
        held_out = recalled(512, distance, chosen.symbols, HELD_OUT)
        found[f"accuracy at distance {distance}"] = score(network, held_out).accuracy
    return found


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    near, *_, far = numbers.arms["RNN"]
    attends = [*numbers.values("attention", near), *numbers.values("attention", far)]
    recurs = [*numbers.values("RNN", far), *numbers.values("convolution", far)]
    if all(value > 0.9 for value in attends) and all(value < 0.5 for value in recurs):
        return CONFIRMED
    return REFUTED if all(value > 0.9 for value in recurs) else NOT_DECIDED


CLAIM = Claim(
    name="distance",
    question="Is a token hard to recall over a long distance for an RNN and a stack of convolutions, but not for "
    "attention?",
    source="Vaswani 2017, table 1; notes on linear interaction distance",
    method="The first token, one of 8, is to be named after 4, 16 or 64 tokens of noise. One layer of RNN, LSTM or "
    "attention, or four convolutions of width 5, which see 16 tokens back; a network per distance, equal steps and "
    "learning rate (tuned for none).",
    rule="Confirmed if in every seed attention is right in 90% at the shortest and at the longest distance, and RNN "
    "and convolutions in less than half at the longest. Refuted if RNN and convolutions are right in 90% at the "
    "longest distance in every seed.",
    caveats="Chance is 1/8. A deeper stack of convolutions, or a dilated one, would reach farther. The LSTM stands "
    "between: it can, if it is trained for long enough. Attention finds the token by its position, which is always "
    "the first.",
    minutes=4,
    fewest=2,
    arms=tuple(MODELS),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Accuracy by distance", "accuracy at distance"),
)
