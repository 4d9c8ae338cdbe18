"""What the order of words is worth: attention without positions is a bag of words.

Shuffling the tokens permutes the states, and their mean stays the same: a classifier of the mean cannot know which of
two words came first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from regard.lab.claim import CONFIRMED, HELD_OUT, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.lab.learning import Rows, build, learn, score
from regard.lab.tasks import draw
from regard.layers.patterns import Full
from regard.layers.positions import Learned, Position
from regard.models import zoo
from regard.models.readouts import Label, Mean


@dataclass(frozen=True)
class Settings:
    """Sizes of task, model and training."""

    width: int = 48
    symbols: int = 20
    length: int = 16
    steps: int = 300


POSITIONS: dict[str, Position | None] = {"with positions": Learned(64), "bag of words": None}
FIRST, SECOND = 1, 2
"""The two words whose order or presence is asked for."""


def texts(settings: Settings, rows: int, seed: int, *, ordered: bool) -> Rows:
    """Is word 1 before word 2 (ordered), or does word 1 occur at all?"""
    ids = draw(seed, rows, settings.length, below=settings.symbols + 1, above=3)
    places = torch.rand(rows, settings.length, generator=torch.Generator().manual_seed(seed + 1)).argsort(1)[:, :2]
    labels = draw(seed + 2, rows, below=2, above=0)
    if ordered:
        places = places.sort(1).values
        words = torch.stack([torch.where(labels == 1, FIRST, SECOND), torch.where(labels == 1, SECOND, FIRST)], dim=1)
    else:
        words = torch.stack([torch.where(labels == 1, FIRST, 3), torch.full_like(labels, SECOND)], dim=1)
    return Rows({"ids": ids.scatter(1, places, words)}, labels)


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """The accuracy of both questions."""
    chosen, steps, found = trial.settings, trial.scaled("steps"), {}
    base = zoo.gpt2(chosen.width, 1, 4, dropout=0.0, pattern=Full(), position=POSITIONS[trial.arm])
    model = replace(base, readout=Label(("no", "yes"), Mean(), dropout=0.0))
    for name, ordered in {"which words": False, "which order": True}.items():
        network = build(model, chosen.symbols + 1, trial.seed)
        rows = texts(chosen, 64 * steps, trial.seed, ordered=ordered)
        learn(network, rows, trial, steps=steps, batch=64, share=0.5)
        found[f"accuracy, {name}"] = score(network, texts(chosen, 1000, HELD_OUT, ordered=ordered)).accuracy
    return found


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    ordered = numbers.lead("with positions", "bag of words", "accuracy, which order")
    words = numbers.lead("with positions", "bag of words", "accuracy, which words")
    if min(numbers.values("with positions", "accuracy, which words")) < 0.9:
        return NOT_DECIDED
    if all(one > 0.2 for one in ordered) and all(abs(one) < 0.03 for one in words):
        return CONFIRMED
    return REFUTED if all(one < 0.03 for one in ordered) else NOT_DECIDED


CLAIM = Claim(
    name="order",
    question="What does it cost to be a bag of words: does attention without positions lose exactly what depends on "
    "order?",
    source="notes on sequence order ('Problem 1') and positional encodings; Vaswani 2017, section 3.5",
    method="A classifier of one layer of attention (no mask) and the mean of its states, with and without positions, "
    "on texts of random words: does a word occur; is one word before another. Equal steps and learning rate (tuned "
    "for none).",
    rule="Confirmed if in every seed positions gain more than 20 points where order is asked for, and change less "
    "than 3 points where it is not. Refuted if they gain less than 3 points where order is asked for in every seed. "
    "Not decided while the words themselves are not recognized (90%).",
    caveats="Chance is 50%. Real labels depend on order less: there a bag of words is often a strong baseline.",
    minutes=1,
    fewest=1,
    arms=tuple(POSITIONS),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Accuracy", "accuracy,"),
)
