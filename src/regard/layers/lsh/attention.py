"""LSH attention (Kitaev 2020): a token asks only those whose vectors fall into its own bucket of random directions.

Queries and keys are one vector (keys of length one), so that what would score high is likely to share a bucket. Several
rounds of hashing see more; together they are one softmax over all that any of them saw. A token attends to itself only
when nothing else is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import InputError
from regard.layers.attention import divided, merge_heads, split_heads, switched
from regard.layers.contract import Context, Memory, Sublayer, write
from regard.layers.linear import linear
from regard.layers.lsh.banded import InBands, banded, unit
from regard.layers.lsh.masks import SELF, Chunks, Ranks, Whole
from regard.layers.record import Attended, Inside, Rows

_LOOKED_AT = 1 << 24  # queries times keys, over rows, heads and rounds, that a step looks through at once


_MOST_BUCKETS, _MOST_ROUNDS = 1 << 20, 64


_TURNED = 1 << 20  # numbers that hashing holds at once: what a cache holds

See = Ranks | Chunks | Whole


@dataclass(frozen=True)
class LSHAttention:
    """Every token asks those it shares a bucket with; `see` says whom of these.

    `buckets`: a number, or several to be multiplied for long texts; none: as many as fit the length, where `see` knows.
    While learning the directions are drawn anew each time; else they follow from `seed` and the round.
    """

    heads: int
    pattern: See = field(default_factory=Ranks)
    buckets: int | tuple[int, ...] | None = 64
    rounds: int = 2
    seed: int = 0
    causal: bool = True
    key_width: int | None = None  # of a head; width / heads when not said
    name: ClassVar[str] = "self"

    def __post_init__(self) -> None:
        counts = self.pattern.counts(self.buckets, 1)
        if self.buckets == () or any(count < 2 or count % 2 for count in counts) or math.prod(counts) > _MOST_BUCKETS:
            raise InputError(
                f"buckets must be even numbers of 2 or more, all in all {_MOST_BUCKETS:,} at most, got {self.buckets} "
                "(model.buckets). Use 64, or [128, 128] for long texts."
            )
        if not 1 <= self.rounds <= _MOST_ROUNDS:
            raise InputError(f"rounds must be 1 to {_MOST_ROUNDS}, got {self.rounds} (model.rounds). Use 1 to 8.")

    def build(self, width: int, source_width: int | None = None) -> LSHAttentionLayer:
        """The module for a stream of this width."""
        return LSHAttentionLayer(self, width)


class LSHAttentionLayer(Sublayer):
    def __init__(self, description: LSHAttention, width: int) -> None:
        super().__init__()
        self.description, self.heads, self.pattern = description, description.heads, description.pattern
        inner = self.heads * (description.key_width or divided(width, description.heads))
        self.query_key = linear(width, inner, biased=False)
        self.value = linear(width, inner, biased=False)
        self.out = linear(inner, width, biased=False)

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        q, v = split_heads(self.query_key(x), self.heads), split_heads(self.value(x), self.heads)
        # Kept on the way there: on the way back the vectors are a little different, their buckets must not be.
        buckets = context.choose(lambda: self.hashed(q))
        if memory is None:
            memory = (unit(q), v, buckets) if context.remember else None
            y, attended = self.read(q, v, buckets, context.document_ids())
        else:
            memory = tuple(write(old, new, context, dim=2) for old, new in zip(memory, (unit(q), v, buckets)))
            reach = tuple(part[:, :, : context.extent(x.shape[1])] for part in memory)
            y, attended = self.step(q, buckets, reach, context)
        if context.looking:
            assert context.record is not None
            context.record.watch(context.name, attended)
            context.record.note(context.name, buckets)
        return self.out(merge_heads(switched(y, context))), memory if context.remember else None

    @torch.no_grad()
    def hashed(self, q: Tensor, rounds: int | None = None) -> Tensor:
        """BHTK -> BHTR: in each round, the bucket of the nearest of some random directions and their opposites."""
        rows, heads, length, width = q.shape
        counts = self.pattern.counts(self.description.buckets, length)
        rounds = rounds or self.description.rounds
        shape = heads, width, rounds, sum(counts) // 2
        drawn = torch.randn(shape) if self.training else self.pattern.rotations(self.description.seed, shape)
        turn = drawn.to(q).permute(0, 2, 1, 3)
        buckets = torch.zeros(rows, heads, rounds, length, dtype=torch.int32, device=q.device)
        step = max(1, _TURNED // max(1, rows * heads * rounds * shape[-1]))
        for first in range(0, length if counts else 0, step):
            piece = slice(first, first + step)
            turned = q[:, :, None, piece] @ turn
            whole = 1
            for count, part in zip(counts, turned.split([count // 2 for count in counts], dim=-1)):
                nearest = part.abs().argmax(-1, keepdim=True)
                opposite = part.gather(-1, nearest) < 0
                buckets[..., piece] += whole * (nearest + opposite * (count // 2))[..., 0].to(torch.int32)
                whole *= count
        return buckets.transpose(2, 3)

    def read(self, q: Tensor, v: Tensor, buckets: Tensor, document_ids: Tensor | None) -> tuple[Tensor, Attended]:
        """BHTK, BHTV, BHTR -> BHTV, and what it attends to: the whole text at once."""
        everyone = None if document_ids is None else document_ids.repeat_interleave(self.heads, 0)
        bands = self.pattern.bands(buckets.transpose(2, 3).flatten(0, 1), everyone, self.description.causal)
        if bands is not None:
            return banded(q, None, v, bands), InBands(v, self.out.weight, q, None, bands)
        along = torch.arange(q.shape[2], device=q.device)

        def seen(queries: slice) -> Tensor:
            mine = along[queries, None]
            past = along <= mine if self.description.causal else torch.ones_like(along == mine)
            return past if document_ids is None else (past & (document_ids[:, None, :] == document_ids[:, queries, None]))[:, None]

        attended = Alike(v, self.out.weight, q, unit(q), along, seen)
        return attended.answers(), attended

    def step(
        self, q: Tensor, asking: Tensor, memory: tuple[Tensor, ...], context: Context
    ) -> tuple[Tensor, Attended]:  # fmt: skip
        """Queries BHTK in buckets BHTR; keys, values and buckets of all so far -> BHTV, and what it attends to."""
        assert not isinstance(self.pattern, Chunks), "a stack reads all again where later tokens change what is seen"
        slots, (keys, values, answering) = context.slots(q.shape[2], q.device), memory
        length, visible = keys.shape[2], self.pattern.visible

        def seen(queries: slice) -> Tensor:
            past = torch.arange(length, device=q.device) <= slots[..., queries, None]
            return visible(asking[:, :, queries].transpose(2, 3), answering.transpose(2, 3), past)

        attended = Alike(values, self.out.weight, q, keys, slots, seen)
        return attended.answers(asking.shape[-1]), attended


@dataclass(frozen=True)
class Alike(Attended):
    """Queries BHTK in slots (B)T, and keys BHSK that were queries; `seen` tells of some queries what they see."""

    query: Tensor
    key: Tensor
    slots: Tensor
    seen: Callable[[slice], Tensor]  # -> tS, or (1|B)(1|H)tS

    @property
    def queries(self) -> int:
        """How many queries attend, in each row."""
        return self.query.shape[2]

    def hide(self, queries: slice) -> Tensor:
        """-> tS or (1|B)(1|H)tS: what is added to scores."""
        seen, own = (
            self.seen(queries),
            torch.arange(self.keys, device=self.key.device) == self.slots[..., queries, None],
        )
        hide = torch.zeros(seen.shape, dtype=self.query.dtype, device=self.query.device).masked_fill_(~seen, -torch.inf)
        return hide.masked_fill(own if own.dim() == 2 else own[:, None], SELF)

    def answers(self, rounds: int = 1) -> Tensor:
        """-> BHTV: what all queries are told, some at a time; in so many rounds is looked who is seen."""
        size = max(1, _LOOKED_AT // (rounds * self.query[:, :, 0, 0].numel() * self.keys))
        said = [self.said(slice(first, first + size)) for first in range(0, self.queries, size)]
        return torch.cat(said, dim=2)

    def said(self, queries: slice) -> Tensor:
        """-> BHtV: what some queries are told."""
        asking = self.query[:, :, queries]
        return F.scaled_dot_product_attention(asking, self.key, self.values, self.hide(queries), scale=1.0)

    def head(self, number: int) -> Rows:
        """The weights of one head, asked for by queries."""

        def of(queries: slice) -> Tensor:
            hide = self.hide(queries)
            hide = hide[:, number if hide.shape[1] > 1 else 0] if hide.dim() == 4 else hide
            return (self.query[:, number, queries] @ self.key[:, number].mT + hide).softmax(-1)

        return of

    def inside(self) -> Inside:
        """What the weights are made of."""
        return Inside("shared", self.query, self.key)
