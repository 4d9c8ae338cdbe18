"""LSH attention (Kitaev 2020): a query attends only to keys of its own bucket of a locality-sensitive hash.

Queries and keys are one vector (shared-QK attention; keys have unit length), so a query and the keys that score high
with it tend to share a bucket. Several hashing rounds find more of them; together they are one softmax. A token attends
to itself only if to nothing else.
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
from regard.layers.attention import ablate, head_width, merge_heads, split_heads
from regard.layers.cache import fold_beams, write_memory
from regard.layers.contract import Context, Facts, Memory, Sublayer, require_counts
from regard.layers.linear import linear
from regard.layers.lsh.banded import BandedWeights, unit_keys
from regard.layers.lsh.masks import SELF_PENALTY, Buckets, Chunks, Full, RankWindow
from regard.layers.record import AttentionWeights, Rows, ScoreInputs

_MOST_BUCKETS, _MOST_ROUNDS = 1 << 20, 64
_SCORES_AT_ONCE = 1 << 24  # queries times keys, over rows, heads and rounds, of unbanded attention
_ROTATED_AT_ONCE = 1 << 20  # numbers that hashing holds at once, which fit a CPU's cache


@dataclass(frozen=True)
class LSHAttention:
    """Self-attention within buckets of a locality-sensitive hash; `pattern`: to which keys of its bucket.

    `buckets`: a number, or several that are multiplied, for long texts; None: derived from the length (chunks only).
    In training the hash is drawn anew for every call; otherwise it follows from `seed` and the round.
    """

    heads: int
    pattern: RankWindow | Chunks | Full = field(default_factory=RankWindow)
    buckets: Buckets = 64
    rounds: int = 2
    seed: int = 0
    causal: bool = True
    key_width: int | None = None  # per head; width / heads by default
    name: ClassVar[str] = "self"

    def __post_init__(self) -> None:
        require_counts(heads=self.heads, key_width=self.key_width)
        counts = self.pattern.bucket_counts(self.buckets, 1)
        if self.buckets == () or any(count < 2 or count % 2 for count in counts) or math.prod(counts) > _MOST_BUCKETS:
            raise InputError(
                f"buckets must be even numbers of 2 or more with a product of {_MOST_BUCKETS:,} at most, got "
                f"{self.buckets} (model.buckets). Use 64, or [128, 128] for long texts."
            )
        if not 1 <= self.rounds <= _MOST_ROUNDS:
            raise InputError(f"rounds must be 1 to {_MOST_ROUNDS}, got {self.rounds} (model.rounds). Use 1 to 8.")

    @property
    def facts(self) -> Facts:
        return Facts(heads=self.heads, causal=self.causal, incremental=self.pattern.incremental, packs=True)

    def build(self, width: int, source_width: int | None = None) -> LSHAttentionLayer:
        return LSHAttentionLayer(self, width)


class LSHAttentionLayer(Sublayer):
    def __init__(self, description: LSHAttention, width: int) -> None:
        super().__init__()
        self.description, self.heads, self.pattern = description, description.heads, description.pattern
        inner = self.heads * (description.key_width or head_width(width, description.heads))
        self.query_key = linear(width, inner, biased=False)
        self.value = linear(width, inner, biased=False)
        self.out = linear(inner, width, biased=False)
        self._rotations: Tensor | None = None

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        rows, x = x.shape, fold_beams(x, context.layout)
        q, v = split_heads(self.query_key(x), self.heads), split_heads(self.value(x), self.heads)
        # Kept for the backward pass: a reversible stack recomputes q with rounding errors, which may change buckets.
        buckets = context.draw(lambda: self.hash(q))
        fresh = memory is None
        if context.remember:
            memory = write_memory(memory, *(part.transpose(1, 2) for part in (unit_keys(q), v, buckets)))
        if fresh:
            found = self.attend(q, v, buckets, context.document_ids())
            weights: AttentionWeights = found
            y = torch.zeros_like(v) if context.output_is_unused else found.output()
        else:
            used = tuple(part.transpose(1, 2) for part in memory.used)
            y, weights = self.attend_memory(q, buckets, used, context)
        if context.recording:
            assert context.record is not None
            context.record.record_attention(context.name, weights, y)
            context.record.record_buckets(context.name, buckets)
        return self.out(merge_heads(ablate(y, context)).reshape(*rows[:2], -1)), memory if context.remember else None

    @torch.no_grad()
    def hash(self, q: Tensor, rounds: int | None = None) -> Tensor:
        """BHTK -> BHTR: the bucket of each vector in each round, argmax([qR; -qR]) for a random rotation R."""
        rows, length = q.shape[0], q.shape[2]
        heads, width = int(q.shape[1]), int(q.shape[3])  # numbers, also in a graph that is exported
        counts = self.pattern.bucket_counts(self.description.buckets, length)
        rounds = rounds or self.description.rounds
        shape = heads, width, rounds, sum(counts) // 2
        rotations = torch.randn(shape) if self.training else self.rotations(shape)
        rotations = rotations.to(q).permute(0, 2, 1, 3)
        buckets = torch.zeros(rows, heads, rounds, length, dtype=torch.int32, device=q.device)
        step = max(1, _ROTATED_AT_ONCE // max(1, rows * heads * rounds * shape[-1]))
        if torch._C._is_tracing():  # the graph is for any length
            return self.buckets_of(q, rotations, counts).transpose(2, 3)
        for first in range(0, length if counts else 0, step):
            tokens = slice(first, first + step)
            buckets[..., tokens] = self.buckets_of(q[:, :, tokens], rotations, counts)
        return buckets.transpose(2, 3)

    def buckets_of(self, q: Tensor, rotations: Tensor, counts: tuple[int, ...]) -> Tensor:
        """BHTK and HRKN -> BHRT: the buckets of some vectors; with several counts, a number of several digits."""
        rotated = q[:, :, None] @ rotations
        found, stride = torch.zeros_like(rotated[..., 0], dtype=torch.int32), 1
        for count, part in zip(counts, rotated.split([count // 2 for count in counts], dim=-1) if counts else ()):
            largest = part.abs().argmax(-1, keepdim=True)
            negative = part.gather(-1, largest) < 0
            found = found + stride * (largest + negative * (count // 2))[..., 0].to(torch.int32)
            stride *= count
        return found

    def rotations(self, shape: tuple[int, int, int, int]) -> Tensor:
        """-> HKRN: the rotations of inference, drawn once, so that they are constants of an exported graph."""
        known = self._rotations
        if known is None or known.shape != shape:
            known = self._rotations = self.pattern.rotations(self.description.seed, shape)
        return known

    def attend(
        self, q: Tensor, v: Tensor, buckets: Tensor, document_ids: Tensor | None
    ) -> BandedWeights | SharedQKWeights:
        """BHTK, BHTV, BHTR -> its weights, which compute its output: attention within one text."""
        per_head = None if document_ids is None else document_ids.repeat_interleave(self.heads, 0)
        traced = torch._C._is_tracing()  # bands depend on the length, and an exported graph is for any
        by_round = buckets.transpose(2, 3)
        bands = None if traced else self.pattern.bands(by_round.flatten(0, 1), per_head, self.description.causal)
        if bands is not None:
            return BandedWeights(v, self.out.weight, q, None, bands)
        slots = torch.arange(q.shape[2], device=q.device)

        def visible(queries: slice) -> Tensor:
            own = slots[queries, None]
            mask = slots <= own if self.description.causal else torch.ones_like(slots == own)
            if document_ids is not None:
                mask = mask & (document_ids[:, None, :] == document_ids[:, queries, None])
            if traced:
                return self.pattern.within(by_round, mask)
            return mask if document_ids is None else mask[:, None]

        return SharedQKWeights(v, self.out.weight, q, unit_keys(q), slots, visible)

    def attend_memory(
        self, q: Tensor, query_buckets: Tensor, memory: tuple[Tensor, ...], context: Context
    ) -> tuple[Tensor, AttentionWeights]:  # fmt: skip
        """Queries BHTK in buckets BHTR; keys, values and buckets of all tokens so far -> BHTV and its weights."""
        assert self.pattern.incremental, "a stack recomputes everything where later tokens change what is attended to"
        (keys, values, key_buckets), layout = memory, context.layout
        slots = torch.arange(keys.shape[2], device=q.device)
        own = slots[keys.shape[2] - q.shape[2] :]  # the queries' own keys are the last

        def visible(queries: slice) -> Tensor:
            causal = slots <= own[queries, None] if layout is None else layout.visible[:, queries]
            return self.pattern.visible(
                query_buckets[:, :, queries].transpose(2, 3), key_buckets.transpose(2, 3), causal
            )

        weights = SharedQKWeights(values, self.out.weight, q, keys, own, visible)
        return weights.output(query_buckets.shape[-1]), weights


@dataclass(frozen=True)
class SharedQKWeights(AttentionWeights):
    """The weights of shared-QK attention without bands: queries BHTK in slots T, keys BHSK."""

    query: Tensor
    key: Tensor
    slots: Tensor
    visible: Callable[[slice], Tensor]  # a slice of queries -> tS, or (1|B)(1|H)tS, True for visible keys

    @property
    def queries(self) -> int:
        return self.query.shape[2]

    def mask(self, queries: slice) -> Tensor:
        """-> tS or (1|B)(1|H)tS: the additive mask of a slice of queries."""
        visible = self.visible(queries)
        own = torch.arange(self.keys, device=self.key.device) == self.slots[queries, None]
        mask = torch.zeros(visible.shape, dtype=self.query.dtype, device=self.query.device)
        mask = mask.masked_fill_(~visible, -torch.inf)
        return mask.masked_fill(own, SELF_PENALTY)

    def output(self, rounds: int = 1) -> Tensor:
        """-> BHTV: the attention output, slice by slice; masks are as large as `rounds` matrices of scores."""
        if torch._C._is_tracing():
            return self.output_of(slice(None))
        size = max(1, _SCORES_AT_ONCE // (rounds * self.query[:, :, 0, 0].numel() * self.keys))
        slices = (slice(first, first + size) for first in range(0, self.queries, size))
        return torch.cat([self.output_of(queries) for queries in slices], dim=2)

    def output_of(self, queries: slice) -> Tensor:
        """-> BHtV: the attention output of a slice of queries."""
        q = self.query[:, :, queries]
        return F.scaled_dot_product_attention(q, self.key, self.values, self.mask(queries), scale=1.0)

    def head(self, number: int) -> Rows:
        def weights_of(queries: slice) -> Tensor:
            mask = self.mask(queries)
            mask = mask[:, number if mask.shape[1] > 1 else 0] if mask.dim() == 4 else mask
            return (self.query[:, number, queries] @ self.key[:, number].mT + mask).softmax(-1)

        return weights_of

    def score_inputs(self) -> ScoreInputs:
        return ScoreInputs("shared", self.query, self.key)
