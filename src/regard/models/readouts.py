"""The last states become words: logits when someone asks, or a loss that never holds them all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.feedforward import Activation, activate
from regard.layers.linear import LayerNorm, Norm, linear

_LEAST_ROWS = 256
_NUMBERS = {"cpu": 1 << 21}  # logits held at once: on a processor what its cache holds, else 256 MiB of them
_MANY_NUMBERS = 1 << 26

Says = Literal["words", "names", "numbers", "vectors"]
"""What kind of thing a readout answers."""


class Reading(nn.Module):
    """States BTD, and True where there is a token, -> an answer for each token, or one for the whole text."""

    def forward(self, states: Tensor, padding: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def loss(
        self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        """The summed loss of what was asked; a target of -100 asks for nothing and costs nothing."""
        raise NotImplementedError


@dataclass(frozen=True)
class Transform:
    """A linear map, a nonlinearity and a norm before the words (Devlin 2018)."""

    activation: Activation = "gelu"
    norm: Norm = field(default_factory=lambda: LayerNorm(1e-12))

    def build(self, width: int) -> TransformLayer:
        """The module for states of this width."""
        return TransformLayer(self, width)


class TransformLayer(nn.Module):
    def __init__(self, description: Transform, width: int) -> None:
        super().__init__()
        self.dense, self.activation = linear(width, width), description.activation
        self.norm = description.norm.build(width)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(activate(self.dense(x), self.activation))
        return normed


@dataclass(frozen=True)
class Vocabulary:
    """A linear map to the vocabulary, the embedding's own table when tied (Press and Wolf 2017).

    `scaled`: states are divided by the square root of their width first, as T5 has it where it is tied.
    """

    tied: bool = True
    biased: bool = False
    transform: Transform | None = None
    scaled: bool = False
    sides: ClassVar[int] = 1  # from how many sides a token is said
    says: ClassVar[Says] = "words"
    tokenwise: ClassVar[bool] = True  # whether it answers for each token, not for the text as a whole

    def build(self, width: int, vocabulary: int, table: nn.Embedding) -> VocabularyReadout:
        """The module that reads states of this width."""
        return VocabularyReadout(self, width, vocabulary, table)


class VocabularyReadout(Reading):
    def __init__(self, description: Vocabulary, width: int, vocabulary: int, table: nn.Embedding) -> None:
        super().__init__()
        if description.tied and table.num_embeddings != vocabulary:
            raise InputError("words that are spelled have no vectors of their own to tie to. Use tied = false.")
        inner = table.embedding_dim if description.tied else width
        self.transform = description.transform.build(width) if description.transform else nn.Identity()
        # A tied table narrower than the stream (its position stands beside it) is reached through a projection.
        self.project = linear(width, inner, biased=False) if inner != width else nn.Identity()
        self.scale = width**-0.5 if description.scaled else 1.0
        self.words = linear(inner, vocabulary, biased=description.biased)
        if description.tied:
            self.words.weight = table.weight

    def forward(self, states: Tensor, padding: Tensor | None = None) -> Tensor:
        """...D -> ...N: the logits."""
        logits: Tensor = self.words(self.ready(states))
        return logits

    def ready(self, states: Tensor) -> Tensor:
        """...D -> what is compared with the words' vectors."""
        ready: Tensor = self.project(self.transform(states))
        return ready if self.scale == 1.0 else ready * self.scale

    def loss(
        self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        """...D, ... -> the summed cross entropy; a negative target asks for nothing and costs nothing."""
        real = targets >= 0
        given: list[Tensor | None] = [self.ready(states[real]), self.words.weight, self.words.bias]
        if not torch.is_grad_enabled():  # which inside the function cannot be told
            given = [None if tensor is None else tensor.detach() for tensor in given]
        loss: Tensor = SummedCrossEntropy.apply(*given, targets[real], smoothing)  # type: ignore[no-untyped-call]
        return loss


@dataclass(frozen=True)
class BothWays:
    """Two halves of the width, each with its own words: the first says the next one, the second the one before."""

    of: Vocabulary = field(default_factory=lambda: Vocabulary(tied=False, biased=True))
    sides: ClassVar[int] = 2
    says: ClassVar[Says] = "words"
    tokenwise: ClassVar[bool] = True  # whether it answers for each token, not for the text as a whole

    @property
    def tied(self) -> bool:
        """Whether the words' vectors are the embedding's."""
        return self.of.tied

    def build(self, width: int, vocabulary: int, table: nn.Embedding) -> BothWaysReadout:
        """The module that reads states of this width."""
        return BothWaysReadout(self.of.build(width // 2, vocabulary, table))


class BothWaysReadout(Reading):
    def __init__(self, words: VocabularyReadout) -> None:
        super().__init__()
        self.words = words

    def forward(self, states: Tensor, padding: Tensor | None = None) -> Tensor:
        """BTD -> BT2N: the logits of the next token and of the one before."""
        logits: Tensor = self.words(states.unflatten(-1, (2, -1)))
        return logits

    def loss(
        self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        """BTD, BT2 -> the summed cross entropy of both."""
        return self.words.loss(states.unflatten(-1, (2, -1)), targets, smoothing)


class SummedCrossEntropy(torch.autograd.Function):
    """The cross entropy of a linear map with label smoothing, some rows at a time, its gradients on the way there."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
    ) -> Tensor:
        """PD, ND, N, P -> the sum over P."""
        learning = any(ctx.needs_input_grad)
        moves = [torch.empty_like(states), torch.zeros_like(weight), torch.zeros_like(weight[:, 0])] if learning else []
        loss = torch.zeros((), device=states.device)
        size = max(_LEAST_ROWS, _NUMBERS.get(states.device.type, _MANY_NUMBERS) // len(weight))
        for rows, asked, place in zip(states.split(size), targets.split(size), range(0, len(states), size)):
            logits = F.linear(rows, weight, bias).float()
            wanted, spread = logits.gather(1, asked[:, None]), logits.sum()
            most = logits.amax(1, keepdim=True)
            odds = logits.sub_(most).exp_()
            whole = odds.sum(1, keepdim=True)
            loss += (most + whole.log() - (1 - smoothing) * wanted).sum() - smoothing * spread / len(weight)
            if learning:
                error = odds.div_(whole).sub_(smoothing / len(weight))
                error = error.scatter_add_(1, asked[:, None], (smoothing - 1) * torch.ones_like(wanted)).to(rows.dtype)
                moves[0][place : place + size] = error @ weight.to(rows.dtype)
                moves[1].addmm_(error.T.to(weight.dtype), rows.to(weight.dtype))
                moves[2] += error.sum(0)
        ctx.save_for_backward(*moves)
        ctx.biased = bias is not None
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients found on the way there, scaled."""
        states, weight, bias = (move * gradients[0] for move in ctx.saved_tensors)
        return states, weight, bias if ctx.biased else None, None, None


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


@dataclass(frozen=True)
class Mix:
    """The layers' states, weighed by a learnt softmax and scaled (Peters 2018, equation 1); at first, their mean.

    `normed`: each state is normalised first, token by token, so that a text's neighbours change nothing.
    """

    normed: bool = False

    def build(self, layers: int) -> MixLayer:
        """The module for so many states: the embedding's and one a layer."""
        return MixLayer(self, layers)


class MixLayer(nn.Module):
    def __init__(self, description: Mix, layers: int) -> None:
        super().__init__()
        self.normed = description.normed
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """BTD of each layer, the embedding's first -> BTD."""
        assert len(states) == len(self.weights)
        if self.normed:
            states = [F.layer_norm(state, state.shape[-1:], eps=1e-12) for state in states]
        mixed = torch.zeros_like(states[0])
        for weight, state in zip(self.weights.softmax(0), states):
            mixed = mixed + weight * state
        return self.scale * mixed
