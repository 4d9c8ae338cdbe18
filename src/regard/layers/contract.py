"""The contract of every sublayer: context in, memory out. Memory is the KV cache of attention or a recurrent state.

Shapes, in docstrings as arrows: B batch, T queries, S keys, D width, H heads, K key width, V value width, N vocabulary.
Slot = position: token p of a row is written to slot p of its memory, and padding is on the right only. A causal decoder
therefore needs no padding mask, and the output of a row cannot depend on the other rows of its batch. Only a search
lays memory out in another way, and says so in `Context.layout` (cache.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.cache import Cache, Layout
from regard.layers.cache import fold_beams as fold_beams
from regard.layers.cache import query_positions as query_positions
from regard.layers.cache import write_memory as write_memory
from regard.layers.positions import AttachedPosition
from regard.layers.record import Record

T = TypeVar("T")

_MOST = {"depth": 1000, "decoder_depth": 1000}  # layers; a stack of 1,000 takes seconds to build
_MOST_OTHERS = 1 << 24

Memory = Any
"""KV cache or recurrent state: a tree (tuples, dicts, dataclasses) of tensors, or None. Axis 0 is the row, except under
`Shared`, and in a `Cache` that beams share."""


@dataclass(frozen=True)
class Shared(Generic[T]):
    """Memory with one entry per sentence instead of one per row: all beams of a sentence share the source's keys."""

    tree: T


@dataclass(frozen=True)
class Source:
    """The encoder's output."""

    states: Tensor  # BSD
    padding: Tensor | None = None  # BS, True where there is a token
    final_state: Memory = None  # the memory of each encoder layer after the last token: recurrent states
    embedded: Tensor | None = None  # BSD: the embedded source tokens, the encoder's input

    @cached_property
    def visible(self) -> Tensor | None:
        """-> B11S: True where there is a token; None: everywhere."""
        return None if self.padding is None else self.padding[:, None, None]

    @cached_property
    def mask(self) -> Tensor | None:
        """-> B11S: minus infinity for padding, which attention adds to its scores in all layers and steps."""
        if self.padding is None:
            return None
        hidden = torch.zeros(self.padding.shape, device=self.padding.device).masked_fill_(~self.padding, -torch.inf)
        return hidden[:, None, None]


@dataclass(frozen=True)
class Ablation:
    """Head ablation: the numbers of the heads to switch off, by the name of their layer."""

    heads: dict[str, tuple[int, ...]]

    def head_mask(self, name: str, heads: int) -> Tensor | None:
        """-> H: 0 for the ablated heads of a layer, 1 for the others; None when the layer keeps all."""
        ablated = self.heads.get(name)
        if not ablated:
            return None
        mask = torch.ones(heads)
        mask[list(ablated)] = 0.0
        return mask


