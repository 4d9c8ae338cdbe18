"""Attention over what was there before, hardly anything of it learnt: a matrix for queries, and three gates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.layers.attention import attend, both, divided, merge_heads, nearby, split_heads
from regard.layers.contract import Context, Sublayer, write
from regard.layers.linear import LayerNorm, Norm, linear
from regard.layers.patterns import Window
from regard.layers.scores import Dot


@dataclass(frozen=True)
class Kept:
    """The states that can still be seen: BSD, and the slot of the first of them, the same in every row: B."""

    states: Tensor
    first: Tensor


@dataclass(frozen=True)
class GatedAttention:
    """Keys and values are the states themselves behind a gate; only queries are projected (Merity 2019, section 3.2).

    What is remembered is the states, once, and no more of them than the window shows.
    """

    heads: int = 1
    pattern: Window = field(default_factory=lambda: Window(5000))
    norm: Norm = field(default_factory=lambda: LayerNorm(1e-12))  # of queries
    name: ClassVar[str] = "self"
    constant_memory: ClassVar[bool] = True  # what it remembers does not grow with the text

    def build(self, width: int, source_width: int | None = None) -> GatedAttentionLayer:
        """The module for a stream of this width."""
        return GatedAttentionLayer(self, width)


class GatedAttentionLayer(Sublayer):
    def __init__(self, description: GatedAttention, width: int) -> None:
        super().__init__()
        self.heads, self.pattern = description.heads, description.pattern
        key_width = divided(width, self.heads)
        self.query = linear(width, width)
        self.norm = description.norm.build(width)
        self.query_gate, self.key_gate, self.value_gate = (nn.Parameter(torch.zeros(width)) for _ in range(3))
        self.value = linear(width, 2 * width, parts=2)
        self.score = Dot().build(key_width, key_width, self.heads)

    def forward(self, x: Tensor, context: Context, memory: Kept | None = None) -> tuple[Tensor, Kept | None]:
        length, first = x.shape[1], 0 if memory is None else int(memory.first[0])
        # From here on slots are counted from the first that is kept.
        here = context if first == 0 else replace(context, start=context.start - first, end=behind(context.end, first))
        states = x if memory is None else write(memory.states, x, here, dim=1)
        seen = x if memory is None else states[:, : here.extent(length)]
        # A gate on keys is as well one on queries, and one on values one on the answer.
        q = self.norm(self.query(x)) * (self.query_gate.sigmoid() * self.key_gate.sigmoid())
        q, k = split_heads(q, self.heads), split_heads(seen, self.heads)
        y = self.asked(q, k, here, memory is None, first)
        kept = self.trimmed(states, first, here, length) if context.remember else None
        return merge_heads(y) * self.polarity(), kept

    def asked(self, q: Tensor, k: Tensor, context: Context, fresh: bool, first: int) -> Tensor:
        """BHTK, BHSK -> BHTK: what queries find among the states; a text longer than the window is read in bands."""
        out = self.polarity().diag() if context.looking else None
        near = nearby(self.score, self.pattern, q, k, k, context, out=out) if fresh else None
        if near is not None:
            return near
        mask, causal = self.visible(q.shape[2], k.shape[2], context, fresh)
        return attend(self.score, q, k, k, mask, context, causal=causal, out=out, first=first)

    def polarity(self) -> Tensor:
        """-> D: the gate on values, made of more than it needs, so that it learns faster; its sign can turn."""
        turn, share = self.value(self.value_gate.sigmoid()).chunk(2)
        gate: Tensor = share.sigmoid() * turn.tanh()
        return gate

    def visible(self, queries: int, keys: int, context: Context, fresh: bool) -> tuple[Tensor | None, bool]:
        """The mask of what is seen (None: everything), and whether it is the plain triangle that kernels know."""
        device = self.query_gate.device
        if fresh and context.document is None:
            return None, True
        mask = self.pattern.sees(context.slots(queries, device), torch.arange(keys, device=device))
        assert mask is not None
        mask = mask[:, None] if mask.dim() == 3 else mask
        if fresh and context.document is not None:
            mask = both(mask, (context.document[:, :, None] == context.document[:, None, :])[:, None])
        return mask, False

    def trimmed(self, states: Tensor, first: int, context: Context, length: int) -> Kept:
        """What the next token can see, and a little more: to drop one by one would be to copy it all each time."""
        ends: Tensor | int = context.start + length
        if context.padding is not None:
            ends = context.start + context.padding.sum(1)
        beyond = (int(ends.min()) if isinstance(ends, Tensor) else ends) - self.pattern.length
        if beyond > self.pattern.length // 4:
            states, first = states[:, beyond:].contiguous(), first + beyond
        return Kept(states, torch.full((len(states),), first, device=states.device))


def behind(end: int | None, first: int) -> int | None:
    """Where the slots in use end, counted from the first that is kept."""
    return None if end is None else end - first
