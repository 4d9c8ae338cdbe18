"""Attention patterns: which keys a query attends to (full, causal, sliding window, chunks, Luong's local attention).

A pattern over the sequence itself depends on slots only; attention adds padding and packed documents. A pattern over
the source builds a `SourceMask`, which may depend on the query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.contract import Source
from regard.layers.linear import linear
from regard.schema import kind_of


class ChunkSpan(NamedTuple):
    """The chunks that hold all keys of a chunk of queries, so that attention can be computed in bands."""

    chunk: int  # slots per chunk
    before: int  # chunks before the queries' own
    after: int  # chunks after it
    padded_length: int  # the text's length, rounded up to whole chunks
    circular: bool = False  # the last chunk counts as the one before the first
    own_copies: int = 1  # how often the queries' own chunk counts


class SelfPattern:
    """The base of patterns over the sequence itself."""

    causal: bool = False
    lower_triangular: bool = False  # the plain causal mask, which fused kernels know as `is_causal`

    @property
    def incremental(self) -> bool:
        """Whether later tokens never change what an earlier query attends to."""
        return True

    @property
    def window(self) -> int | None:
        """A query attends to fewer slots back than this; None: to any."""
        return None

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Slots of queries (B)T and keys S or B1S -> (B)TS, True for visible keys; None when all are."""
        return None

    def first_key(self, slot: int) -> int:
        """The first slot that is visible to a query in this slot or a later one."""
        return 0

    def chunk_span(self, length: int) -> ChunkSpan | None:
        """The chunks that hold all visible keys of a text of this length; None: they may be anywhere."""
        return None


class SourcePattern:
    """The base of patterns over the source, in cross-attention."""

    weights_sum_to_one: bool = True

    def source_mask(self, width: int) -> SourceMask:
        """The module for queries of this width."""
        raise NotImplementedError


class SourceMask(nn.Module):
    """Queries BTD in slots (B)T -> B1TS, True for visible keys of the source (None: all), and a factor on weights."""

    padding_only = False  # whether the mask is that of the source's padding, whatever the queries

    def forward(self, queries: Tensor, slots: Tensor, source: Source) -> tuple[Tensor | None, Tensor | None]:
        return source.visible, None

    def window(self, centres: Tensor, length: int, source: Source) -> tuple[Tensor, Tensor]:
        """BT window centres -> B1TS: the keys within `length` of them, and the distance of each key."""
        distance = (torch.arange(source.states.shape[1], device=centres.device) - centres[..., None])[:, None]
        visible = distance.abs() <= length
        return visible if source.visible is None else visible & source.visible, distance

    def last_slot(self, source: Source) -> Tensor:
        """-> B1: the slot of each source's last token."""
        if source.padding is None:
            rows, length = source.states.shape[:2]
            return torch.full((rows, 1), length - 1, device=source.states.device)
        return source.padding.sum(dim=1, keepdim=True).clamp_min(1) - 1


@dataclass(frozen=True)
class Full(SelfPattern, SourcePattern):
    """Every key, before and after the query."""

    def source_mask(self, width: int) -> SourceMask:
        return FullMask()


class FullMask(SourceMask):
    padding_only = True


@dataclass(frozen=True)
class Causal(SelfPattern):
    """The query's own slot and all before it."""

    causal = True
    lower_triangular = True

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        return keys <= queries[..., None]


@dataclass(frozen=True)
class Window(SelfPattern):
    """Causal sliding window: the last `length` slots, the query's own included."""

    length: int = 256
    causal = True

    def __post_init__(self) -> None:
        _require_window(self.length, "model.window", 256)

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        distance = queries[..., None] - keys
        return (distance >= 0) & (distance < self.length)

    @property
    def window(self) -> int | None:
        return self.length

    def first_key(self, slot: int) -> int:
        return max(0, slot - self.length + 1)

    def chunk_span(self, length: int) -> ChunkSpan | None:
        return ChunkSpan(self.length, 1, 0, round_up(length, (self.length,))) if length > self.length else None


@dataclass(frozen=True)
class CentredWindow(SelfPattern):
    """Sliding window of an encoder: less than `length` slots away, before or after."""

    length: int = 256

    def __post_init__(self) -> None:
        _require_window(self.length, "model.window", 256)

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        return (queries[..., None] - keys).abs() < self.length

    def chunk_span(self, length: int) -> ChunkSpan | None:
        return ChunkSpan(self.length, 1, 1, round_up(length, (self.length,))) if length > self.length else None


def chunks_within(before: int, after: int, chunks: int) -> tuple[int, int, int]:
    """The neighbours that a text of so many chunks has, and how often the own chunk counts, as published."""
    most = chunks - 1
    return min(before, most), min(after, most), 1 + max(0, before - most) + max(0, after - most)


