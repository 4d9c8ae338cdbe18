"""The KV cache: one entry per token, in slots that the beams of a sentence may share.

By default a row has slots of its own, and slot = position. A search gives the beams of a sentence one set of slots, and
a `Layout` says which token is in which slot and whose it is. So beams that change their parent move no keys, rows
of any length have their next token in the same slots, and sentences join or leave without their caches being rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

_ROOM = 16  # slots that a cache grows by, at least


@dataclass(frozen=True)
class Cache:
    """The KV cache of a sublayer: tensors B S ..., one entry per slot along S; keys and values, for instance.

    Its last entry is the one before `context.start`. It may lack the first slots, if no query needs them.
    """

    tensors: tuple[Tensor, ...]
    length: int  # entries in use; there may be room for more

    @property
    def used(self) -> tuple[Tensor, ...]:
        """The entries in use."""
        return self.used_from(0)

    def used_from(self, first: int) -> tuple[Tensor, ...]:
        """The entries in use from the one in slot `first` on."""
        return tuple([tensor.narrow(1, first, self.length - first) for tensor in self.tensors])

    def map(self, function: Callable[[Tensor], Tensor]) -> Cache:
        """Apply a function to the entries in use."""
        return make_cache(*map(function, self.used))

    def moved(self, moves: tuple[Tensor, Tensor], rows: int) -> Cache:
        """The first `rows` rows, after the `moves` (from rows, to rows) of others into their places."""
        return Cache(tuple(move_rows(tensor, moves, rows) for tensor in self.tensors), self.length)

    def compacted(self, slots: Tensor, end: int, room: int) -> Cache:
        """B L of the `end` slots of the layout -> a cache of these entries only, with room for more."""
        missing = end - self.length  # slots at the start, which no query attends to
        slots = (slots - missing).clamp_min(0)
        rows = torch.arange(len(slots), device=slots.device)[:, None] * self.tensors[0].shape[1]
        flat = (F.pad(slots, (0, room)) + rows).flatten()
        found = (tensor.flatten(0, 1).index_select(0, flat) for tensor in self.tensors)
        return Cache(tuple(one.unflatten(0, (len(slots), -1)) for one in found), slots.shape[1])

    def joined(self, other: Cache) -> Cache:
        """The rows of both; zeros before the shorter, so that both end in the same slot, and room for more."""
        length = max(self.length, other.length)
        return Cache(tuple(_join_rows(*pair, length) for pair in zip(self.used, other.used)), length)


def make_cache(*tensors: Tensor) -> Cache:
    """A cache of these entries, B S ... each."""
    return Cache(tensors, tensors[0].shape[1])


def write_memory(cache: Cache | None, *new: Tensor) -> Cache:
    """Append a call's keys and values, B T ... each, to the cache, which grows in blocks."""
    if cache is None:
        return make_cache(*new)
    end = cache.length + new[0].shape[1]
    written = [_append(old, part, cache.length, end) for old, part in zip(cache.tensors, new)]
    return Cache(tuple(written), end)


