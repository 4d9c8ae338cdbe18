"""What a model says of a text as a whole, or of each of its tokens, in other words than those it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import InputError
from regard.models.readout import Reading, Says
from regard.parts.feedforward import Activation, activate
from regard.parts.linear import linear

NEXT_SENTENCE = ("next", "elsewhere")
"""What BERT says of two texts: the second follows the first, or it comes from somewhere else."""


@dataclass(frozen=True)
class First:
    """The first token's state: [CLS]."""

    def pool(self, states: Tensor, padding: Tensor | None) -> Tensor:
        """BTD -> BD."""
        return states[:, 0]


@dataclass(frozen=True)
class Last:
    """The last token's state, of a model that reads from left to right."""

    def pool(self, states: Tensor, padding: Tensor | None) -> Tensor:
        """BTD -> BD."""
        if padding is None:
            return states[:, -1]
        rows = torch.arange(len(states), device=states.device)
        return states[rows, padding.sum(1).clamp_min(1) - 1]


@dataclass(frozen=True)
class Mean:
    """The mean of all tokens' states."""

    def pool(self, states: Tensor, padding: Tensor | None) -> Tensor:
        """BTD -> BD."""
        if padding is None:
            return states.mean(dim=1)
        real = padding[..., None]
        return states.masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1).clamp_min(1)


@dataclass(frozen=True)
class Most:
    """The largest value of each dimension."""

    def pool(self, states: Tensor, padding: Tensor | None) -> Tensor:
        """BTD -> BD."""
        hidden = states if padding is None else states.masked_fill(~padding[..., None], -torch.inf)
        return hidden.amax(dim=1)


Pool = First | Last | Mean | Most


class Pooled(Reading):
    """One state for the whole text, perhaps through a linear map and a nonlinearity (BERT's pooler)."""

    def __init__(self, pool: Pool, inner: Activation | None, dropout: float, width: int) -> None:
        super().__init__()
        self.pool, self.activation = pool, inner
        self.inner = linear(width, width) if inner else None
        self.dropout = nn.Dropout(dropout)

    def pooled(self, states: Tensor, padding: Tensor | None) -> Tensor:
        """BTD -> BD."""
        x = self.pool.pool(states, padding)
        if self.inner is not None and self.activation is not None:
            x = activate(self.inner(x), self.activation)
        dropped: Tensor = self.dropout(x)
        return dropped


@dataclass(frozen=True)
class Label:
    """One of several names for the whole text; `weight`: how many tokens one counts as, where words are learnt too."""

    names: tuple[str, ...]
    pool: Pool = field(default_factory=First)
    inner: Activation | None = "tanh"
    dropout: float = 0.1
    biased: bool = True
    weight: float = 1.0
    tied: ClassVar[bool] = False
    says: ClassVar[Says] = "names"
    tokenwise: ClassVar[bool] = False
    sides: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _require_names(self.names)

    def build(self, width: int, vocabulary: int, table: nn.Embedding) -> LabelReadout:
        """The module that reads states of this width."""
        return LabelReadout(self, width)


class LabelReadout(Pooled):
    def __init__(self, description: Label, width: int) -> None:
        super().__init__(description.pool, description.inner, description.dropout, width)
        self.out = linear(width, len(description.names), biased=description.biased)

    def forward(self, states: Tensor, padding: Tensor | None = None) -> Tensor:
        """BTD -> BN: the logits of the names."""
        logits: Tensor = self.out(self.pooled(states, padding))
        return logits

    def loss(
        self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        """BTD, B -> the summed cross entropy."""
        logits = self(states, padding).float()
        return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)


