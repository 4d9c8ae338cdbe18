"""Convolutional sequence to sequence learning (Gehring 2017): gated convolutions, multi-step attention, their residual.

Without recurrence all tokens are computed at once: in the encoder, and in the decoder during training. A convolution
reads `kernel_width` tokens; the receptive field of a stack is `depth * (kernel_width - 1) + 1` tokens. Every decoder
layer attends to the source. The paper's letters: h, output of a layer; z, output of the encoder; e and g, embeddings of
source and target tokens; d, decoder state summary (the query); a, attention weights; c, context vector; m, source
length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.attention import SourceKeys, attend_source
from regard.layers.contract import Context, Facts, Memory, Shared, Source, Sublayer
from regard.layers.dropout import Dropout
from regard.layers.join import Joined, SequentialJoin
from regard.layers.linear import Linear, linear
from regard.layers.patterns import Full, Pattern, source_pattern
from regard.layers.positions import normal_table
from regard.layers.scores import Dot, Score

SQRT_HALF = math.sqrt(0.5)
"""Times the sum of two vectors: their sum then has the variance that each of them had (section 3.4)."""


@dataclass(frozen=True)
class Convolution:
    """A 1-d convolution over the stream, then a gated linear unit, GLU (section 3.2; Dauphin 2016).

    In an encoder the kernel is centred on its token (an even one reads one token more before it than after it); in a
    decoder it is causal and ends at its token.
    """

    kernel_width: int = 3
    causal: bool = False
    dropout: float = 0.0  # on its input
    name: ClassVar[str] = "convolution"
    facts: ClassVar[Facts] = Facts(constant_memory=True, packs=True)

    def __post_init__(self) -> None:
        _require(self.kernel_width)

    def build(self, width: int, source_width: int | None = None) -> ConvolutionLayer:
        return ConvolutionLayer(self, width)


class ConvolutionLayer(Sublayer):
    def __init__(self, description: Convolution, width: int) -> None:
        super().__init__()
        self.kernel_width, self.causal = description.kernel_width, description.causal
        self.before = self.kernel_width - 1 if self.causal else self.kernel_width // 2
        self.after = self.kernel_width - 1 - self.before
        self.kernel = Linear(self.kernel_width * width, 2 * width)
        # A gated linear unit keeps a quarter of the variance, and dropout on the input increases it (section 3.5).
        std = math.sqrt(4 * (1 - description.dropout) / (self.kernel_width * width))
        self.kernel.weight = nn.Parameter(normal_table(2 * width, self.kernel_width * width, std))
        nn.init.zeros_(self.kernel.bias)
        self.dropout = Dropout(description.dropout)

    def forward(self, x: Tensor, context: Context, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        inputs = self.inputs(self.dropout(x), context, memory)
        a, b = self.kernel(self.windows(inputs, context)).chunk(2, dim=-1)  # [A; B] = W_w [x_i-k/2; ...; x_i+k/2] + b_w
        h = a * b.sigmoid()  # v([A; B]) = A * sigmoid(B): the gated linear unit
        return h, self.last(inputs, context) if context.remember else None

    def inputs(self, x: Tensor, context: Context, memory: Tensor | None) -> Tensor:
        """BTD -> BSD, `S = T + kernel_width - 1`: the remembered inputs, or zeros, before the first token.

        A centred kernel reads beyond the last token, so padding must be zero; a causal one never reads the padding.
        """
        if not self.causal and context.padding is not None:
            x = x.masked_fill(~context.padding[..., None], 0.0)
        if memory is None:
            return F.pad(x, (0, 0, self.before, self.after))
        return torch.cat([memory, x], dim=1)

    def windows(self, inputs: Tensor, context: Context) -> Tensor:
        """BSD -> `BT, kernel_width * D`: the inputs under each token's kernel, zero in other packed documents."""
        length = inputs.shape[1] - self.kernel_width + 1
        taps = [inputs[:, tap : tap + length] for tap in range(self.kernel_width)]
        if context.document is not None:
            document = context.document
            first, last = document[:, :1].expand(-1, self.before), document[:, -1:].expand(-1, self.after)
            padded = torch.cat([first, document, last], dim=1)
            same = (padded[:, tap : tap + length] == document for tap in range(self.kernel_width))
            taps = [part.masked_fill(~here[..., None], 0.0) for part, here in zip(taps, same)]
        return torch.cat(taps, dim=-1)

    def last(self, inputs: Tensor, context: Context) -> Tensor:
        """-> `B, kernel_width - 1, D`: the last inputs of each row, padding left out."""
        if context.padding is None:
            return inputs[:, inputs.shape[1] - self.before :]
        slots = context.padding.sum(1, keepdim=True) + torch.arange(self.before, device=inputs.device)
        return inputs.gather(1, slots[..., None].expand(-1, -1, inputs.shape[-1]))


