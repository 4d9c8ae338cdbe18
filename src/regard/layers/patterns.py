"""Which keys a query sees.

In its own sequence by their slots alone: padding and packed documents are the attention's business. In the source by
its place there (`Focus`): everywhere, about the query's own place, or about a place that it predicts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.contract import Source
from regard.layers.linear import linear


class Near(NamedTuple):
    """Chunks in which a pattern finds all that it sees: their length, how many before and after one's own."""

    chunk: int
    before: int
    after: int
    whole: int  # the text's length, a whole number of chunks
    joined: bool = False  # the last chunk counts as the one before the first


def require_chunks(window: int, before: int = 0, after: int = 0, among: tuple[int, ...] = ()) -> None:
    """Refuse windows without a token, and fewer than no neighbours."""
    if min((window, *among)) < 1 or min(before, after) < 0:
        raise InputError(
            f"a window of {window} among {list(among)} with {before} chunks before it and {after} after it cannot be "
            "(model.see). Use a window of 64, one before and none after."
        )


def rounded(length: int, windows: tuple[int, ...]) -> int:
    """A length longer than any window, rounded up so that all divide it."""
    return length if length <= min(windows) else length + -length % math.lcm(*windows)


@dataclass(frozen=True)
class Everything:
    """Every key, both ways."""

    causal: ClassVar[bool] = False
    triangle: ClassVar[bool] = False
    whole: ClassVar[bool] = True

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Slots of queries (B)T and keys S -> (B)TS of booleans, or None when nothing is hidden."""
        return None

    def since(self, slot: int) -> int:
        """The first slot that a query in this slot, or a later one, sees."""
        return 0

    def near(self, length: int) -> Near | None:
        """Nothing is near only."""
        return None

    def focus(self, width: int) -> Focus:
        """The module for queries of this width to a source."""
        return Focus()


@dataclass(frozen=True)
class Causal:
    """The query's own slot and all before it."""

    causal: ClassVar[bool] = True
    triangle: ClassVar[bool] = True  # the plain shape that fused kernels know

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Slots of queries (B)T and keys S -> (B)TS of booleans."""
        return keys <= queries[..., None]

    def since(self, slot: int) -> int:
        """The first slot that a query in this slot, or a later one, sees."""
        return 0

    def near(self, length: int) -> Near | None:
        """Nothing is near only."""
        return None


@dataclass(frozen=True)
class Window:
    """The last `length` slots, the query's own among them."""

    length: int = 256
    causal: ClassVar[bool] = True
    triangle: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _require("window", self.length, 256)

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Slots of queries (B)T and keys S -> (B)TS of booleans."""
        behind = queries[..., None] - keys
        return (behind >= 0) & (behind < self.length)

    def since(self, slot: int) -> int:
        """The first slot that a query in this slot, or a later one, sees."""
        return max(0, slot - self.length + 1)

    def near(self, length: int) -> Near | None:
        """Where all that is seen of a text of this length is found; None: anywhere in it."""
        return Near(self.length, 1, 0, rounded(length, (self.length,))) if length > self.length else None


@dataclass(frozen=True)
class Around:
    """Less than `length` slots away, before or after."""

    length: int = 256
    causal: ClassVar[bool] = False
    triangle: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _require("window", self.length, 256)

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Slots of queries (B)T and keys S -> (B)TS of booleans."""
        return (queries[..., None] - keys).abs() < self.length

    def since(self, slot: int) -> int:
        """The first slot that a query in this slot, or a later one, sees."""
        return 0

    def near(self, length: int) -> Near | None:
        """Where all that is seen of a text of this length is found; None: anywhere in it."""
        return Near(self.length, 1, 1, rounded(length, (self.length,))) if length > self.length else None


