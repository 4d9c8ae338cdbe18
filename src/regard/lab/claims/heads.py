"""Many heads against one at equal compute.

MultiHead = `Concat(head_1 ... head_h) W^O` with heads of width d/h: the same products as one head of width d, but h
different softmax distributions. One head must put everything that a token needs into one average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from regard.lab.claim import Claim, Numbers, Trial, Verdict, by_arm, by_lead
from regard.lab.learning import build, learn, score
from regard.lab.tasks import BYTES, language_model, read_text
from regard.layers.positions import Learned
from regard.models import zoo
from regard.models.model import Model


@dataclass(frozen=True)
class Settings:
    """Sizes of model and training."""

    width: int = 64
    depth: int = 2
    length: int = 128
    rows: int = 16  # per step
    steps: int = 320


HEADS = {"1 head": 1, "4 heads": 4, "8 heads": 8}


def model(settings: Settings, heads: int) -> Model:
    """The same model with other heads: parameters and products are equal."""
    return zoo.gpt2(settings.width, settings.depth, heads, dropout=0.0, position=Learned(settings.length))


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """The loss on held-out text."""
    chosen = trial.settings
    network = build(model(chosen, HEADS[trial.arm]), BYTES.vocabulary, trial.seed)
    rows = language_model(read_text(trial.text, "train", 2_000_000), chosen.length)
    learn(network, rows, trial, steps=trial.scaled("steps"), batch=chosen.rows)
    found = score(network, language_model(read_text(trial.text, "valid", 30_000), chosen.length))
    return {"accuracy": found.accuracy, "loss": found.loss}


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    return by_lead(numbers.lead("1 head", "4 heads", "loss"), 0.02)


CLAIM = Claim(
    name="heads",
    question="Do several narrow heads predict better than one wide head at equal compute?",
    source="Vaswani 2017, section 3.2.2 and table 3 (A); notes on multi-head attention",
    method="A language model of bytes, on the source code of Python's library, with 1, 4 and 8 heads in the same "
    "width: equal parameters, products, steps and learning rate (tuned for none). Loss in nats per byte on files that "
    "are held out.",
    rule="Confirmed if 4 heads have a loss at least 0.02 nats below that of one head in every seed; refuted if in "
    "none.",
    caveats="Small models, short training. Eight heads take more time here, although they compute as many products. "
    "How many heads are best is not asked.",
    minutes=4,
    fewest=2,
    arms=tuple(HEADS),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_arm("Loss, nats per byte", "loss"),
    needs_text=50_000,
)
