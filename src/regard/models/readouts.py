"""Readouts, the heads of a model: vocabulary logits (LM head), classification, regression, tagging, text embeddings.

Also pooling, the mix of layers (ELMo), and the chunked cross entropy, which never holds the logits of all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.dropout import Dropout
from regard.layers.feedforward import Activation, activate
from regard.layers.join import LayerNorm, Norm
from regard.layers.linear import linear, multiply
from regard.layers.recurrent import mean_state

_LEAST_ROWS = 256
_CHUNK_LOGITS = {"cpu": 1 << 21}  # logits per chunk: on a CPU what fits its cache, else 256 MiB
_MOST_CHUNK_LOGITS = 1 << 26

Outputs = Literal["tokens", "labels", "numbers", "vectors"]


class ReadoutFacts:
    """Facts about a readout, not options."""

    outputs: ClassVar[Outputs]
    tokenwise: ClassVar[bool] = False  # one output per token, not one per text
    directions: ClassVar[int] = 1  # 2: it predicts the next token and the previous one


class Readout(nn.Module):
    """Hidden states BTD and their padding mask (True where there is a token) -> outputs per token or per text."""

    def forward(self, states: Tensor, padding: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def loss(self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None) -> Tensor:
        """The summed loss; targets of -100 are ignored."""
        raise NotImplementedError

    def shares(self, tokens: int) -> Tensor:
        """-> OT: how much the state of each token counts in each output; by default there is one per token."""
        return torch.eye(tokens)


@dataclass(frozen=True)
class Transform:
    """The prediction head transform of BERT: linear, activation, norm, before the logits (Devlin 2018)."""

    activation: Activation = "gelu"
    norm: Norm = field(default_factory=lambda: LayerNorm(1e-12))
    width: int | None = None  # of its outputs; by default that of the stream
    biased: bool = True  # the linear map

    def build(self, width: int) -> TransformLayer:
        return TransformLayer(self, width)


class TransformLayer(nn.Module):
    def __init__(self, description: Transform, width: int) -> None:
        super().__init__()
        inner = description.width or width
        self.dense, self.activation = linear(width, inner, biased=description.biased), description.activation
        self.norm = description.norm.build(inner)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(activate(self.dense(x), self.activation))
        return normed


@dataclass(frozen=True)
class Vocabulary(ReadoutFacts):
    """The LM head: logits over the vocabulary, with the embedding's weights when tied (Press and Wolf 2017)."""

    tied: bool = True
    biased: bool = False
    transform: Transform | None = None
    scaled: bool = False  # states are divided by the square root of their width first, as in T5 with tied weights
    outputs: ClassVar[Outputs] = "tokens"
    tokenwise: ClassVar[bool] = True

    def build(self, width: int, vocabulary: int, table: nn.Embedding) -> VocabularyReadout:
        return VocabularyReadout(self, width, vocabulary, table)


class VocabularyReadout(Readout):
    direct_weights: ClassVar[tuple[str, ...]] = ("lm_head",)  # the loss does not call it: no adapter adds to it

    def __init__(self, description: Vocabulary, width: int, vocabulary: int, table: nn.Embedding) -> None:
        super().__init__()
        if description.tied and table.num_embeddings != vocabulary:
            raise InputError("a character CNN has no table of token vectors to tie the readout to. Use tied = false.")
        self.transform = description.transform.build(width) if description.transform else nn.Identity()
        width = (description.transform and description.transform.width) or width
        inner = table.embedding_dim if description.tied else width
        # A tied table is narrower than the stream where positions are concatenated to it.
        self.project = linear(width, inner, biased=False) if inner != width else nn.Identity()
        self.scale = width**-0.5 if description.scaled else 1.0
        self.lm_head = linear(inner, vocabulary, biased=description.biased)
        if description.tied:
            self.lm_head.weight = table.weight

    def forward(self, states: Tensor, padding: Tensor | None = None) -> Tensor:
        """...D -> ...N: the logits."""
        logits: Tensor = self.lm_head(self.prepare(states))
        return logits

    def prepare(self, states: Tensor) -> Tensor:
        """...D -> the inputs of the LM head."""
        x: Tensor = self.project(self.transform(states))
        return x if self.scale == 1.0 else x * self.scale

    def loss(self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None) -> Tensor:
        """...D, ... -> the summed cross entropy; negative targets are ignored."""
        real = targets >= 0
        inputs: list[Tensor | None] = [self.prepare(states[real]), self.lm_head.weight, self.lm_head.bias]
        if not torch.is_grad_enabled():  # which a Function's needs_input_grad ignores
            inputs = [None if tensor is None else tensor.detach() for tensor in inputs]
        loss: Tensor = ChunkedCrossEntropy.apply(*inputs, targets[real], smoothing)  # type: ignore[no-untyped-call]
        return loss


