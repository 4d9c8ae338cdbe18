"""The decoder's memory in a search: the KV cache, in which the beams of a sentence share slots, and recurrent states.

A beam that continues another moves no keys: the layout (layers/cache.py) says whose tokens are in which slots. Slots
that no beam needs any more are dropped now and then, since that copies the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.layers.cache import Cache, Layout, move_rows
from regard.layers.contract import Memory, concatenate, map_rows

_STEPS = 4  # unused slots are dropped when they are half as many as those needed, and those of so many steps


class BeamMemory:
    """The memory of A sentences with k beams each; one row per sentence until the prompt is read.

    Without a layout, all rows have equally many tokens and slots of their own: greedy search of equal prompts.
    """

    def __init__(self, window: int | None) -> None:
        self.window = window  # no query attends to tokens further back
        self.tree: Memory = None
        self.layout: Layout | None = None
        self.start = 0  # slots in use
        self._check = 0  # the number of slots from which unused ones are looked for
        self._by_row: bool | None = None  # whether there is memory per row, which follows the beams: recurrent states
        self._owned = False  # whether memory per sentence is a copy of our own, not the encoder's output

    def remember(self, tree: Memory, slots: int) -> None:
        """Take the memory after a call of the decoder that filled so many slots."""
        self.tree, self.start = tree, self.start + slots
        if self._by_row is None:
            self._by_row = _has_memory_per_row(tree)

    def use_layout(self, layout: Layout) -> None:
        """From now on, rows have their tokens in different slots; with a layout already, nothing changes."""
        self.layout = self.layout or layout

    def advance(self, positions: Tensor, parents: Tensor | None, stay: Tensor | None) -> None:
        """Keep the sentences `stay` (None: all), and of each the beams `parents` A k (None: its only one).

        Then make place for one more token per beam, at the positions A of their sentences.
        """
        self.keep(stay, parents)
        if self.layout is not None:
            self.layout = self.layout if parents is None else self.layout.reordered(parents)
            if self.layout.end >= self._check or stay is not None:
                self._compact()
            self.start = self.layout.end
            self.layout = self.layout.advanced(positions)

    def keep(self, stay: Tensor | None, parents: Tensor | None) -> None:
        """Keep these sentences, and of their memory per row these beams; caches change in place."""
        if stay is None and not (self._by_row and parents is not None):
            return
        moves = None if stay is None else _moves(stay)
        owned, self._owned = self._owned, self._owned or stay is not None

        def by_row(tensor: Tensor) -> Tensor:
            sentences: Tensor = tensor.unflatten(0, (-1, self.beams))
            sentences = sentences if stay is None else sentences[stay]
            if parents is not None:
                sentences = sentences[torch.arange(len(parents), device=parents.device)[:, None], parents]
            return sentences.flatten(0, 1)

        def shared(tensor: Tensor) -> Tensor:
            if moves is None or stay is None:
                return tensor
            return move_rows(tensor, moves, len(stay)) if owned else tensor.index_select(0, stay)

        def cached(cache: Cache) -> Cache:
            return cache if moves is None or stay is None else cache.moved(moves, len(stay))

        self.tree = map_rows(by_row, self.tree, shared, cached)
        if self.layout is not None and stay is not None:
            self.layout = self.layout.select(stay)

    @property
    def beams(self) -> int:
        """The rows per sentence."""
        return 1 if self.layout is None else self.layout.beams

    def _compact(self) -> None:
        """Drop the slots that no beam needs, if they are many."""
        assert self.layout is not None
        needed, end = self.layout.needed(self.window), self.layout.end
        if not len(needed):
            return
        count = int(needed.sum(dim=1).max())
        self._check = count + count // 2 + _STEPS * self.beams
        if end < self._check:
            return
        self.layout, slots = self.layout.compacted(needed, count)
        room = self._check - count + self.beams
        self.tree = map_rows(
            lambda tensor: tensor, self.tree, lambda tensor: tensor, lambda cache: cache.compacted(slots, end, room)
        )

    def join(self, other: BeamMemory) -> None:
        """Add the sentences of another search."""
        self.tree = concatenate(self.tree, other.tree)
        assert self.layout is not None
        assert other.layout is not None
        self.layout, self._owned = self.layout.joined(other.layout), True
        self.start = self.layout.end - self.beams


def _moves(stay: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that are not in their old places, and their new places."""
    places = (stay != torch.arange(len(stay), device=stay.device)).nonzero().flatten()
    return stay[places], places


def _has_memory_per_row(tree: Memory) -> bool:
    """Whether anything but caches and `Shared` memory is in a tree."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_rows(keep, tree, shared=lambda tensor: tensor, cache=lambda cache: cache)
    return bool(found)
