"""LSH attention (Kitaev 2020): a token asks only those whose vectors fall into its own bucket of random directions.

Queries and keys are one vector (keys of length one), so that what would score high is likely to share a bucket. Several
rounds of hashing see more; together they are one softmax over all that any of them saw. A token attends to itself only
when nothing else is there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import InputError
from regard.parts.attention import divided, merge_heads, split_heads, switched
from regard.parts.banded import banded, unit, weighed
from regard.parts.contract import Context, Memory, Sublayer, write
from regard.parts.linear import linear
from regard.parts.meeting import SELF, Chunks, Ranks, Whole

_LOOKED_AT = 1 << 24  # queries times keys, over rows, heads and rounds, that a step looks through at once
_MOST_BUCKETS, _MOST_ROUNDS = 1 << 20, 64
_TURNED = 1 << 22  # numbers that hashing holds at once

See = Ranks | Chunks | Whole


@dataclass(frozen=True)
class LSHAttention:
    """Every token asks those it shares a bucket with; `see` says whom of these.

    `buckets`: a number, or several to be multiplied for long texts; none: as many as fit the length, where `see` knows.
    While learning the directions are drawn anew each time; else they follow from `seed` and the round.
    """

    heads: int
    see: See = field(default_factory=Ranks)
    buckets: int | tuple[int, ...] | None = 64
    rounds: int = 2
    seed: int = 0
    causal: bool = True
    key_width: int | None = None  # of a head; width / heads when not said
    name: ClassVar[str] = "self"

    def __post_init__(self) -> None:
        counts = self.see.counts(self.buckets, 1)
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
        self.description, self.heads, self.see = description, description.heads, description.see
        inner = self.heads * (description.key_width or divided(width, description.heads))
        self.query_key = linear(width, inner, biased=False)
        self.value = linear(width, inner, biased=False)
        self.out = linear(inner, width, biased=False)

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        q, v = split_heads(self.query_key(x), self.heads), split_heads(self.value(x), self.heads)
        # Kept on the way there: on the way back the vectors are a little different, their buckets must not be.
        buckets = context.choose(lambda: self.hashed(q))
        if memory is None:
            memory = (q, v, buckets)
            y, weights = self.read(q, v, buckets, context.realm(), context.looking)
        else:
            memory = tuple(write(old, new, context, dim=2) for old, new in zip(memory, (q, v, buckets)))
            reach = tuple(part[:, :, : context.extent(x.shape[1])] for part in memory)
            y, weights = self.step(q, buckets, reach, context)
        if weights is not None:
            assert context.record is not None
            context.record.write(context.name, weights)
            context.record.note(context.name, buckets)
        return self.out(merge_heads(switched(y, context))), memory if context.remember else None

    @torch.no_grad()
    def hashed(self, q: Tensor, rounds: int | None = None) -> Tensor:
        """BHTK -> BHTR: in each round, the bucket of the nearest of some random directions and their opposites."""
        rows, heads, length, width = q.shape
        counts = self.see.counts(self.description.buckets, length)
        rounds = rounds or self.description.rounds
        shape = heads, width, rounds, sum(counts) // 2
        drawn = torch.randn(shape) if self.training else self.see.rotations(self.description.seed, shape)
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

    def read(
        self, q: Tensor, v: Tensor, buckets: Tensor, realm: Tensor | None, looking: bool
    ) -> tuple[Tensor, Tensor | None]:
        """BHTK, BHTV, BHTR -> BHTV, and BHTT weights for someone who looks: the whole text at once."""
        everyone = None if realm is None else realm.repeat_interleave(self.heads, 0)
        bands = self.see.bands(buckets.transpose(2, 3).flatten(0, 1), everyone, self.description.causal)
        if bands is not None:
            return banded(q, None, v, bands), weighed(q, unit(q), bands) if looking else None
        along = torch.arange(q.shape[2], device=q.device)
        seen = (along <= along[:, None]) if self.description.causal else torch.ones_like(along[:, None] == along)
        if realm is not None:
            seen = seen & (realm[:, None, :] == realm[:, :, None])
        return dense(q, unit(q), v, seen if seen.dim() == 2 else seen[:, None], along, looking)

    def step(
        self, q: Tensor, asking: Tensor, memory: tuple[Tensor, ...], context: Context
    ) -> tuple[Tensor, Tensor | None]:
        """Queries BHTK in buckets BHTR, and what is remembered of all tokens so far -> BHTV, and BHTS weights."""
        assert not isinstance(self.see, Chunks), "a stack reads all again where later tokens change what is seen"
        slots, (keys, values, answering) = context.slots(q.shape[2], q.device), memory
        length, keys, found = keys.shape[2], unit(keys), []
        size = max(1, _LOOKED_AT // (asking[:, :, :1].numel() * length))
        for piece in (slice(first, first + size) for first in range(0, q.shape[2], size)):
            past = torch.arange(length, device=q.device) <= slots[..., piece, None]
            seen = self.see.visible(asking[:, :, piece].transpose(2, 3), answering.transpose(2, 3), past)
            found.append(dense(q[:, :, piece], keys, values, seen, slots[..., piece], context.looking))
        said, weights = zip(*found)
        return torch.cat(said, dim=2), torch.cat(weights, dim=2) if context.looking else None


def dense(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, slots: Tensor, looking: bool) -> tuple[Tensor, Tensor | None]:
    """BHTK in slots (B)T, BHSK, BHSV, seen or not -> BHTV, and BHTS weights."""
    own = torch.arange(k.shape[2], device=q.device) == slots[..., None]
    hide = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill_(~seen, -torch.inf)
    hide = hide.masked_fill(own if own.dim() == 2 else own[:, None], SELF)
    y = F.scaled_dot_product_attention(q, k, v, hide, scale=1.0)
    return y, (q @ k.transpose(-1, -2) + hide).softmax(-1) if looking else None
