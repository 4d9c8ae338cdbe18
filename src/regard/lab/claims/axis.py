"""Which axis layer normalization runs over: the width of one token, not words or sentences.

y = (x - mean) / deviation, with mean and deviation over the D components of each token (Ba 2016, equation 3). If
words were included, a word's vector would depend on the words after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.lab.claim import CONFIRMED, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_arm
from regard.models import zoo


@dataclass(frozen=True)
class Settings:
    """The sizes of the states that are normalized."""

    width: int = 64
    words: int = 16
    sentences: int = 8


def norms(width: int) -> dict[str, list[nn.Module]]:
    """By model of the zoo: all its norms."""
    models = {"post-norm Transformer": zoo.transformer(width, 1, 4), "GPT-2": zoo.gpt2(width, 2, 4),
              "BERT": zoo.bert(width, 2, 4)}  # fmt: skip
    return {
        name: [module for module in model.build(50).modules() if isinstance(module, nn.LayerNorm)]
        for name, model in models.items()
    }


def axis_facts(norm: nn.Module, x: Tensor) -> dict[str, float]:
    """How far outputs are from mean 0 over each axis, and what another token or sentence changes."""
    with torch.no_grad():
        y = norm(x)
        other_word, other_sentence = x.clone(), x.clone()
        other_word[:, -1] = 100 * torch.randn_like(x[:, -1])
        other_sentence[-1] = 100 * torch.randn_like(x[-1])
        return {
            "mean over the width": float(y.mean(-1).abs().mean()),
            "mean over words": float(y.mean(1).abs().mean()),
            "change by another word": float((norm(other_word) - y)[:, :-1].abs().max()),
            "change by another sentence": float((norm(other_sentence) - y)[:-1].abs().max()),
        }


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """The largest value over all norms of a model."""
    chosen = trial.settings
    torch.manual_seed(trial.seed)
    found = norms(chosen.width)[trial.arm]
    # Every word has a mean and a size of its own, as embeddings have.
    offsets, sizes = torch.randn(2, chosen.sentences, chosen.words, 1)
    x = offsets + sizes.exp() * torch.randn(chosen.sentences, chosen.words, chosen.width)
    facts = [axis_facts(norm, x) for norm in found]
    return {name: max(fact[name] for fact in facts) for name in facts[0]}


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    changes = [value for arm in numbers.arms for name in ("change by another word", "change by another sentence")
               for value in numbers.values(arm, name)]  # fmt: skip
    means = [value for arm in numbers.arms for value in numbers.values(arm, "mean over the width")]
    if all(value == 0 for value in changes) and all(value < 1e-4 for value in means):
        return CONFIRMED
    return REFUTED if any(value > 1e-3 for value in changes) else NOT_DECIDED


CLAIM = Claim(
    name="axis",
    question="Does layer normalization take its mean and variance over the width of each token alone, and not over "
    "words ('spatial dims') or sentences?",
    source="Ba 2016, equation 3; the notes say 'across channels and spatial dims'",
    method="Every norm of three models of the zoo normalizes random states. Measured: how far the outputs' mean is "
    "from 0 over the width and over words, and how much a token's output changes when another word or sentence is "
    "replaced.",
    rule="Confirmed if in every seed and model no other word or sentence changes a token at all, and the mean over "
    "the width is 0 within 0.0001. Refuted if another word or sentence changes a token by more than 0.001 in any.",
    caveats="A fact about an operation, not about learning. Images are another matter: there layer norm is often "
    "taken over space too.",
    minutes=1,
    fewest=1,
    arms=("post-norm Transformer", "GPT-2", "BERT"),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_arm("Distance from mean 0, and change by others", "mean over the width", "mean over words",
                   "change by another word", "change by another sentence"),
)  # fmt: skip
