"""The contract that every sublayer follows, and the words it is written in.

Shapes, in docstrings as arrows: B batch, T queries, S keys, D width, H heads, K key width, V value width, N vocabulary.
Slot = position: token number p of a row stands in slot p of its memory, and padding is on the right only. So a causal
decoder needs no padding mask, and a row's answer cannot depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from regard.layers.record import Record

T = TypeVar("T")

Memory = Any
"""A tree (tuples, dicts, dataclasses) of tensors, or None. Axis 0 is the row, except under `Shared`."""


@dataclass(frozen=True)
class Shared(Generic[T]):
    """Memory that belongs to the sentence, not to the row: all beams of a sentence read the same one."""

    tree: T


@dataclass(frozen=True)
class Source:
    """What the encoder said."""

    states: Tensor  # BSD
    padding: Tensor | None = None  # BS, True where there is a token
    final: Memory = None  # what each encoder layer remembered at the end: recurrent states


@dataclass(frozen=True)
class Ablation:
    """Heads switched off, for experiments: the numbers of the heads, by the name of their layer."""

    heads_off: dict[str, tuple[int, ...]]

    def keep(self, name: str, heads: int) -> Tensor | None:
        """-> H: 1 for a head that speaks, 0 for one that is switched off; None when nothing changes."""
        off = self.heads_off.get(name)
        if not off:
            return None
        kept = torch.ones(heads)
        kept[list(off)] = 0.0
        return kept


class Choices:
    """What was drawn at random inside a layer, so that it can be replayed exactly.

    A replay gives back each value and puts the random state where the first run had left it, so that whatever is drawn
    afterwards (dropout) comes out the same.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[Any, Tensor]] = []
        self._next: int | None = None

    def replay(self) -> Choices:
        """Go back to the first choice, and give instead of make from now on."""
        self._next = 0
        return self

    def choose(self, make: Callable[[], T]) -> T:
        """The first time: make the value and keep it. In a replay: the value kept."""
        if self._next is None:
            value = make()
            self._kept.append((value, torch.get_rng_state()))
            return value
        value, state = self._kept[self._next]
        self._next += 1
        torch.set_rng_state(state)
        return value


@dataclass(frozen=True)
class Context:
    """What a sublayer may look at besides its input; one for the whole stack."""

    padding: Tensor | None = None  # BT, True where there is a token; None when nothing is padded
    source: Source | None = None
    start: int | Tensor = 0  # position of this call's first token, and its slot of memory; per row when prompts differ
    end: int | None = None  # host-side bound of the slots in use; needed only when start is a tensor
    positions: Tensor | None = None  # BT, when they are not simply start, start + 1, ... (packed documents)
    document: Tensor | None = None  # BT, which packed document a token belongs to
    segments: Tensor | None = None  # BT, which of two texts a token belongs to; the embedding reads it
    bias: nn.Module | None = (
        None  # (query positions, key positions) -> (1|B)HTS; the stack sets it, self-attention reads
    )
    remember: bool = False  # true while decoding
    final: bool = True  # whether someone wants to know the state after the last token, of padded rows too
    gradient_checkpointing: bool = False  # true while learning without keeping what is inside a layer for the way back
    record: Record | None = None  # set while someone is looking
    ablation: Ablation | None = None
    all_layers: list[Tensor] | None = None  # given what goes into each layer, and what comes out at the end, when asked
    choices: Choices | None = None
    name: str = ""  # the path to this layer, kept up only while someone looks or changes

    def extent(self, length: int) -> int:
        """How many slots are in use after a call of this length."""
        if self.end is not None:
            return self.end
        assert isinstance(self.start, int), "a start per row needs an end"
        return self.start + length

    def slots(self, length: int, device: torch.device) -> Tensor:
        """-> T or BT: the slot each token of this call goes to."""
        steps = torch.arange(length, device=device)
        return self.start[:, None] + steps if isinstance(self.start, Tensor) else steps + self.start

    def places(self, length: int, device: torch.device) -> Tensor:
        """-> T or BT: the position of each token of this call."""
        return self.slots(length, device) if self.positions is None else self.positions

    def document_ids(self) -> Tensor | None:
        """-> BT: tokens with different numbers never meet: other documents, what is no token (-1); None: all may."""
        if self.document is None:
            return None if self.padding is None else self.padding.int() - 1
        return self.document if self.padding is None else self.document.masked_fill(~self.padding, -1)

    def choose(self, make: Callable[[], T]) -> T:
        """Draw at random, replayably when someone keeps the choices."""
        return make() if self.choices is None else self.choices.choose(make)

    def under(self, part: str) -> Context:
        """The context of a part of this layer; costs nothing when nobody looks."""
        if self.record is None and self.ablation is None:
            return self
        return replace(self, name=f"{self.name}.{part}" if self.name else part)

    def keep(self, states: Tensor) -> None:
        """Keep what stands between two layers, if someone asked for it."""
        if self.all_layers is not None:
            self.all_layers.append(states)

    @property
    def looking(self) -> bool:
        """True when this very layer is asked what it attends to."""
        return self.record is not None and self.record.wanted(self.name)