@dataclass(frozen=True)
class Neighbours:
    """One's own chunk of `length` slots and some before and after it: the published Reformer's local attention.

    Where it looks ahead too, the last chunk counts as the one before the first, as it does there. Lengths are rounded
    up so that `among`, the windows of all layers, divide them.
    """

    length: int = 64
    before: int = 1
    after: int = 0
    causal: bool = True
    among: tuple[int, ...] = ()
    triangle: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_chunks(self.length, self.before, self.after, self.among)

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Slots of queries (B)T and keys S -> (B)TS of booleans, or None when nothing is hidden."""
        if not self.causal:
            return None
        apart = queries[..., None] // self.length - keys // self.length
        return (keys <= queries[..., None]) & (apart <= self.before)

    def since(self, slot: int) -> int:
        """The first slot that a query in this slot, or a later one, sees."""
        return max(0, slot // self.length - self.before) * self.length if self.causal else 0

    def near(self, length: int) -> Near | None:
        """Where all that is seen of a text of this length is found; None: anywhere in it."""
        whole = rounded(length, self.among or (self.length,))
        return Near(self.length, self.before, self.after, whole, not self.causal) if whole > self.length else None


Pattern = Everything | Causal | Window | Around | Neighbours


class Focus(nn.Module):
    """Queries BTD in slots (B)T -> which of the source's keys they see B1TS (None: all), and a factor on weights."""

    def forward(self, queries: Tensor, slots: Tensor, source: Source) -> tuple[Tensor | None, Tensor | None]:
        return None if source.padding is None else source.padding[:, None, None, :], None

    def near(self, centres: Tensor, reach: int, source: Source) -> tuple[Tensor, Tensor]:
        """BT centres -> which keys are within reach, and how far each is: B1TS."""
        distance = (torch.arange(source.states.shape[1], device=centres.device) - centres[..., None])[:, None]
        seen = distance.abs() <= reach
        return seen if source.padding is None else seen & source.padding[:, None, None, :], distance

    def last(self, source: Source) -> Tensor:
        """-> B1: the slot of each source's last token."""
        if source.padding is None:
            rows, length = source.states.shape[:2]
            return torch.full((rows, 1), length - 1, device=source.states.device)
        return source.padding.sum(dim=1, keepdim=True).clamp_min(1) - 1


@dataclass(frozen=True)
class LocalM:
    """Keys within `reach` of the query's own place, or of the last key (Luong 2015: local-m, monotonic)."""

    reach: int = 10
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require("reach", self.reach, 10)

    def focus(self, width: int) -> Focus:
        """The module for queries of this width."""
        return LocalMFocus(self.reach)


class LocalMFocus(Focus):
    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach

    def forward(self, queries: Tensor, slots: Tensor, source: Source) -> tuple[Tensor | None, Tensor | None]:
        return self.near(torch.minimum(slots, self.last(source)), self.reach, source)[0], None


@dataclass(frozen=True)
class LocalP:
    """Keys within `reach` of a place that the query predicts, fading away from it (Luong 2015: local-p).

    The bell curve comes after the softmax, so weights sum to one at most.
    """

    reach: int = 10
    whole: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _require("reach", self.reach, 10)

    def focus(self, width: int) -> Focus:
        """The module for queries of this width."""
        return LocalPFocus(self.reach, width)


class LocalPFocus(Focus):
    def __init__(self, reach: int, width: int) -> None:
        super().__init__()
        self.reach = reach
        self.inner = linear(width, width, biased=False)
        self.place = linear(width, 1, biased=False)

    def forward(self, queries: Tensor, slots: Tensor, source: Source) -> tuple[Tensor | None, Tensor | None]:
        # A place must be told from its neighbour in long texts too, so not in half precision.
        share = self.place(self.inner(queries).tanh()).squeeze(-1).float().sigmoid()
        seen, distance = self.near(share * self.last(source), self.reach, source)
        spread = self.reach / 2
        return seen, (-0.5 * (distance / spread) ** 2).exp()


SourcePattern = Everything | LocalM | LocalP


def gathered(asking: Tensor, slots: Tensor, sentences: int) -> tuple[Tensor, Tensor]:
    """Rows RTD in slots (R)T -> a sentence's beams as more of its queries: B, beams * T, D, and their slots BT."""
    rows, queries = asking.shape[:2]
    slots = slots.expand(rows, queries)
    return asking.reshape(sentences, -1, asking.shape[-1]), slots.reshape(sentences, -1)


def _require(name: str, length: int, usual: int) -> None:
    if length < 1:
        raise InputError(f"{name} must be 1 or more, got {length} (model.{name}). Use {usual}.")
