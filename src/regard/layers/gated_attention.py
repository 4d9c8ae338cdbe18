"""SHA-RNN's gated attention (Merity 2019): one query matrix and three gates; the KV cache is the states themselves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.layers.attention import attend, attend_in_bands, head_width, merge_heads, split_heads, visible_keys
from regard.layers.cache import Cache, fold_beams, write_memory
from regard.layers.contract import Context, Facts, Sublayer
from regard.layers.join import LayerNorm, Norm
from regard.layers.linear import linear
from regard.layers.patterns import Window
from regard.layers.scores import Dot


@dataclass(frozen=True)
class GatedAttention:
    """Keys and values are the states themselves behind a gate; only queries are projected (Merity 2019, section 3.2).

    The KV cache holds each state once, and few more states than the sliding window needs.
    """

    heads: int = 1
    pattern: Window = field(default_factory=lambda: Window(5000))
    norm: Norm = field(default_factory=lambda: LayerNorm(1e-12))  # of queries
    name: ClassVar[str] = "self"

    @property
    def facts(self) -> Facts:
        return Facts(self.heads, causal=True, constant_memory=True, packs=True, window=self.pattern.length)

    def build(self, width: int, source_width: int | None = None) -> GatedAttentionLayer:
        return GatedAttentionLayer(self, width)


class GatedAttentionLayer(Sublayer):
    def __init__(self, description: GatedAttention, width: int) -> None:
        super().__init__()
        self.heads, self.pattern = description.heads, description.pattern
        key_width = head_width(width, self.heads)
        self.query = linear(width, width)
        self.norm = description.norm.build(width)
        self.query_gate, self.key_gate, self.value_gate = (nn.Parameter(torch.zeros(width)) for _ in range(3))
        self.value = linear(width, 2 * width, parts=2)
        self.score = Dot().build(key_width, key_width, self.heads)

    def forward(self, x: Tensor, context: Context, memory: Cache | None = None) -> tuple[Tensor, Cache | None]:
        rows, x = x.shape, fold_beams(x, context.layout)
        cache = write_memory(memory, x)
        # A gate on keys can gate the queries instead, and a gate on values the output.
        q = self.norm(self.query(x)) * (self.query_gate.sigmoid() * self.key_gate.sigmoid())
        q, k = split_heads(q, self.heads), split_heads(cache.used[0], self.heads)
        y = self.attend(q, k, context, memory is None)
        y = merge_heads(y).reshape(rows) * self.output_gate()
        return y, self.trim(cache, context) if context.remember else None

    def attend(self, q: Tensor, k: Tensor, context: Context, fresh: bool) -> Tensor:
        """BHTK, BHSK -> BHTK: in bands when a text is longer than the window."""
        out = self.output_gate().diag() if context.recording else None
        context = replace(context, position_bias=None)  # which this layer does not add
        in_bands = attend_in_bands(self.score, self.pattern, q, k, k, context, out=out) if fresh else None
        if in_bands is not None:
            return in_bands
        causal = fresh and context.document is None
        first = 0 if fresh else context.start + q.shape[2] - k.shape[2]  # the slot of the first state
        mask = None if causal else visible_keys(self.pattern, q.shape[2], k, context, fresh, first)
        return attend(self.score, q, k, k, mask, context, causal=causal, out=out, first=first)

    def output_gate(self) -> Tensor:
        """-> D: the gate on values, overparameterized so that it trains faster; tanh allows negative values."""
        candidate, gate = self.value(self.value_gate.sigmoid()).chunk(2)
        product: Tensor = gate.sigmoid() * candidate.tanh()
        return product

    def trim(self, cache: Cache, context: Context) -> Cache:
        """Drop states that no later query can attend to, a quarter of a window at a time: each drop copies the rest.

        With a layout, it is the search that drops them.
        """
        beyond = cache.length - self.pattern.length
        if context.padding is not None:  # the shortest row still needs its own
            beyond -= context.padding.shape[1] - int(context.padding.sum(1).min())
        if context.layout is not None or beyond <= self.pattern.length // 4:
            return cache
        return cache.map(lambda states: states[:, beyond:].contiguous())
