"""Attention over the stream itself and over the source, with three slots: the score, the pattern, the position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard import messages
from regard.layers.contract import Context, Memory, Shared, Sublayer, write
from regard.layers.linear import linear
from regard.layers.lsh.banded import InBands, banded, local_bands
from regard.layers.patterns import Everything, Pattern, SourcePattern, gathered
from regard.layers.positions import Rotary
from regard.layers.record import Attended, Inside, Rows
from regard.layers.scores import AnyScore, Dot, Score

_LONG = 1 << 16


@dataclass(frozen=True)
class SelfAttention:
    """Every token asks the tokens of its own sequence (Vaswani 2017, section 3.2)."""

    heads: int
    pattern: Pattern = field(default_factory=Everything)
    score: AnyScore = field(default_factory=Dot)
    position: Rotary | None = None
    key_width: int | None = None  # of a head; width / heads when not said
    biased: bool = True
    name: ClassVar[str] = "self"

    def build(self, width: int, source_width: int | None = None) -> SelfAttentionLayer:
        """The module for a stream of this width."""
        return SelfAttentionLayer(self, width)


class SelfAttentionLayer(Sublayer):
    def __init__(self, description: SelfAttention, width: int) -> None:
        super().__init__()
        self.heads, self.pattern = description.heads, description.pattern
        key_width = description.key_width or divided(width, description.heads)
        inner = key_width * self.heads
        self.query_key_value = linear(width, 3 * inner, parts=3, biased=description.biased)
        self.out = linear(inner, width, biased=description.biased)
        self.score = description.score.build(key_width, key_width, self.heads)
        self.query_key_value.weight.data[:inner] *= self.score.first
        self.position = description.position.build(key_width) if description.position else None

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        q, k, v = (split_heads(part, self.heads) for part in self.projected(x))
        if self.position is not None:
            places = context.places(x.shape[1], x.device)
            q, k = self.position(q, places), self.position(k, places)
        q, k = self.score.queries(q), self.score.keys(k)
        fresh, first = memory is None, 0
        if context.remember:
            keys, values = (None, None) if memory is None else memory
            memory = write(keys, k, context, dim=2), write(values, v, context, dim=2)
            if not fresh:
                # What no query sees any more is not looked through, where all rows are equally far.
                first = 0 if isinstance(context.start, Tensor) else self.pattern.since(context.start)
                k, v = (part[:, :, first : context.extent(x.shape[1])] for part in memory)
        y = nearby(self.score, self.pattern, q, k, v, context, out=self.out.weight) if fresh else None
        if y is not None:
            return self.out(merge_heads(y)), memory if context.remember else None
        slots = torch.arange(first, first + k.shape[2], device=x.device)
        hidden, causal = self.visible(x.shape[1], slots, context, fresh)
        bias = None
        if context.bias is not None:
            places = context.places(x.shape[1], x.device)
            bias = context.bias(places, places if fresh else slots)
        y = attend(self.score, q, k, v, hidden, context, bias=bias, causal=causal, out=self.out.weight, first=first)
        return self.out(merge_heads(y)), memory if context.remember else None

    def projected(self, x: Tensor) -> Sequence[Tensor]:
        """BTD -> three of BTD; of a long text one by one, so that their slopes need not stand beside their sum."""
        if x.shape[1] < _LONG:
            together: Tensor = self.query_key_value(x)
            return together.chunk(3, dim=-1)
        weights, biases = self.query_key_value.weight.chunk(3), self.query_key_value.bias
        parts = 3 * (None,) if biases is None else biases.chunk(3)
        return [F.linear(x, weight, bias) for weight, bias in zip(weights, parts)]

    def visible(
        self, queries: int, keys: Tensor, context: Context, fresh: bool
    ) -> tuple[Tensor | None, bool]:  # fmt: skip
        """The mask of which keys, by slot, are seen (None: all), and whether it is the triangle that kernels know.

        The triangle is aligned to the top left, so it is right only when queries and keys start together.
        """
        plain = self.pattern.triangle and context.document is None
        if fresh and plain and context.bias is None and self.score.scale is not None:
            return None, True
        if plain and queries == 1 and not isinstance(context.start, Tensor):
            return None, False
        mask = self.pattern.sees(context.slots(queries, keys.device), keys)
        mask = None if mask is None else (mask[:, None] if mask.dim() == 3 else mask)
        if fresh and context.document is not None:
            mask = both(mask, (context.document[:, :, None] == context.document[:, None, :])[:, None])
        if not self.pattern.causal and context.padding is not None:
            mask = both(mask, context.padding[:, None, None, :])
        return mask, False


@dataclass(frozen=True)
class CrossAttention:
    """Every token asks the source (Vaswani 2017, section 3.2.3)."""

    heads: int
    score: AnyScore = field(default_factory=Dot)
    key_width: int | None = None
    biased: bool = True
    pattern: SourcePattern = field(default_factory=Everything)
    name: ClassVar[str] = "cross"

    def build(self, width: int, source_width: int | None = None) -> CrossAttentionLayer:
        """The module for a stream of this width over a source of that width."""
        return CrossAttentionLayer(self, width, source_width or width)


class CrossAttentionLayer(Sublayer):
    def __init__(self, description: CrossAttention, width: int, source_width: int) -> None:
        super().__init__()
        self.heads = description.heads
        key_width = description.key_width or divided(width, description.heads)
        inner = key_width * self.heads
        self.query = linear(width, inner, biased=description.biased)
        self.key_value = linear(source_width, 2 * inner, parts=2, biased=description.biased)
        self.out = linear(inner, width, biased=description.biased)
        self.score = description.score.build(key_width, key_width, self.heads)
        self.query.weight.data *= self.score.first
        self.focus = description.pattern.focus(width)

    def forward(
        self, x: Tensor, context: Context, memory: Shared[tuple[Tensor, Tensor]] | None = None
    ) -> tuple[Tensor, Memory]:
        assert context.source is not None
        if memory is None:
            k, v = (split_heads(part, self.heads) for part in self.key_value(context.source.states).chunk(2, dim=-1))
            memory = Shared((self.score.keys(k), v))
        k, v = memory.tree
        # The beams of a sentence are only more queries to the same keys.
        queries, slots = gathered(x, context.slots(x.shape[1], x.device), k.shape[0])
        mask, factor = self.focus(queries, slots, context.source)
        q = self.score.queries(split_heads(self.query(queries), self.heads))
        y = attend(self.score, q, k, v, mask, context, factor=factor, rows=len(x), out=self.out.weight)
        return self.out(merge_heads(y).reshape(*x.shape[:2], -1)), memory if context.remember else None


def attend(
    score: Score,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    context: Context,
    *,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    causal: bool = False,
    rows: int | None = None,
    out: Tensor | None = None,
    first: int = 0,
) -> Tensor:
    """Projected BHTK, BHSK and BHSV -> BHTV: weigh the values by how well their keys answer.

    A dot product goes to the fused kernel, unless there is a factor on the weights. While someone looks, the weights
    are computed beside it, never instead of it, so that looking changes nothing. `out` is what comes behind the heads;
    `first` is the slot of the first key.
    """
    weights: Tensor | None = None
    if score.scale is None or factor is not None:
        weights = weigh(score, q, k, mask, bias)
        weights = weights if factor is None else weights * factor
        y = weights @ v
    else:
        y = F.scaled_dot_product_attention(q, k, v, masked(mask, bias), is_causal=causal, scale=score.scale)
    if context.looking:
        assert context.record is not None
        beams = 1 if rows is None else rows // len(q)
        values = F.pad(v, (0, 0, first, 0)) if first else v
        context.record.watch(context.name, Weighed(values, out, score, q, k, mask, bias, causal, beams, weights, first))
    return switched(y, context)


@dataclass(frozen=True)
class Weighed(Attended):
    """Keys weighed by a score. A sentence's beams are so many times more queries to it: B, H, beams * T, K."""

    score: Score
    query: Tensor
    key: Tensor
    mask: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False  # the plain triangle, for which there is no mask
    beams: int = 1
    known: Tensor | None = None  # all weights, where the layer itself had to work them out
    first: int = 0  # the slot of the first key; values before it weigh nothing

    @property
    def queries(self) -> int:
        """How many queries attend, in each row."""
        return self.query.shape[2] // self.beams

    def head(self, number: int) -> Rows:
        """The weights of one head, asked for by queries."""
        return lambda queries: self.worked_out(queries, slice(number, number + 1))[:, 0]

    def weights(self, queries: slice) -> Tensor:
        """-> BHtS: the weights of some queries."""
        return self.worked_out(queries, slice(None))

    def worked_out(self, queries: slice, heads: slice) -> Tensor:
        """-> BhtS: the weights of some queries in some heads."""
        found = self.part(self.known, queries, heads)
        if found is None:
            mask = self.part(self.mask, queries, heads)
            if self.causal:
                along = torch.arange(self.keys, device=self.key.device)
                mask = along <= along[: self.queries][queries, None]
            q = self.part(self.query, queries, heads)
            assert q is not None
            found = weigh(self.score, q, self.key[:, heads], mask, self.part(self.bias, queries, heads))
        found = rows_of(found, self.beams)
        return F.pad(found, (self.first, 0)) if self.first else found

    def part(self, whole: Tensor | None, queries: slice, heads: slice) -> Tensor | None:
        """What of (1|B)(1|H)(1|T)... belongs to some queries and heads."""
        if whole is None:
            return None
        whole = whole if whole.dim() == 4 else whole[None, None]
        whole = whole if whole.shape[1] == 1 else whole[:, heads]
        if whole.shape[2] == 1:
            return whole
        chosen: Tensor = whole.unflatten(2, (self.beams, -1))[:, :, :, queries]
        return chosen.flatten(2, 3)

    def inside(self) -> Inside:
        """What the weights are made of."""
        # No copy of the keys: a recurrent decoder asks once a step, and who keeps all steps is to keep them once.
        keys = self.key if self.beams == 1 else self.key.repeat_interleave(self.beams, 0)
        keys = F.pad(keys, (0, 0, self.first, 0)) if self.first else keys
        bias = self.bias if self.bias is None or not self.first else F.pad(self.bias, (self.first, 0))
        return replace(self.score.inside(rows_of(self.query, self.beams), keys), bias=bias)