class RandomChoices:
    """Random draws of a layer, kept so that a recomputation in the backward pass replays them exactly.

    A replay returns each kept value and restores the random state that followed it, so that later draws (dropout) are
    the same too.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[Any, Tensor]] = []
        self._next: int | None = None

    def replay(self) -> RandomChoices:
        """Start again at the first draw, and return kept values from now on."""
        self._next = 0
        return self

    def draw(self, sample: Callable[[], T]) -> T:
        """Draw and keep a value, or return the kept one in a replay."""
        if self._next is None:
            value = sample()
            self._kept.append((value, torch.get_rng_state()))
            return value
        value, state = self._kept[self._next]
        self._next += 1
        torch.set_rng_state(state)
        return value


@dataclass(frozen=True)
class Context:
    """What a sublayer may read besides its input; one context for the whole stack."""

    padding: Tensor | None = None  # BT, True where there is a token; None when nothing is padded
    source: Source | None = None
    start: int = 0  # the slot of this call's first token: its position, unless there is a layout
    layout: Layout | None = None  # where tokens are in memory, when rows differ: one new token per row, slots shared
    positions: Tensor | None = None  # BT, when they are not simply start, start + 1, ... (packed documents)
    document: Tensor | None = None  # BT, which packed document a token belongs to
    segments: Tensor | None = None  # BT, which of two texts a token belongs to; read by the embedding (BERT)
    position_bias: nn.Module | None = None  # (query, key positions) -> (1|B)HTS, added to scores; set by the stack
    embedded: Tensor | None = None  # BTD: the embedded tokens of this call; set by a stack with a layer that reads them
    remember: bool = False  # return memory: true while decoding
    final_state: bool = True  # whether the recurrent state after the last token is needed, of padded rows too
    gradient_checkpointing: bool = False  # keep only each layer's input for the backward pass, recompute the rest
    record: Record | None = None  # where attention weights are recorded
    ablation: Ablation | None = None
    all_layers: list[Tensor] | None = None  # if a list: filled with each layer's input, and the stack's output
    random_choices: RandomChoices | None = None
    name: str = ""  # the path to this layer; kept up only while weights are recorded or heads ablated

    def slots(self, length: int, device: torch.device) -> Tensor:
        """-> T or BT: the number of tokens before each token of this call, in its row."""
        if self.layout is not None:
            return self.layout.query_positions.reshape(-1, 1)
        return torch.arange(self.start, self.start + length, device=device)

    def token_positions(self, length: int, device: torch.device) -> Tensor:
        """-> T or BT: the position of each token of this call."""
        return self.slots(length, device) if self.positions is None else self.positions

    def document_ids(self) -> Tensor | None:
        """-> BT: tokens with different ids never attend to each other; padding has -1; None: all have the same id."""
        if self.document is None:
            return None if self.padding is None else self.padding.int() - 1
        return self.document if self.padding is None else self.document.masked_fill(~self.padding, -1)

    def draw(self, sample: Callable[[], T]) -> T:
        """Draw at random, so that the backward pass can replay it where it recomputes the layer."""
        return sample() if self.random_choices is None else self.random_choices.draw(sample)

    def child(self, name: str) -> Context:
        """The context of a child module; free unless weights are recorded or heads ablated."""
        if self.record is None and self.ablation is None:
            return self
        return replace(self, name=f"{self.name}.{name}" if self.name else name)

    def add_layer(self, states: Tensor) -> None:
        """Append the hidden states between two layers to `all_layers`, if it is a list."""
        if self.all_layers is not None:
            self.all_layers.append(states)

    @property
    def recording(self) -> bool:
        """True when the attention weights of this very layer are recorded."""
        return self.record is not None and self.record.wanted(self.name)

    @property
    def output_is_unused(self) -> bool:
        """True when this layer may output zeros, since its attention is recorded only for its size."""
        return self.recording and self.record is not None and not self.record.needs_outputs


class Sublayer(nn.Module):
    """x: BTD -> BTD, and the memory for the next call. Nothing is ever kept on the module.

    A call may overwrite the memory it gets: to branch, copy it with `select`. Memory is returned if `context.remember`,
    or where it costs nothing (a recurrent state).
    """

    position_wise = False  # a fact, not an option: the output of a token depends on that token only

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        raise NotImplementedError


@dataclass(frozen=True)
class Facts:
    """What the rest of the program may rely on about a sublayer without knowing its class."""

    heads: int = 0  # attention heads whose weights are recorded and that can be ablated; 0: no attention
    causal: bool = False  # in self-attention: no query attends to a later key
    position: AttachedPosition | None = None  # applied to its queries and keys
    adds_position_bias: bool = False  # adds `context.position_bias` to its scores
    constant_memory: bool = False  # its memory does not grow with the text
    incremental: bool = True  # later tokens never change earlier outputs, so memory replaces recomputation
    packs: bool = False  # keeps packed documents apart (`context.document`)
    weights_sum_to_one: bool = True  # of every query that may attend to some key
    reads_embedding: bool = False  # reads `context.embedded` besides the stream
    window: int | None = None  # a query attends to fewer tokens back than this; None: to any, if to any


class Part(Protocol):
    """The description of a sublayer: a frozen dataclass with a name (the layer's key in a record) and `build`.

    It may state its `facts`, as a class variable or a property.
    """

    name: ClassVar[str]

    def build(self, width: int, source_width: int | None = None) -> Sublayer:
        """The module for a stream of this width over a source of that width."""


@runtime_checkable
class StatesFacts(Protocol):
    """A part that states its facts."""

    @property
    def facts(self) -> Facts:
        """The facts."""


def require_counts(**counts: int | None) -> None:
    """Refuse a size of a model that is below 1 or absurdly large; None stands for a default."""
    for name, count in counts.items():
        most = _MOST.get(name, _MOST_OTHERS)
        if count is not None and not 1 <= count <= most:
            bound = "1 or more" if count < 1 else f"at most {most:,}"
            raise InputError(f"{name} must be {bound}, got {count:,}.")


def facts_of(part: Part) -> Facts:
    """The facts of a part. One that states none is safe, if not fast: decoding recomputes it and uses no memory."""
    return part.facts if isinstance(part, StatesFacts) else Facts(incremental=False)


def map_rows(
    function: Callable[[Tensor], Tensor], tree: Memory, shared: Callable[[Tensor], Tensor] | None = None,
    cache: Callable[[Cache], Cache] | None = None,
) -> Memory:  # fmt: skip
    """Apply a function to every tensor of a tree; `shared` instead to those under `Shared`, `cache` to each `Cache`."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Cache):
        return tree.map(function) if cache is None else cache(tree)
    if isinstance(tree, Shared):
        return Shared(map_rows(shared or function, tree.tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_rows(function, branch, shared, cache) for branch in tree)
    if isinstance(tree, dict):
        return {key: map_rows(function, branch, shared, cache) for key, branch in tree.items()}
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: map_rows(function, getattr(tree, f.name), shared, cache) for f in fields(tree)})
    raise TypeError(f"a memory holds tensors, not {type(tree).__name__}")


