"""SHA-RNN's gated attention (Merity 2019): one query matrix and three gates; the KV cache is the states themselves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.layers.attention import attend, attend_in_bands, head_width, merge_heads, split_heads, visible_keys
from regard.layers.contract import Context, Facts, Sublayer, write_memory
from regard.layers.join import LayerNorm, Norm
from regard.layers.linear import linear
from regard.layers.patterns import Window
from regard.layers.scores import Dot


@dataclass(frozen=True)
class StateCache:
    """The states that later queries can attend to: BSD, and the slot of each row's first: B.

    It is the same in every row, unless rows of several searches were put together.
    """

    states: Tensor
    first: Tensor

    def first_slot(self) -> int | Tensor:
        """The slot of the first state, per row if they differ."""
        slots = self.first.tolist()
        return slots[0] if len(set(slots)) == 1 else self.first


@dataclass(frozen=True)
class GatedAttention:
    """Keys and values are the states themselves behind a gate; only queries are projected (Merity 2019, section 3.2).

    The cache holds each state once, and no more states than the sliding window needs.
    """

    heads: int = 1
    pattern: Window = field(default_factory=lambda: Window(5000))
    norm: Norm = field(default_factory=lambda: LayerNorm(1e-12))  # of queries
    name: ClassVar[str] = "self"

    @property
    def facts(self) -> Facts:
        return Facts(self.heads, causal=True, constant_memory=True, packs=True)

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

    def forward(
        self, x: Tensor, context: Context, memory: StateCache | None = None
    ) -> tuple[Tensor, StateCache | None]:  # fmt: skip
        length, first = x.shape[1], 0 if memory is None else memory.first_slot()
        if isinstance(first, Tensor):  # from here on slots are counted from the first that is cached
            start = context.start - first
            context = replace(context, start=start, end=int(start.max()) + length)
        elif first:
            end = None if context.end is None else context.end - first
            context = replace(context, start=context.start - first, end=end)
        states = x if memory is None else write_memory(memory.states, x, context, dim=1)
        keys = x if memory is None else states[:, : context.total_length(length)]
        # A gate on keys can gate the queries instead, and a gate on values the output.
        q = self.norm(self.query(x)) * (self.query_gate.sigmoid() * self.key_gate.sigmoid())
        q, k = split_heads(q, self.heads), split_heads(keys, self.heads)
        y = self.attend(q, k, context, memory is None, first if isinstance(first, int) else 0)
        cache = self.trim(states, first, context, length) if context.remember else None
        return merge_heads(y) * self.output_gate(), cache

    def attend(self, q: Tensor, k: Tensor, context: Context, fresh: bool, first: int) -> Tensor:
        """BHTK, BHSK -> BHTK: in bands when a text is longer than the window."""
        out = self.output_gate().diag() if context.recording else None
        context = replace(context, position_bias=None)  # which this layer does not add
        in_bands = attend_in_bands(self.score, self.pattern, q, k, k, context, out=out) if fresh else None
        if in_bands is not None:
            return in_bands
        causal = fresh and context.document is None
        keys = torch.arange(k.shape[2], device=k.device)
        mask = None if causal else visible_keys(self.pattern, q.shape[2], keys, context, fresh)
        return attend(self.score, q, k, k, mask, context, causal=causal, out=out, first=first)

    def output_gate(self) -> Tensor:
        """-> D: the gate on values, overparameterized so that it trains faster; tanh allows negative values."""
        candidate, gate = self.value(self.value_gate.sigmoid()).chunk(2)
        product: Tensor = gate.sigmoid() * candidate.tanh()
        return product

    def trim(self, states: Tensor, first: int | Tensor, context: Context, length: int) -> StateCache:
        """Drop states that no later query can attend to, a quarter of a window at a time: each drop copies the rest."""
        ends: Tensor | int = context.start + length
        if isinstance(first, Tensor):
            return self.trim_rows(states, first, torch.as_tensor(ends, device=states.device))
        if context.padding is not None:
            ends = context.start + context.padding.sum(1)
        beyond = (int(ends.min()) if isinstance(ends, Tensor) else ends) - self.pattern.length
        if beyond > self.pattern.length // 4:
            states, first = states[:, beyond:].contiguous(), first + beyond
        return StateCache(states, torch.full((len(states),), first, device=states.device))

    def trim_rows(self, states: Tensor, first: Tensor, ends: Tensor) -> StateCache:
        """As `trim`, where the rows' first slots differ: each row drops its own states, up to the end of its window."""
        beyond = (ends - self.pattern.length).clamp_min(0)
        if int(beyond.max()) > self.pattern.length // 4:
            kept = torch.arange(int((ends - beyond).max()), device=states.device)
            slots = (kept + beyond[:, None]).clamp_max(states.shape[1] - 1)
            states, first = states.gather(1, slots[..., None].expand(-1, -1, states.shape[2])), first + beyond
        return StateCache(states, first)
