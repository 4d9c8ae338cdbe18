"""Weight tying: one matrix for embedding and readout (Press and Wolf 2017; Vaswani 2017, section 3.4).

logits = W h with W the embedding table: a third to a half fewer parameters in a small model.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import BPE
from regard.lab.claim import CONFIRMED, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_arm
from regard.lab.learning import build, learn, score
from regard.lab.tasks import language_model, read_text
from regard.layers.positions import Learned
from regard.models import zoo


@dataclass(frozen=True)
class Settings:
    """Sizes of vocabulary, model and training."""

    vocabulary: int = 2000
    width: int = 64
    depth: int = 2
    length: int = 64
    rows: int = 16  # per step
    steps: int = 500


TIED = {"tied": True, "untied": False}


@functools.cache
def tokenizer(text: Path | None, size: int) -> Tokenizer:
    """BPE of the training text."""
    return BPE(size).train([read_text(text, "train", 300_000)])


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """The loss on held-out text, and the number of parameters."""
    chosen, pieces = trial.settings, tokenizer(trial.text, trial.settings.vocabulary)
    model = zoo.gpt2(chosen.width, chosen.depth, 4, dropout=0.0, position=Learned(chosen.length), tied=TIED[trial.arm])
    network = build(model, pieces.vocabulary, trial.seed)
    rows = language_model(read_text(trial.text, "train", 1_000_000), chosen.length, pieces)
    learn(network, rows, trial, steps=trial.scaled("steps"), batch=chosen.rows)
    held_out = language_model(read_text(trial.text, "valid", 50_000), chosen.length, pieces)
    parameters = sum(weight.numel() for weight in network.parameters())
    return {"parameters": float(parameters), "loss": score(network, held_out).loss}


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    worse = numbers.lead("tied", "untied", "loss")
    if all(one < 0.02 for one in worse):
        return CONFIRMED
    return REFUTED if all(one > 0.05 for one in worse) else NOT_DECIDED


CLAIM = Claim(
    name="tying",
    question="Does weight tying save parameters without a loss of quality?",
    source="Press and Wolf 2017; Vaswani 2017, section 3.4",
    method="A language model of BPE tokens with and without a readout of its own, on the source code of Python's "
    "library. Equal steps and learning rate (tuned for neither). Loss in nats per token on held-out files.",
    rule="Confirmed if in every seed the tied model's loss is less than 0.02 nats above that of the untied one; "
    "refuted if more than 0.05 nats above it in every seed.",
    caveats="Short training of a small model; the gain of more parameters may come later.",
    minutes=3,
    fewest=2,
    arms=tuple(TIED),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_arm("Loss, nats per token", "loss"),
    needs_text=100_000,
)