def select(memory: Memory, rows: Tensor, sentences: Tensor | None = None) -> Memory:
    """New row i is old row rows[i]: reorder, repeat or drop beams. `Shared` memory follows `sentences`, if given."""

    def keep(tensor: Tensor) -> Tensor:
        return tensor if sentences is None else tensor.index_select(0, sentences)

    return map_rows(lambda tensor: tensor.index_select(0, rows), memory, shared=keep)


def concatenate(one: Memory, other: Memory) -> Memory:
    """The rows of two memories of the same structure, one after the other, under `Shared` too.

    Where sizes differ, zeros are added on the right, or before the entries of a `Cache`; a mask is False there.
    """
    mine, theirs = leaves(one), leaves(other)
    if len(mine) != len(theirs):
        raise TypeError(f"memories of {len(mine)} and {len(theirs)} tensors have no rows to put together")
    tensors, caches = iter(theirs), iter(_caches(other))

    def join_caches(cache: Cache) -> Cache:
        for _ in cache.tensors:
            next(tensors)
        return cache.joined(next(caches))

    return map_rows(lambda tensor: _concatenate_rows(tensor, next(tensors)), one, cache=join_caches)


def _caches(memory: Memory) -> list[Cache]:
    """Every cache of a tree, in the order of its leaves."""
    found: list[Cache] = []

    def keep(cache: Cache) -> Cache:
        found.append(cache)
        return cache

    map_rows(lambda tensor: tensor, memory, cache=keep)
    return found


def _concatenate_rows(one: Tensor, other: Tensor) -> Tensor:
    sizes = [max(both) for both in zip(one.shape, other.shape)][1:]

    def padded(tensor: Tensor) -> Tensor:
        missing = [size - had for size, had in zip(sizes, tensor.shape[1:])]
        return F.pad(tensor, [side for count in reversed(missing) for side in (0, count)]) if any(missing) else tensor

    return torch.cat([padded(one), padded(other)])


def detach(memory: Memory) -> Memory:
    """The same memory without its gradient history."""
    return map_rows(lambda tensor: tensor.detach(), memory)


@dataclass
class CarriedMemory:
    """Memory carried from one segment of a text to the next, for truncated BPTT and sliding windows."""

    memory: Memory = None
    position: int = 0  # of the next token: the number of tokens read so far

    def advance(self, memory: Memory, length: int) -> None:
        """Take the memory after a segment of this length; gradients stop at its start (truncated BPTT)."""
        self.memory, self.position = detach(memory), self.position + length


def leaves(memory: Memory) -> list[Tensor]:
    """Every tensor of a tree, always in the same order."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_rows(keep, memory)
    return found


def with_leaves(memory: Memory, tensors: Sequence[Tensor]) -> Memory:
    """The inverse of `leaves`: a tree of the same structure with these tensors."""
    left = iter(tensors)
    return map_rows(lambda _: next(left), memory)
