"""A decoder that sees the future wins in training and fails in use.

Without the mask M (0 below the diagonal, minus infinity above it), the next token, which is the target, is among the
keys. Copying it is all that training asks for; in use it does not exist yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from regard.lab.claim import CONFIRMED, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_arm
from regard.lab.learning import build, learn, score
from regard.lab.tasks import BYTES, language_model, read_text
from regard.layers.patterns import Causal, Full, Pattern
from regard.layers.positions import Learned
from regard.models import zoo
from regard.models.model import Network


@dataclass(frozen=True)
class Settings:
    """Sizes of model, training and evaluation."""

    width: int = 64
    depth: int = 2
    length: int = 32
    rows: int = 32  # per step
    prefixes: int = 16  # of each held-out row, in use
    steps: int = 1200


PATTERNS: dict[str, Pattern] = {"causal mask": Causal(), "no mask": Full()}


@torch.inference_mode()
def loss_in_use(network: Network, settings: Settings, text: str) -> float:
    """The loss of the next byte given only the bytes before it, as when a text is written."""
    rows = language_model(text, settings.length)
    ids = torch.cat([rows.batch([row]).inputs["ids"] for row in range(len(rows) - 1)])
    total = 0.0
    ends = torch.linspace(8, settings.length - 1, settings.prefixes).long().tolist()
    for end in ends:
        logits = network.readout(network.hidden_states(ids[:, :end])[:, -1])
        total += float(torch.nn.functional.cross_entropy(logits, ids[:, end]))
    return total / len(ends)


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """The loss as training sees it, and in use, both on held-out text."""
    chosen = trial.settings
    model = zoo.gpt2(
        chosen.width, chosen.depth, 4, dropout=0.0, pattern=PATTERNS[trial.arm], position=Learned(chosen.length)
    )
    network = build(model, BYTES.vocabulary, trial.seed)
    rows = language_model(read_text(trial.text, "train", 2_000_000), chosen.length)
    learn(network, rows, trial, steps=trial.scaled("steps"), batch=chosen.rows)
    text = read_text(trial.text, "valid", 10_000)
    return {
        "loss as in training": score(network, language_model(text, chosen.length)).loss,
        "loss in use": loss_in_use(network, chosen, text),
    }


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    wins = numbers.lead("causal mask", "no mask", "loss as in training")
    fails = numbers.lead("no mask", "causal mask", "loss in use")
    if all(one > 0.3 for one in wins) and all(one > 0.3 for one in fails):
        return CONFIRMED
    return REFUTED if all(one <= 0 for one in fails) else NOT_DECIDED


CLAIM = Claim(
    name="leak",
    question="Does a decoder without a causal mask win in training and fail in use?",
    source="Vaswani 2017, section 3.2.3; notes on masked self-attention ('looking into the future')",
    method="A language model of bytes with and without the mask, equal steps. Loss on held-out text as training "
    "computes it (all positions at once), and in use: the next byte given only what comes before it.",
    rule="Confirmed if in every seed the model without a mask is at least 0.3 nats better as in training, and at "
    "least 0.3 nats worse in use. Refuted if it is not worse in use in any seed.",
    caveats="Margins and sizes were changed after pilots (0.5 nats at first), in which the model without a mask "
    "learnt to copy in some seeds only. Both read the same prefix in use; the one without a mask has never been "
    "trained on a position that is the last.",
    minutes=4,
    fewest=3,
    arms=tuple(PATTERNS),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_arm("Loss, nats per byte", "loss as in training", "loss in use"),
    needs_text=50_000,
)
