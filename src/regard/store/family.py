"""What is known of a published family of models: its config.json, its table of tensors, and both ways between."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.models.model import Model, Readout
from regard.models.pooled import NEXT_SENTENCE, First, Label, Number, Pool, Tags, Vector
from regard.models.readout import Vocabulary
from regard.parts.feedforward import Activation
from regard.store.settings import Settings
from regard.store.table import Names, Row

SPAN = ("start", "end")  # where an answer begins and ends


@dataclass(frozen=True)
class Weights:
    """Published tensors under the names the family's table has: shapes first, values only where they decide."""

    shapes: Names
    read: Callable[[str], Tensor]

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors are one and the same, or the first is not there."""
        if one not in self.shapes or other not in self.shapes:
            return one not in self.shapes
        return self.shapes[one] == self.shapes[other] and torch.equal(self.read(one), self.read(other))

    def zero(self, name: str) -> bool:
        """Whether a tensor says nothing."""
        return name not in self.shapes or not self.read(name).any()


@dataclass(frozen=True)
class Published:
    """A model with its vocabularies, the source's second when it has its own."""

    model: Model
    vocabulary: int
    source_vocabulary: int | None = None


@dataclass(frozen=True)
class Family:
    """One kind of published model; `architectures` begins with what a folder holds that does not say."""

    name: str
    architectures: tuple[str, ...]
    rows: Callable[[Model], tuple[Row, ...]]
    describe: Callable[[Settings, Weights, str], Published]
    configure: Callable[[Published], dict[str, Any]]
    prefix: str = ""
    outside: str = "^$"  # names that never have the prefix
    ignored: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()  # settings that say nothing of our model, but something to others
    constant: Callable[[Published], Mapping[str, Tensor]] = lambda published: {}

    def stripped(self, name: str) -> str:
        """A tensor's name in the table: without the prefix, and as it is written today."""
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
        return name.removeprefix(self.prefix)

    def prefixed(self, name: str, architecture: str) -> str:
        """A tensor's name in a file of this architecture."""
        bare = architecture.endswith("Model") and not architecture.endswith(("LMHeadModel", "MTModel"))
        return name if bare or re.search(self.outside, name) else self.prefix + name


def pooled_readout(
    kind: str, settings: Settings, *, pool: Pool, inner: Activation | None, dropout: float, biased: bool = True
) -> Readout | None:  # fmt: skip
    """The readout of an architecture that says something other than words; None for those that say words."""
    if kind == "ForSequenceClassification":
        names = settings.labels()
        settings.assume("problem_type", "regression" if len(names) == 1 else "single_label_classification")
        if len(names) == 1:
            return Number(pool, inner, dropout, biased)
        return Label(names, pool, inner, dropout, biased)
    settings.leave("problem_type")
    if kind == "ForTokenClassification":
        return Tags(settings.labels(), dropout)
    if kind == "ForQuestionAnswering":
        return Tags(SPAN, dropout)
    if kind == "ForNextSentencePrediction":
        return Label(NEXT_SENTENCE, First(), "tanh", dropout)
    return None


def head(model: Model, words: str) -> tuple[str, dict[str, Any]]:
    """The last part of an architecture's name, and what config.json says of its classes."""
    match model.readout:
        case Label(names=names) if names == NEXT_SENTENCE:
            return "ForNextSentencePrediction", {}
        case Label(names=names):
            return "ForSequenceClassification", {"problem_type": "single_label_classification", **_named(names)}
        case Number():
            return "ForSequenceClassification", {"problem_type": "regression", **_named(("LABEL_0",))}
        case Tags(names=names) if names == SPAN:
            return "ForQuestionAnswering", {}
        case Tags(names=names):
            return "ForTokenClassification", _named(names)
        case Vector():
            return "Model", {}
        case Vocabulary() if model.aside is not None:
            return "ForPreTraining", {}
        case _:
            return words, {}


def _named(names: tuple[str, ...]) -> dict[str, Any]:
    return {"id2label": {str(number): name for number, name in enumerate(names)},
            "label2id": {name: number for number, name in enumerate(names)}}  # fmt: skip