@dataclass(frozen=True)
class Number:
    """A number for the whole text, learnt by its squared error."""

    pool: Pool = field(default_factory=First)
    inner: Activation | None = "tanh"
    dropout: float = 0.1
    biased: bool = True
    tied: ClassVar[bool] = False
    says: ClassVar[Says] = "numbers"
    tokenwise: ClassVar[bool] = False
    sides: ClassVar[int] = 1

    def build(self, width: int, vocabulary: int, table: nn.Embedding) -> NumberReadout:
        """The module that reads states of this width."""
        return NumberReadout(self, width)


class NumberReadout(Pooled):
    def __init__(self, description: Number, width: int) -> None:
        super().__init__(description.pool, description.inner, description.dropout, width)
        self.out = linear(width, 1, biased=description.biased)

    def forward(self, states: Tensor, padding: Tensor | None = None) -> Tensor:
        """BTD -> B1: the numbers."""
        number: Tensor = self.out(self.pooled(states, padding))
        return number

    def loss(
        self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        """BTD, B -> the summed squared error."""
        error: Tensor = self(states, padding)[:, 0].float() - targets.float()
        return error.square().sum()


@dataclass(frozen=True)
class Tags:
    """One of several names for every token."""

    names: tuple[str, ...]
    dropout: float = 0.1
    biased: bool = True
    tied: ClassVar[bool] = False
    says: ClassVar[Says] = "names"
    tokenwise: ClassVar[bool] = True
    sides: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _require_names(self.names)

    def build(self, width: int, vocabulary: int, table: nn.Embedding) -> TagsReadout:
        """The module that reads states of this width."""
        return TagsReadout(self, width)


class TagsReadout(Reading):
    def __init__(self, description: Tags, width: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(description.dropout)
        self.out = linear(width, len(description.names), biased=description.biased)

    def forward(self, states: Tensor, padding: Tensor | None = None) -> Tensor:
        """BTD -> BTN: the logits of the names."""
        logits: Tensor = self.out(self.dropout(states))
        return logits

    def loss(
        self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        """BTD, BT -> the summed cross entropy of the tokens that were asked for."""
        real = targets >= 0
        logits = self(states[real]).float()
        return F.cross_entropy(logits, targets[real], reduction="sum", label_smoothing=smoothing)


@dataclass(frozen=True)
class Vector:
    """A vector for the whole text; learns to be nearer to its partner's than to those of all other texts of a batch.

    (Henderson 2017: the other partners are what it is told apart from; `temperature` divides the similarities.)
    """

    pool: Pool = field(default_factory=Mean)
    inner: Activation | None = None
    normalised: bool = True
    temperature: float = 0.05
    weight: ClassVar[float] = 1.0
    tied: ClassVar[bool] = False
    says: ClassVar[Says] = "vectors"
    tokenwise: ClassVar[bool] = False
    sides: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise InputError(f"temperature must be above 0, got {self.temperature}.")

    def build(self, width: int, vocabulary: int, table: nn.Embedding) -> VectorReadout:
        """The module that reads states of this width."""
        return VectorReadout(self, width)


class VectorReadout(Pooled):
    def __init__(self, description: Vector, width: int) -> None:
        super().__init__(description.pool, description.inner, 0.0, width)
        self.normalised, self.temperature = description.normalised, description.temperature

    def forward(self, states: Tensor, padding: Tensor | None = None) -> Tensor:
        """BTD -> BD."""
        x = self.pooled(states, padding)
        return F.normalize(x, dim=-1) if self.normalised else x

    def loss(
        self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        """BTD, B -> the summed cross entropy of finding the row a text belongs to, among all rows that ask nothing."""
        vectors = F.normalize(self(states, padding).float(), dim=-1)
        asking = targets >= 0
        others = (~asking).nonzero().flatten()
        near = vectors[asking] @ vectors[others].T / self.temperature
        return F.cross_entropy(near, torch.searchsorted(others, targets[asking]), reduction="sum")


def _require_names(names: tuple[str, ...]) -> None:
    if not names:
        raise InputError("names is empty. Name at least one.")
    if len(set(names)) < len(names):
        raise InputError("two of the names are the same. Name each once.")