@dataclass(frozen=True)
class BidirectionalVocabulary(ReadoutFacts):
    """The head of a bidirectional language model (Peters 2018, section 3.1).

    The first half of the width predicts the next token, the second the previous one, both with the same weights.
    """

    of: Vocabulary = field(default_factory=lambda: Vocabulary(tied=False, biased=True))
    outputs: ClassVar[Outputs] = "tokens"
    tokenwise: ClassVar[bool] = True
    directions: ClassVar[int] = 2

    @property
    def tied(self) -> bool:
        """Whether the LM head has the embedding's weights."""
        return self.of.tied

    def build(self, width: int, vocabulary: int, table: nn.Embedding) -> BidirectionalVocabularyReadout:
        return BidirectionalVocabularyReadout(self.of.build(width // 2, vocabulary, table))


class BidirectionalVocabularyReadout(Readout):
    def __init__(self, vocabulary: VocabularyReadout) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def forward(self, states: Tensor, padding: Tensor | None = None) -> Tensor:
        """BTD -> BT2N: the logits of the next token and of the previous one."""
        logits: Tensor = self.vocabulary(states.unflatten(-1, (2, -1)))
        return logits

    def loss(self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None) -> Tensor:
        """BTD, BT2 -> the summed cross entropy of both directions."""
        return self.vocabulary.loss(states.unflatten(-1, (2, -1)), targets, smoothing)


class ChunkedCrossEntropy(torch.autograd.Function):
    """Memory-efficient cross entropy of a linear map, with label smoothing, chunk by chunk of rows.

    The gradients are computed during the forward pass, while a chunk's logits exist.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
    ) -> Tensor:
        """PD, ND, N, P -> the sum over P."""
        training, vocabulary = any(ctx.needs_input_grad), len(weight)
        gradients: list[Tensor] = []
        if training:
            # That of the weight is transposed, which is faster.
            gradients = [torch.empty_like(states), weight.new_zeros(weight.T.shape), torch.zeros_like(weight[:, 0])]
        exact = torch.promote_types(states.dtype, torch.float32)
        loss = torch.zeros((), dtype=exact, device=states.device)
        size = max(_LEAST_ROWS, _CHUNK_LOGITS.get(states.device.type, _MOST_CHUNK_LOGITS) // vocabulary)
        for first, rows, target in zip(range(0, len(states), size), states.split(size), targets.split(size)):
            logits = multiply(rows, weight, bias).to(exact)
            target_logits, logit_sum = logits.gather(1, target[:, None]), logits.sum()
            maximum = logits.amax(1, keepdim=True)
            exponentials = logits.sub_(maximum).exp_()
            normaliser = exponentials.sum(1, keepdim=True)
            row_losses = maximum + normaliser.log() - (1 - smoothing) * target_logits
            loss += row_losses.sum() - smoothing * logit_sum / vocabulary
            if training:
                # The gradient of the logits: softmax minus the smoothed targets.
                error = exponentials.div_(normaliser).sub_(smoothing / vocabulary)
                ones = torch.ones_like(target_logits)
                error = error.scatter_add_(1, target[:, None], (smoothing - 1) * ones).to(rows.dtype)
                gradients[0][first : first + size] = multiply(error, weight.to(rows.dtype).T)
                gradients[1] += multiply(rows.to(weight.dtype).T, error.T.to(weight.dtype))
                gradients[2] += error.sum(0)
        ctx.save_for_backward(*gradients)
        ctx.biased = bias is not None
        return loss

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the forward pass, scaled by the loss's own gradient."""
        states, weight, bias = (gradient * outer[0] for gradient in ctx.saved_tensors)
        return states, weight.T.contiguous(), bias if ctx.biased else None, None, None


NEXT_SENTENCE = ("next", "elsewhere")
"""The labels of BERT's next sentence prediction: the second text follows the first, or comes from elsewhere."""


@dataclass(frozen=True)
class First:
    """Pooling: the first token's state, [CLS]."""

    def pool(self, states: Tensor, padding: Tensor | None) -> Tensor:
        """BTD -> BD."""
        return states[:, 0]


@dataclass(frozen=True)
class Last:
    """Pooling: the last token's state, for causal models."""

    def pool(self, states: Tensor, padding: Tensor | None) -> Tensor:
        if padding is None:
            return states[:, -1]
        rows = torch.arange(states.shape[0], device=states.device)
        return states[rows, padding.sum(1).clamp_min(1) - 1]


@dataclass(frozen=True)
class Mean:
    """Pooling: the mean of all tokens' states."""

    def pool(self, states: Tensor, padding: Tensor | None) -> Tensor:
        return mean_state(states, padding)


@dataclass(frozen=True)
class Max:
    """Pooling: the maximum over all tokens, per dimension."""

    def pool(self, states: Tensor, padding: Tensor | None) -> Tensor:
        masked = states if padding is None else states.masked_fill(~padding[..., None], -torch.inf)
        return masked.amax(dim=1)


@dataclass(frozen=True)
class WeightedMean:
    """Pooling: the mean of all tokens' states, the n-th of which counts n times (Muennighoff 2022, equation 4)."""

    def pool(self, states: Tensor, padding: Tensor | None) -> Tensor:
        weights = torch.arange(1, states.shape[1] + 1, device=states.device, dtype=states.dtype)
        weights = weights[None] if padding is None else weights * padding
        total: Tensor = weights.sum(1, keepdim=True).clamp_min(1)
        return torch.einsum("bt,btd->bd", (weights / total).expand(states.shape[0], -1), states)


Pool = First | Last | Mean | Max | WeightedMean


class PooledReadout(Readout):
    """A readout of one pooled state per text, optionally through a dense layer (BERT's pooler)."""

    def __init__(self, pool: Pool, inner: Activation | None, dropout: float, width: int) -> None:
        super().__init__()
        self.pool, self.activation = pool, inner
        self.inner = linear(width, width) if inner else None
        self.dropout = Dropout(dropout)

    def shares(self, tokens: int) -> Tensor:
        """-> 1T: what pooling takes of each state; of the maximum, equal shares."""
        taken = self.pool.pool(torch.eye(tokens)[None], None)
        return taken / taken.sum()

    def pooled(self, states: Tensor, padding: Tensor | None) -> Tensor:
        """BTD -> BD."""
        x = self.pool.pool(states, padding)
        if self.inner is not None and self.activation is not None:
            x = activate(self.inner(x), self.activation)
        dropped: Tensor = self.dropout(x)
        return dropped


@dataclass(frozen=True)
class Label(ReadoutFacts):
    """A classification head: one of several labels per text."""

    labels: tuple[str, ...]
    pool: Pool = field(default_factory=First)
    inner: Activation | None = "tanh"
    dropout: float = 0.1
    biased: bool = True
    weight: float = 1.0  # how many tokens a label counts as in the loss, where it is auxiliary to a language model
    tied: ClassVar[bool] = False
    outputs: ClassVar[Outputs] = "labels"

    def __post_init__(self) -> None:
        _require_labels(self.labels)

    def probabilities(self, logits: Tensor) -> Tensor:
        """...N -> ...N: of the labels, of which a text has one."""
        return logits.softmax(-1)

    def build(self, width: int, vocabulary: int, table: nn.Embedding) -> LabelReadout:
        return LabelReadout(self, len(self.labels), width)


class LinearReadout(PooledReadout):
    """A linear map of the pooled state."""

    def __init__(self, description: Label | MultiLabel | Number, outputs: int, width: int) -> None:
        super().__init__(description.pool, description.inner, description.dropout, width)
        self.out = linear(width, outputs, biased=description.biased)

    def forward(self, states: Tensor, padding: Tensor | None = None) -> Tensor:
        """BTD -> BN: the logits of the labels, or B1: the numbers."""
        outputs: Tensor = self.out(self.pooled(states, padding))
        return outputs


class LabelReadout(LinearReadout):
    def loss(self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None) -> Tensor:
        """BTD, B -> the summed cross entropy."""
        logits = self(states, padding).float()
        return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)


@dataclass(frozen=True)
class MultiLabel(ReadoutFacts):
    """A multi-label head: any number of labels per text, each with a probability of its own."""

    labels: tuple[str, ...]
    pool: Pool = field(default_factory=First)
    inner: Activation | None = "tanh"
    dropout: float = 0.1
    biased: bool = True
    tied: ClassVar[bool] = False
    outputs: ClassVar[Outputs] = "labels"

    def __post_init__(self) -> None:
        _require_labels(self.labels)

    def probabilities(self, logits: Tensor) -> Tensor:
        """...N -> ...N: of each label by itself."""
        return logits.sigmoid()

    def build(self, width: int, vocabulary: int, table: nn.Embedding) -> MultiLabelReadout:
        return MultiLabelReadout(self, len(self.labels), width)


class MultiLabelReadout(LinearReadout):
    def loss(self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None) -> Tensor:
        """BTD, B -> the summed binary cross entropy of texts that have one label and no other."""
        logits = self(states, padding).float()
        wanted = F.one_hot(targets, logits.shape[-1]).to(logits) * (1 - smoothing) + smoothing / 2
        return F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")


@dataclass(frozen=True)
class Number(ReadoutFacts):
    """A regression head: one number per text, trained with the squared error."""

    pool: Pool = field(default_factory=First)
    inner: Activation | None = "tanh"
    dropout: float = 0.1
    biased: bool = True
    tied: ClassVar[bool] = False
    outputs: ClassVar[Outputs] = "numbers"

    def build(self, width: int, vocabulary: int, table: nn.Embedding) -> NumberReadout:
        return NumberReadout(self, 1, width)


class NumberReadout(LinearReadout):
    def loss(self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None) -> Tensor:
        """BTD, B -> the summed squared error."""
        error: Tensor = self(states, padding)[:, 0].float() - targets.float()
        return error.square().sum()


@dataclass(frozen=True)
class Tags(ReadoutFacts):
    """A tagging head (token classification): one of several labels per token."""

    labels: tuple[str, ...]
    dropout: float = 0.1
    biased: bool = True
    inner: Activation | None = None  # of a dense layer before (ELECTRA's discriminator); None: there is none
    tied: ClassVar[bool] = False
    outputs: ClassVar[Outputs] = "labels"
    tokenwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_labels(self.labels)

    def build(self, width: int, vocabulary: int, table: nn.Embedding) -> TagsReadout:
        return TagsReadout(self, width)


class TagsReadout(Readout):
    def __init__(self, description: Tags, width: int) -> None:
        super().__init__()
        self.inner, self.activation = linear(width, width) if description.inner else None, description.inner
        self.dropout = Dropout(description.dropout)
        self.out = linear(width, len(description.labels), biased=description.biased)

    def forward(self, states: Tensor, padding: Tensor | None = None) -> Tensor:
        """BTD -> BTN: the logits of the labels."""
        if self.inner is not None and self.activation is not None:
            states = activate(self.inner(states), self.activation)
        logits: Tensor = self.out(self.dropout(states))
        return logits

    def loss(self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None) -> Tensor:
        """BTD, BT -> the summed cross entropy; negative targets are ignored."""
        real = targets >= 0
        logits = self(states[real]).float()
        return F.cross_entropy(logits, targets[real], reduction="sum", label_smoothing=smoothing)


@dataclass(frozen=True)
class Dense:
    """A dense layer after pooling, to another width (a module of sentence-transformers)."""

    width: int
    activation: Activation | None = "tanh"
    biased: bool = True

    def build(self, width: int) -> DenseLayer:
        return DenseLayer(self, width)


class DenseLayer(nn.Module):
    def __init__(self, description: Dense, width: int) -> None:
        super().__init__()
        self.linear = linear(width, description.width, biased=description.biased)
        self.activation = description.activation

    def forward(self, x: Tensor) -> Tensor:
        """BD -> BE."""
        y: Tensor = self.linear(x)
        return y if self.activation is None else activate(y, self.activation)


@dataclass(frozen=True)
class Vector(ReadoutFacts):
    """A text embedding; a contrastive loss makes pairs more similar than in-batch negatives (Henderson 2017)."""

    pool: Pool = field(default_factory=Mean)
    inner: Activation | None = None
    normalised: bool = True
    temperature: float = 0.05  # divides similarities
    dense: tuple[Dense, ...] = ()
    weight: ClassVar[float] = 1.0
    tied: ClassVar[bool] = False
    outputs: ClassVar[Outputs] = "vectors"

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise InputError(f"temperature must be above 0, got {self.temperature}.")

    def output_width(self, width: int) -> int:
        """The width of an embedding, for hidden states of this width."""
        return self.dense[-1].width if self.dense else width

    def build(self, width: int, vocabulary: int, table: nn.Embedding) -> VectorReadout:
        return VectorReadout(self, width)


class VectorReadout(PooledReadout):
    def __init__(self, description: Vector, width: int) -> None:
        super().__init__(description.pool, description.inner, 0.0, width)
        self.normalised, self.temperature = description.normalised, description.temperature
        inputs = width, *(dense.width for dense in description.dense)
        self.dense = nn.Sequential(*(dense.build(width) for dense, width in zip(description.dense, inputs)))

    def forward(self, states: Tensor, padding: Tensor | None = None) -> Tensor:
        """BTD -> BD, or BE after dense layers."""
        x: Tensor = self.dense(self.pooled(states, padding))
        return F.normalize(x, dim=-1) if self.normalised else x

    def loss(self, states: Tensor, targets: Tensor, smoothing: float = 0.0, padding: Tensor | None = None) -> Tensor:
        """BTD, B -> the summed contrastive loss: a row's target is its partner's row; partners have target -100."""
        vectors = F.normalize(self(states, padding).float(), dim=-1)
        anchors = targets >= 0
        partners = (~anchors).nonzero().flatten()
        similarities = vectors[anchors] @ vectors[partners].T / self.temperature
        return F.cross_entropy(similarities, torch.searchsorted(partners, targets[anchors]), reduction="sum")


def _require_labels(labels: tuple[str, ...]) -> None:
    if not labels:
        raise InputError("labels is empty. Name at least one.")
    if len(set(labels)) < len(labels):
        raise InputError("two labels are the same. Name each once.")


@dataclass(frozen=True)
class LayerMix:
    """ELMo's mix of layers, initially their mean: a softmax-weighted, scaled sum (Peters 2018, equation 1)."""

    normed: bool = False  # layer normalisation of each state first, per token

    def build(self, layers: int) -> LayerMixLayer:
        """The module for this many states: the embedding's and one per layer."""
        return LayerMixLayer(self, layers)


class LayerMixLayer(nn.Module):
    def __init__(self, description: LayerMix, layers: int) -> None:
        super().__init__()
        self.normed = description.normed
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """BTD per layer, the embedding first, -> BTD."""
        assert len(states) == len(self.weights)
        if self.normed:
            states = [F.layer_norm(state, [int(state.shape[-1])], eps=1e-12) for state in states]
        mixed = torch.zeros_like(states[0])
        for weight, state in zip(self.weights.softmax(0), states):
            mixed = mixed + weight * state
        return self.scale * mixed