@dataclass(frozen=True)
class MultiStepAttention:
    """A decoder layer: the output of a causal convolution attends to the source, in every layer anew (section 3.3)."""

    kernel_width: int = 3
    dropout: float = 0.0
    score: Score = field(default_factory=lambda: Dot(scaled=False))
    pattern: Pattern = field(default_factory=Full)
    name: ClassVar[str] = "cross"

    def __post_init__(self) -> None:
        _require(self.kernel_width)
        source_pattern(self.pattern)

    @property
    def facts(self) -> Facts:
        sums = source_pattern(self.pattern).weights_sum_to_one
        return Facts(heads=1, packs=True, weights_sum_to_one=sums, reads_embedding=True)

    def build(self, width: int, source_width: int | None = None) -> MultiStepAttentionLayer:
        if source_width not in (None, width):
            raise InputError(
                f"multi-step attention adds embeddings to encoder states, got widths {width} and {source_width}."
            )
        return MultiStepAttentionLayer(self, width)


class MultiStepAttentionLayer(Sublayer):
    def __init__(self, description: MultiStepAttention, width: int) -> None:
        super().__init__()
        kernel = Convolution(description.kernel_width, causal=True, dropout=description.dropout)
        self.convolution = kernel.build(width)
        self.query = linear(width, width)
        self.score = description.score.build(width, width)
        self.source_mask = source_pattern(description.pattern).source_mask(width)
        self.out = linear(width, width)

    def forward(
        self, x: Tensor, context: Context, memory: tuple[Tensor, SourceKeys] | None = None
    ) -> tuple[Tensor, Memory]:
        assert context.source is not None
        assert context.embedded is not None
        inputs, keys = memory or (None, self.keys(context.source))
        h, inputs = self.convolution(x, context, inputs)
        d = SQRT_HALF * (self.query(h) + context.embedded)  # (1) d_i = W_d h_i + b_d + g_i
        # a_ij = softmax_j(d_i . z_j); (2) c_i = sum_j a_ij (z_j + e_j)
        c = attend_source(self.score, self.source_mask, d, keys, context, out=self.out.weight)
        h = SQRT_HALF * (h + self.out(c))  # h_i + c_i; the join adds the layer's input
        return h, (inputs, keys) if context.remember else None

    def keys(self, source: Source) -> SourceKeys:
        """Keys z_j and values z_j + e_j, B1SD, which all beams of a sentence share.

        The mean of m values has 1 / m of their variance; the factor m sqrt(1 / m) = sqrt(m) restores it (section 3.4).
        """
        assert source.embedded is not None
        z, e = source.states[:, None], source.embedded[:, None]
        m = z.new_tensor(z.shape[2]) if source.padding is None else source.padding.sum(1)[:, None, None, None].to(z)
        return Shared((self.score.keys(z), m.sqrt() * SQRT_HALF * (z + e)))


@dataclass(frozen=True)
class ScaledResidual(SequentialJoin):
    """sqrt(0.5) * (x + f(x)): a residual connection that keeps the variance without a norm (section 3.4)."""

    def build(self, sublayer: Sublayer, width: int, dropout: float) -> Joined:
        return ScaledResidualJoined(sublayer, nn.Identity(), dropout)

    def final_norm(self, width: int) -> nn.Module:
        """No norm, but the map from the last layer to the width of the embeddings (section 3.2)."""
        return linear(width, width)


class ScaledResidualJoined(Joined):
    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        y, memory = self.sublayer(x, context, memory)
        return SQRT_HALF * (x + self.dropout(y)), memory


def _require(kernel_width: int) -> None:
    if kernel_width < 1:
        raise InputError(f"kernel_width must be 1 or more, got {kernel_width} (model.kernel_width). Use 3.")
