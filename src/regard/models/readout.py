"""The last states become words: logits when someone asks, or a loss that never holds them all at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import InputError
from regard.parts.feedforward import Activation, activate
from regard.parts.join import LayerNorm, Norm
from regard.parts.linear import linear

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