@dataclass(frozen=True)
class ChunkWindow(SelfPattern):
    """The query's own chunk of `length` slots and some chunks before and after it: the published Reformer's local
    attention.

    In an encoder the last chunk counts as the one before the first, as published. Also as published, a text of n chunks
    has the own chunk once more in place of each neighbour that is n or more chunks away. Lengths are rounded up to a
    multiple of `all_windows`, the windows of all layers.
    """

    length: int = 64
    before: int = 1
    after: int = 0
    causal: bool = True
    all_windows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_window(self.length, self.before, self.after, self.all_windows)

    @property
    def incremental(self) -> bool:
        return max(self.before, self.after) < 2  # else a longer text has fewer copies of the own chunk

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        if not self.causal:
            return None
        queries = queries[..., None]
        return (keys <= queries) & (queries // self.length - keys // self.length <= self.before)

    @property
    def window(self) -> int | None:
        return (self.before + 1) * self.length if self.causal else None

    def first_key(self, slot: int) -> int:
        return max(0, slot // self.length - self.before) * self.length if self.causal else 0

    def chunk_span(self, length: int) -> ChunkSpan | None:
        padded = round_up(length, self.all_windows or (self.length,))
        before, after, copies = chunks_within(self.before, self.after, padded // self.length)
        span = ChunkSpan(self.length, before, after, padded, not self.causal, copies)
        return span if padded > self.length else None


@dataclass(frozen=True)
class LocalM(SourcePattern):
    """Monotonic local attention (Luong 2015, local-m): source keys within `window` of the query's own slot."""

    window: int = 10

    def __post_init__(self) -> None:
        _require_window(self.window, "model.pattern.window", 10)

    def source_mask(self, width: int) -> SourceMask:
        return LocalMMask(self.window)


class LocalMMask(SourceMask):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, queries: Tensor, slots: Tensor, source: Source) -> tuple[Tensor | None, Tensor | None]:
        return self.window(torch.minimum(slots, self.last_slot(source)), self.length, source)[0], None


@dataclass(frozen=True)
class LocalP(SourcePattern):
    """Predictive local attention (Luong 2015, local-p): source keys within `window` of a predicted centre p_t.

    A Gaussian around p_t multiplies the weights after the softmax, so they sum to one at most.
    """

    window: int = 10
    weights_sum_to_one = False

    def __post_init__(self) -> None:
        _require_window(self.window, "model.pattern.window", 10)

    def source_mask(self, width: int) -> SourceMask:
        return LocalPMask(self.window, width)


class LocalPMask(SourceMask):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.length = length
        self.inner = linear(width, width, biased=False)  # W_p
        self.centre = linear(width, 1, biased=False)  # v_p

    def forward(self, queries: Tensor, slots: Tensor, source: Source) -> tuple[Tensor | None, Tensor | None]:
        predicted = self.centre(self.inner(queries).tanh()).squeeze(-1)
        # Half precision cannot tell neighbouring slots of a long source apart.
        share = predicted.to(torch.promote_types(predicted.dtype, torch.float32)).sigmoid()
        visible, distance = self.window(share * self.last_slot(source), self.length, source)  # p_t = S sigmoid(...)
        std = self.length / 2
        return visible, (-0.5 * (distance / std) ** 2).exp()


Pattern = Full | Causal | Window | CentredWindow | ChunkWindow | LocalM | LocalP


def self_pattern(pattern: Pattern) -> SelfPattern:
    """The pattern of self-attention, refused if it is one over a source."""
    if isinstance(pattern, SelfPattern):
        return pattern
    raise InputError(f"{kind_of(type(pattern))} is a pattern over a source, not of self-attention. Use full or causal.")


def source_pattern(pattern: Pattern) -> SourcePattern:
    """The pattern of attention over the source, refused if it is one of self-attention."""
    if isinstance(pattern, SourcePattern):
        return pattern
    kind = kind_of(type(pattern))
    raise InputError(f"{kind} is a pattern of self-attention, not over a source. Use full, local_m or local_p.")


def check_window(window: int, before: int = 0, after: int = 0, all_windows: tuple[int, ...] = ()) -> None:
    """Refuse windows below 1 and negative numbers of neighbouring chunks."""
    if min((window, *all_windows)) < 1 or min(before, after) < 0:
        raise InputError(
            f"a window of {window} (all_windows {list(all_windows)}) with {before} chunks before it and {after} after "
            "it is impossible (model.pattern). Use a window of 64, one before and none after."
        )


def round_up(length: int, windows: tuple[int, ...]) -> int:
    """A length longer than any window, rounded up to a multiple of all windows."""
    return length if length <= min(windows) else length + -length % math.lcm(*windows)


def _require_window(length: int, key: str, usual: int) -> None:
    if length < 1:
        raise InputError(f"window must be 1 or more, got {length} ({key}). Use {usual}.")