def nearby(
    score: Score, pattern: Pattern, q: Tensor, k: Tensor, v: Tensor, context: Context, *, out: Tensor | None = None
) -> Tensor | None:
    """As `attend`, in bands; None unless of this text the pattern sees what is near only, and a kernel can compare."""
    if context.bias is not None or score.scale is None:
        return None
    document_ids = context.document_ids()
    document_ids = None if document_ids is None else document_ids.repeat_interleave(q.shape[1], 0)
    bands = local_bands(pattern, q.shape[2], q.shape[0] * q.shape[1], document_ids, q.device)
    if bands is None:
        return None
    if context.looking and context.record is not None:
        context.record.watch(context.name, InBands(v, out, q, k, bands, score.scale))
    return switched(banded(q, k, v, bands, score.scale), context)


def switched(y: Tensor, context: Context) -> Tensor:
    """BHTV without the heads that are switched off."""
    kept = None if context.ablation is None else context.ablation.keep(context.name, y.shape[1])
    return y if kept is None else y * kept.to(y)[:, None, None]


def weigh(score: Score, q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
    """-> BHTS: the softmax over what is seen; a query that sees nothing weighs nothing."""
    energy = score.compare(q, k)
    energy = energy if bias is None else energy + bias
    return soft(energy, mask)


def soft(energy: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the keys that are seen; zeros, never NaN, where nothing is."""
    if mask is None:
        return energy.softmax(-1)
    hidden = energy.masked_fill(~mask, torch.finfo(energy.dtype).min)
    return hidden.softmax(-1).masked_fill(~mask, 0.0)


def masked(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """One mask for the kernel: the bias, minus infinity where nothing is seen."""
    if bias is None or mask is None:
        return mask if bias is None else bias
    return bias.masked_fill(~mask, -torch.inf)


def both(one: Tensor | None, other: Tensor) -> Tensor:
    """What both masks let through."""
    return other if one is None else one & other


def rows_of(asked: Tensor, beams: int) -> Tensor:
    """Give beams that were extra queries (B, H, beams * T, ...) their rows back: (B * beams, H, T, ...)."""
    if beams == 1:
        return asked
    apart: Tensor = asked.unflatten(2, (beams, -1))
    return apart.transpose(1, 2).flatten(0, 1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """BTD -> BHTK: cut the width into heads."""
    heads_last: Tensor = x.unflatten(-1, (heads, -1))
    return heads_last.transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """BHTV -> BTD: lay the heads side by side."""
    return x.transpose(1, 2).flatten(2)


def divided(width: int, heads: int) -> int:
    """The width of one head."""
    if heads < 1 or width % heads:
        lower = max(heads, 1) * max(1, width // max(heads, 1))
        raise messages.INDIVISIBLE(width=width, heads=heads, lower=lower, upper=lower + max(heads, 1))
    return width // heads