def _append(buffer: Tensor, new: Tensor, start: int, end: int) -> Tensor:
    if torch._C._is_tracing():  # an exported step appends to any number of entries
        return torch.cat([buffer, new], dim=1)
    if end > buffer.shape[1]:
        room = buffer.new_zeros(len(buffer), max(_ROOM, end // 4), *buffer.shape[2:])
        return torch.cat([buffer[:, :start], new, room], dim=1)
    if torch.is_grad_enabled():
        buffer = buffer.clone()
    buffer.narrow(1, start, end - start).copy_(new)
    return buffer


def move_rows(tensor: Tensor, moves: tuple[Tensor, Tensor], rows: int) -> Tensor:
    """The first `rows` rows, after others were copied into their places, in place."""
    sources, places = moves
    if len(places):
        tensor.index_copy_(0, places, tensor.index_select(0, sources))
    return tensor[:rows]


def _join_rows(one: Tensor, other: Tensor, length: int) -> Tensor:
    joined = one.new_empty(len(one) + len(other), length + _ROOM, *one.shape[2:])
    for part, rows in ((one, joined[: len(one)]), (other, joined[len(one) :])):
        missing = length - part.shape[1]
        rows[:, :missing] = 0  # attention multiplies unused values by 0, so they must be numbers
        rows[:, missing:length] = part
    return joined


@dataclass(frozen=True)
class Layout:
    """Which token is in which slot of the caches of A sentences, the last k slots being those of this call's tokens.

    All beams of a sentence have tokens at the same positions, k different ones where they differ.
    """

    positions: Tensor  # A S: the position of the token in each slot
    visible: Tensor  # A k S: whether the token is one of the beam's own; False in unused slots

    @classmethod
    def of_prompts(cls, padding: Tensor) -> Layout:
        """The layout of prompts A S, one row each; padding is False after their last tokens."""
        return cls(torch.arange(padding.shape[1], device=padding.device).expand(len(padding), -1), padding[:, None])

    @property
    def end(self) -> int:
        """The number of slots."""
        return self.positions.shape[1]

    @property
    def beams(self) -> int:
        """The number of rows per sentence."""
        return self.visible.shape[1]

    @cached_property
    def query_positions(self) -> Tensor:
        """-> A k: the positions of this call's tokens."""
        return self.positions[:, self.end - self.beams :]

    def own_keys(self, length: int) -> Tensor:
        """-> A 1 k S: `visible` for the keys in the last `length` slots."""
        return self._visible if length == self.end else self._visible[..., self.end - length :]

    @cached_property
    def _visible(self) -> Tensor:
        return self.visible[:, None]

    @cached_property
    def mask(self) -> Tensor:
        """-> A 1 k S: the mask of causal attention, added to the scores."""
        mask = torch.zeros(self.visible.shape, device=self.visible.device)
        return mask.masked_fill_(~self.visible, -torch.inf)[:, None]

    def advanced(self, positions: Tensor) -> Layout:
        """The layout for one more token per beam, at positions A."""
        beams = self.beams
        own = torch.eye(beams, dtype=torch.bool, device=self.visible.device).expand(len(self.visible), -1, -1)
        more = positions[:, None].expand(-1, beams)
        return Layout(torch.cat([self.positions, more], dim=1), torch.cat([self.visible, own], dim=2))

    def reordered(self, parents: Tensor) -> Layout:
        """The layout of beams that continue their parents A k."""
        return Layout(self.positions, self.visible.gather(1, parents[..., None].expand(-1, -1, self.end)))

    def select(self, sentences: Tensor) -> Layout:
        """The layout of these sentences."""
        return Layout(self.positions[sentences], self.visible[sentences])

    def needed(self, window: int | None) -> Tensor:
        """-> A S: the slots that a later token may attend to."""
        needed = self.visible.any(dim=1)
        if window is None:
            return needed
        last = self.positions.masked_fill(~needed, -1).amax(dim=1, keepdim=True)
        return needed & (self.positions > last - window)

    def compacted(self, needed: Tensor, length: int) -> tuple[Layout, Tensor]:
        """The layout of the needed slots only, each sentence's at the right, and these slots A L."""
        slots = needed.to(torch.uint8).argsort(dim=1, stable=True)[:, self.end - length :]
        visible = (self.visible & needed[:, None]).gather(2, slots[:, None].expand(-1, self.beams, -1))
        return Layout(self.positions.gather(1, slots), visible), slots

    def joined(self, other: Layout) -> Layout:
        """The sentences of both; unused slots before the shorter."""
        end = max(self.end, other.end)
        parts = [(one.positions, one.visible, end - one.end) for one in (self, other)]
        return Layout(
            torch.cat([F.pad(positions, (missing, 0)) for positions, _, missing in parts]),
            torch.cat([F.pad(visible, (missing, 0)) for _, visible, missing in parts]),
        )


def fold_beams(x: Tensor, layout: Layout | None) -> Tensor:
    """R 1 D -> A k D: the beams of a sentence as queries of one row; unchanged without a layout."""
    return x if layout is None else x.reshape(-1, layout.beams, x.shape[-1])


def query_positions(positions: Tensor, layout: Layout | None) -> Tensor:
    """The positions of the queries of folded beams."""
    return positions if layout is None else layout.query_positions


def fill_gaps(stay: Sequence[int]) -> list[int]:
    """The rows that stay, each in its place if there still is such a place; the others fill the gaps."""
    count, kept = len(stay), set(stay)
    others = (row for row in stay if row >= count)
    return [place if place in kept else next(others) for place in range(count)]
