"""Attention patterns of LSH attention: which keys of its bucket a query attends to, and their masks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import InputError
from regard.layers.lsh.banded import Band
from regard.layers.patterns import CentredWindow, ChunkWindow, Window, check_window, chunks_within, round_up

SELF_PENALTY = -1e5  # added to a token's score with itself, so that it attends to itself only if to nothing else
_MASKED = -1e9  # in chunks, as published
_NO_RANK = -(1 << 30)

Buckets = int | tuple[int, ...] | None
"""The number of buckets, or several numbers that are multiplied; None: the pattern derives it from the length."""


class LSHPattern:
    """The base of LSH patterns. Its defaults are full attention: no hashing, no bands."""

    incremental: bool = True  # later tokens never change which keys an earlier query attends to

    def bucket_counts(self, buckets: Buckets, length: int) -> tuple[int, ...]:
        """The numbers of buckets, whose product is the total; empty: no hashing."""
        return ()

    def rotations(self, seed: int, shape: tuple[int, int, int, int]) -> Tensor:
        """-> HKRN: the random rotations R of inference, which follow from the seed."""
        return torch.zeros(shape)

    def bands(self, buckets: Tensor, document_ids: Tensor | None, causal: bool) -> list[Band] | None:
        """Buckets NRT and document ids NT -> the bands of sorted tokens; None: attention over the whole text."""
        return None

    def visible(self, query_buckets: Tensor, key_buckets: Tensor, causal: Tensor) -> Tensor:
        """Buckets BHRT of queries, BHRS of keys, and the causal mask (B)TS -> (1|B)(1|H)TS: the visible keys."""
        return _per_head(causal)

    def within(self, buckets: Tensor, mask: Tensor) -> Tensor:
        """Buckets BHRT of one text and the mask of `causal` and documents (B)TT -> as `visible`, without bands."""
        return _per_head(mask)


@dataclass(frozen=True)
class Full(LSHPattern):
    """Every key, whatever its bucket: full shared-QK attention."""


@dataclass(frozen=True)
class RankWindow(LSHPattern):
    """A query attends to the last `length` keys of its own bucket, itself included (in an encoder, to the next too).

    This depends on earlier tokens only, so no later token changes it. A key that several rounds find counts once.
    """

    length: int = 64

    def __post_init__(self) -> None:
        check_window(self.length)

    def bucket_counts(self, buckets: Buckets, length: int) -> tuple[int, ...]:
        if buckets is None:
            raise InputError(
                "the number of buckets cannot follow the length here, or later tokens would change earlier outputs "
                "(model.buckets). Use 64, or [128, 128] for long texts."
            )
        return (buckets,) if isinstance(buckets, int) else buckets

    def local_pattern(self, causal: bool) -> Window | CentredWindow:
        """The pattern of the local attention layers between such layers."""
        return Window(self.length) if causal else CentredWindow(self.length)

    def rotations(self, seed: int, shape: tuple[int, int, int, int]) -> Tensor:
        # Round by round, so that more rounds keep the first ones.
        heads, width, rounds, directions = shape
        drawn = [
            torch.randn(heads, width, directions, generator=torch.Generator().manual_seed(seed * 1_000_003 + number))
            for number in range(rounds)
        ]
        return torch.stack(drawn, dim=2)

    def bands(self, buckets: Tensor, document_ids: Tensor | None, causal: bool) -> list[Band] | None:
        """One band per round."""
        rounds, length = buckets.shape[1:]
        chunk = min(self.length, length)  # a text shorter than the window is one chunk
        if document_ids is not None:  # a bucket of each document's own
            buckets = buckets + document_ids[:, None] * (int(buckets.max()) + 1)
        sorted_buckets, order = buckets.sort(dim=-1, stable=True)
        positions = torch.arange(length, device=buckets.device, dtype=torch.int32)
        # The rank is the sorted position plus a gap of one window per bucket before it. So two tokens share a bucket
        # and are less than a window apart exactly when their ranks are less than a window apart.
        gaps = F.pad(sorted_buckets[..., 1:] != sorted_buckets[..., :-1], (1, 0)).cumsum(-1, dtype=torch.int32)
        ranks = torch.empty_like(gaps).scatter_(-1, order, positions + self.length * gaps)
        sorted_positions = torch.empty_like(gaps).scatter_(-1, order, positions.expand_as(gaps))
        tokens = F.pad(order.to(torch.int32), (0, -length % chunk))
        return [
            Band(
                tokens[:, number], sorted_positions[:, number : number + 1], chunk, 1, 0 if causal else 1,
                RankWindowMask(order[:, number], ranks[:, : number + 1], chunk, self.length, causal),
            )
            for number in range(rounds)
        ]  # fmt: skip

    def visible(self, query_buckets: Tensor, key_buckets: Tensor, causal: Tensor) -> Tensor:
        same_bucket = (query_buckets[..., None] == key_buckets[..., None, :]) & _per_head(causal)[:, :, None]
        keys_since = same_bucket.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
        return (same_bucket & (keys_since <= self.length)).any(2)

    def within(self, buckets: Tensor, mask: Tensor) -> Tensor:
        same_bucket = (buckets[..., None] == buckets[..., None, :]) & _per_head(mask)[:, :, None]
        ranks = same_bucket.long().cumsum(-1)
        slots = torch.arange(buckets.shape[-1], device=buckets.device)
        own = (same_bucket & (slots <= slots[:, None])).sum(-1, keepdim=True)
        return (same_bucket & ((ranks - own).abs() < self.length)).any(2)


@dataclass(frozen=True)
class RankWindowMask:
    """The mask of one round of `RankWindow`: hides other buckets, distant ranks, and keys that earlier rounds found."""

    order: Tensor  # NT, tokens sorted by bucket
    ranks: Tensor  # NRT, of the rounds up to this one
    chunk: int
    window: int
    causal: bool

    def __call__(self, rows: slice, chunks: slice) -> Tensor:
        """-> ncCW."""
        after = 0 if self.causal else 1
        first, last = (chunks.start - 1) * self.chunk, (chunks.stop + after) * self.chunk
        length = self.order.shape[1]
        order = self.order[rows, max(first, 0) : min(last, length)]
        missing = (max(-first, 0), max(last - length, 0))
        hidden: Tensor | None = None
        for number in reversed(range(self.ranks.shape[1])):
            ranks = F.pad(self.ranks[rows, number].gather(1, order), missing, value=_NO_RANK)
            queries = ranks[:, self.chunk : ranks.shape[1] - after * self.chunk].unflatten(1, (-1, self.chunk))
            keys = ranks.unfold(1, (2 + after) * self.chunk, self.chunk)
            distance = (queries[..., None] - keys[..., None, :]).abs_()
            hidden = distance >= self.window if hidden is None else hidden.logical_or_(distance < self.window)
        assert hidden is not None
        triangle = torch.zeros(hidden.shape[-2:], device=order.device)
        if self.causal:
            triangle.masked_fill_(torch.ones_like(triangle, dtype=torch.bool).triu_(self.chunk), -torch.inf)
        mask = triangle.masked_fill(hidden, -torch.inf)
        mask.diagonal(self.chunk, -2, -1).fill_(SELF_PENALTY)
        return mask


@dataclass(frozen=True)
class Chunks(LSHPattern):
    """The published form (Kitaev 2020): tokens sorted by bucket and cut into chunks of `length`, which attend to
    `before` chunks before them and `after` after them.

    Chunk borders depend on all tokens, so later tokens change what earlier ones attend to: for published weights only.
    Lengths are rounded up to a multiple of `all_windows`, the chunk lengths of all layers. `max_positions`, the longest
    text of the model, bounds the number of buckets that is not split into two factors.
    """

    length: int = 64
    before: int = 1
    after: int = 0
    all_windows: tuple[int, ...] = ()
    max_positions: int = 4096
    incremental = False

    def __post_init__(self) -> None:
        check_window(self.length, self.before, self.after, self.all_windows)

    def padded_length(self, length: int) -> int:
        """The text's length, rounded up to whole chunks."""
        return round_up(length, self.all_windows or (self.length,))

    def bucket_counts(self, buckets: Buckets, length: int) -> tuple[int, ...]:
        """The numbers of buckets; by default two buckets per chunk."""
        if buckets is not None:
            return (buckets,) if isinstance(buckets, int) else buckets
        power = max(1, (2 * (self.padded_length(length) // self.length)).bit_length() - 1)
        if 2**power <= 2 * max(math.isqrt(self.max_positions // self.length), self.length):
            return (2**power,)
        return 2 ** (power // 2), 2 ** (power - power // 2)

    def local_pattern(self, causal: bool) -> ChunkWindow:
        return ChunkWindow(self.length, self.before, 0 if causal else self.after, causal, self.all_windows)

    def rotations(self, seed: int, shape: tuple[int, int, int, int]) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    def bands(self, buckets: Tensor, document_ids: Tensor | None, causal: bool) -> list[Band] | None:
        """One band with all rounds end to end; None when the text is one chunk."""
        rounds, length = buckets.shape[1:]
        padded = self.padded_length(length)
        if padded <= self.length:
            return None
        padding = int(buckets.max()) + 1  # its bucket, the last one
        if document_ids is not None:
            buckets = buckets.masked_fill((document_ids < 0)[:, None], padding)
        buckets = F.pad(buckets, (0, padded - length), value=padding)
        offset = (padding + 1) * torch.arange(rounds, device=buckets.device, dtype=buckets.dtype)
        order = (buckets + offset[:, None]).flatten(1).argsort(dim=-1, stable=True)
        positions = torch.arange(padded * rounds, device=order.device).expand_as(order)
        sorted_positions = torch.empty_like(order).scatter_(1, order, positions)
        tokens = (order % padded).to(torch.int32)
        sorted_positions = sorted_positions.unflatten(1, (rounds, padded))[..., :length].to(torch.int32)
        before, after, copies = chunks_within(self.before, self.after, rounds * padded // self.length)
        mask = ChunkMask(tokens, length, document_ids, self.length, before, after, causal, copies)
        return [Band(tokens.clamp_max(length - 1), sorted_positions, self.length, before, after, mask)]


@dataclass(frozen=True)
class ChunkMask:
    """The mask of `Chunks`: hides later tokens, other documents, and padding."""

    tokens: Tensor  # NM
    length: int
    document_ids: Tensor | None
    chunk: int
    before: int
    after: int
    causal: bool
    own_copies: int

    def __call__(self, rows: slice, chunks: slice) -> Tensor:
        """-> ncCW."""
        chunk = self.chunk
        positions = torch.arange((chunks.start - self.before) * chunk, (chunks.stop + self.after) * chunk)
        tokens = self.tokens[rows].index_select(1, positions.to(self.tokens.device) % self.tokens.shape[1])
        keys = tokens.unfold(1, (self.before + 1 + self.after) * chunk, chunk)[..., None, :]
        queries = self.tokens[rows, chunks.start * chunk : chunks.stop * chunk].unflatten(1, (-1, chunk))[..., None]
        hidden = keys >= self.length
        if self.causal:
            hidden = hidden | (keys > queries)
        if self.document_ids is not None:
            document_ids = F.pad(self.document_ids[rows], (0, 1), value=-1)
            of_query, of_key = (
                document_ids.gather(1, side.flatten(1).clamp_max(self.length).long()).view(side.shape)
                for side in (queries, keys)
            )
            hidden = hidden | (of_query != of_key) | (of_key < 0)
        mask = torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, _MASKED)
        mask = mask.masked_fill(keys == queries, SELF_PENALTY)
        mask[..., self.before * chunk : (self.before + 1) * chunk] += math.log(self.own_copies)
        return mask


def _per_head(mask: Tensor) -> Tensor:
    """(B)TS -> (1|B)1TS."""
    return mask[None, None] if mask.dim() == 2 else mask[:, None]
