"""The bottleneck: an encoder that ends in one vector, however long the source; attention reads all its states.

Without attention the decoder knows of the source z = h_n alone. With it, it reads z_i = the sum over j of a_ij h_j at
each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from regard.lab.claim import CONFIRMED, HELD_OUT, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.lab.learning import build, learn, score
from regard.lab.tasks import pairs
from regard.layers.join import PreNorm
from regard.models import zoo
from regard.models.model import Model


@dataclass(frozen=True)
class Settings:
    """Lengths of sources, and the sizes of model and training."""

    width: int = 64
    lengths: tuple[int, ...] = (4, 8, 12, 16)
    symbols: int = 16
    rows: int = 64  # per step
    steps: int = 850


MODELS: dict[str, Callable[[int], Model]] = {
    "no attention": lambda width: zoo.seq2seq(width, 1, direction="forward"),
    "attention": lambda width: zoo.luong(width, 1, direction="bidirectional", input_feeding=False, dropout=0.0),
    "Transformer": lambda width: zoo.transformer(width, 2, 4, join=PreNorm(), dropout=0.0),
}


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """The accuracy of target tokens, by length of the source."""
    chosen, steps = trial.settings, trial.scaled("steps")
    network = build(MODELS[trial.arm](chosen.width), chosen.symbols + 1, trial.seed)
    rows = pairs(chosen.rows * steps, chosen.lengths, chosen.symbols, trial.seed, backwards=True)
    learn(network, rows, trial, steps=steps, batch=chosen.rows)
    return {
        f"accuracy, length {length}": score(
            network, pairs(128, (length,), chosen.symbols, HELD_OUT, backwards=True)
        ).accuracy
        for length in chosen.lengths
    }


def drop(numbers: Numbers, arm: str) -> list[float]:
    """By seed: how much accuracy is lost from the shortest to the longest sources."""
    first, *_, last = numbers.arms[arm]
    return [short - long for short, long in zip(numbers.values(arm, first), numbers.values(arm, last))]


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    more = [none - some for none, some in zip(drop(numbers, "no attention"), drop(numbers, "attention"))]
    longest = list(numbers.arms["attention"])[-1]
    if min(numbers.values("attention", longest)) < 0.8:
        return NOT_DECIDED
    if all(one > 0.1 for one in more):
        return CONFIRMED
    return REFUTED if all(one < 0.03 for one in more) else NOT_DECIDED


CLAIM = Claim(
    name="bottleneck",
    question="Does an encoder-decoder without attention lose more on long sources than one with attention?",
    source="Bahdanau 2014, figure 2; Cho 2014; notes on the bottleneck problem",
    method="Random symbols are to be written backwards: LSTM encoder-decoder without attention, with Luong's "
    "attention, and a Transformer, of one width, with equal steps and learning rate (tuned for none). Accuracy of "
    "held-out target tokens, given the true ones before, by length.",
    rule="Drop = accuracy at the shortest length - at the longest. Confirmed if in every seed the drop without "
    "attention exceeds that with attention by 10 points; refuted if by less than 3 points in every seed. Not decided "
    "while attention is below 80% at the longest length.",
    caveats="Random symbols cannot be compressed, words can: real text is kinder to one vector. Backwards is the "
    "easier order for one without attention (Sutskever 2014). The Transformer has more layers, and is reported only.",
    minutes=5,
    fewest=3,
    arms=tuple(MODELS),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Accuracy by length of the source", "accuracy, length"),
)