class Sublayer(nn.Module):
    """x: BTD -> BTD, and what must be remembered for the next call. Nothing is ever kept on the module.

    A call consumes its memory; to branch, `select`. Memory may be returned unasked when it comes free (a recurrent
    state), and must be when `context.remember`.
    """

    tokenwise = False  # a fact, not an option: each token's answer depends on that token only

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        raise NotImplementedError


def map_rows(
    function: Callable[[Tensor], Tensor], tree: Memory, shared: Callable[[Tensor], Tensor] | None = None
) -> Memory:
    """Apply a function to every tensor of a tree; to what sentences own, apply `shared` instead."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Shared):
        return Shared(map_rows(shared or function, tree.tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_rows(function, branch, shared) for branch in tree)
    if isinstance(tree, dict):
        return {key: map_rows(function, branch, shared) for key, branch in tree.items()}
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: map_rows(function, getattr(tree, f.name), shared) for f in fields(tree)})
    raise TypeError(f"a memory holds tensors, not {type(tree).__name__}")


def select(memory: Memory, rows: Tensor, sentences: Tensor | None = None) -> Memory:
    """New row i is old row rows[i]: reorder, repeat, drop. What sentences own moves only when `sentences` is given."""

    def keep(tensor: Tensor) -> Tensor:
        return tensor if sentences is None else tensor.index_select(0, sentences)

    return map_rows(lambda tensor: tensor.index_select(0, rows), memory, shared=keep)


def detach(memory: Memory) -> Memory:
    """The same memory, cut off from the gradients of the past."""
    return map_rows(lambda tensor: tensor.detach(), memory)


@dataclass
class Past:
    """What is carried from one piece of a text to the next: what is remembered, and how many tokens were read."""

    memory: Memory = None
    read: int = 0

    def goes_on(self, memory: Memory, length: int) -> None:
        """After a piece of this length; gradients do not reach back beyond it."""
        self.memory, self.read = detach(memory), self.read + length


def leaves(memory: Memory) -> list[Tensor]:
    """Every tensor of a tree, always in the same order."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_rows(keep, memory)
    return found


def refilled(memory: Memory, tensors: Sequence[Tensor]) -> Memory:
    """The opposite of `leaves`: a tree like this one, of these tensors."""
    left = iter(tensors)
    return map_rows(lambda _: next(left), memory)


def write(buffer: Tensor | None, new: Tensor, context: Context, dim: int) -> Tensor:
    """Write a call's keys (or values) into their slots along `dim`; the buffer grows in blocks."""
    if buffer is None:
        return new
    length, end = new.shape[dim], context.extent(new.shape[dim])
    if end > buffer.shape[dim]:
        buffer = _grown(buffer, end, dim)
    elif torch.is_grad_enabled():
        buffer = buffer.clone()
    if not isinstance(context.start, Tensor):
        buffer.narrow(dim, context.start, length).copy_(new)
        return buffer
    rows = torch.arange(new.shape[0], device=new.device)[:, None]
    buffer.movedim(dim, 1)[rows, context.slots(length, new.device)] = new.movedim(dim, 1)
    return buffer


def _grown(buffer: Tensor, end: int, dim: int) -> Tensor:
    """A copy with room for `end` slots and about a quarter more."""
    shape = list(buffer.shape)
    shape[dim] = max(16, end - shape[dim] + end // 4)
    return torch.cat([buffer, buffer.new_zeros(shape)], dim=dim)
