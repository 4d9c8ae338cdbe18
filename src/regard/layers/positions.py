"""Where a token stands. Each kind of position acts in one place, and says which: on the embedding, inside
self-attention, or on the stack (one bias for all its layers).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.linear import table

Place = Literal["embedding", "attention", "stack"]


class EmbeddedPosition(nn.Module):
    """x BTD and positions (B)T -> BTD."""

    taken = 0  # how much of the stream's width the position takes for itself

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        raise NotImplementedError


def turning(positions: Tensor, width: int, base: float) -> Tensor:
    """(B)T -> (B)T, width / 2: a position's angle at wavelengths growing geometrically from 2 pi to base * 2 pi."""
    half = width // 2
    # In single precision the angles of far positions would be off by more than what tells them apart.
    exact = torch.float64 if positions.device.type != "mps" else torch.float32
    frequencies = base ** (-torch.arange(half, device=positions.device, dtype=exact) / half)
    return positions[..., None] * frequencies


@dataclass(frozen=True)
class Sinusoid:
    """Sines and cosines of geometric wavelengths (Vaswani 2017, section 3.5): sines in the first half of the width,
    cosines in the second, which is the paper's table with its columns reordered.
    """

    base: float = 10_000.0
    place: ClassVar[Place] = "embedding"

    def build(self, width: int) -> SinusoidLayer:
        """The module for a stream of this width."""
        return SinusoidLayer(width, self.base)


class SinusoidLayer(EmbeddedPosition):
    def __init__(self, width: int, base: float) -> None:
        super().__init__()
        if width % 2:
            raise InputError(f"sinusoids need an even width, got {width}. Try {width + 1}.")
        self.width, self.base = width, base

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table(positions)

    def table(self, positions: Tensor) -> Tensor:
        """(B)T -> (B)TD."""
        angles = turning(positions, self.width, self.base)
        return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


@dataclass(frozen=True)
class Learned:
    """A vector for each of the first `longest` positions."""

    max_positions: int = 512
    place: ClassVar[Place] = "embedding"

    def grown(self, max_positions: int) -> Learned:
        """The same for more positions."""
        return replace(self, max_positions=max_positions)

    def build(self, width: int) -> LearnedLayer:
        """The module for a stream of this width."""
        return LearnedLayer(width, self.max_positions)


class LearnedLayer(EmbeddedPosition):
    def __init__(self, width: int, max_positions: int) -> None:
        super().__init__()
        self.max_positions = max_positions
        self.weight = nn.Parameter(table(max_positions, width, 0.02))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table(positions)

    def table(self, positions: Tensor) -> Tensor:
        """(B)T -> (B)TD."""
        return nn.functional.embedding(positions, self.weight)


@dataclass(frozen=True)
class Axial:
    """A vector for each row and one for each column of a grid, side by side (Kitaev 2020, section 4).

    Position p stands in row p // columns and in column p % columns. `widths`: of the two; halves when not said.
    """

    shape: tuple[int, int] = (64, 64)
    widths: tuple[int, int] | None = None
    place: ClassVar[Place] = "embedding"

    def __post_init__(self) -> None:
        for name, pair in (("shape", self.shape), ("widths", self.widths or (1, 1))):
            if min(pair) < 1:
                raise InputError(f"axial positions need {name} of 1 or more, got {list(pair)}. Use [64, 64].")

    @property
    def max_positions(self) -> int:
        """How many positions there are."""
        return self.shape[0] * self.shape[1]

    def grown(self, max_positions: int) -> Axial:
        """The same with as many more rows as it takes."""
        return replace(self, shape=(-(-max_positions // self.shape[1]), self.shape[1]))

    def cut(self, width: int) -> tuple[int, int]:
        """How much of the width is the row's, and how much the column's."""
        return self.widths or (width // 2, width - width // 2)

    def build(self, width: int) -> AxialLayer:
        """The module for a stream of this width."""
        widths = self.cut(width)
        if sum(widths) != width or min(widths) < 1:
            raise InputError(f"axial widths {list(widths)} do not make up a stream of width {width}. Leave them out.")
        return AxialLayer(self.shape, widths)


class AxialLayer(EmbeddedPosition):
    def __init__(self, shape: tuple[int, int], widths: tuple[int, int]) -> None:
        super().__init__()
        self.rows = nn.Parameter(table(shape[0], widths[0], 0.02))
        self.columns = nn.Parameter(table(shape[1], widths[1], 0.02))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table(positions)

    def table(self, positions: Tensor) -> Tensor:
        """(B)T -> (B)TD."""
        columns = len(self.columns)
        row = nn.functional.embedding(positions // columns, self.rows)
        return torch.cat([row, nn.functional.embedding(positions % columns, self.columns)], dim=-1)


@dataclass(frozen=True)
class Concatenated:
    """Stands beside the embedding instead of being added to it, and takes `width` of the stream for itself."""

    width: int = 32
    of: Sinusoid | Learned = field(default_factory=Sinusoid)
    place: ClassVar[Place] = "embedding"

    def build(self, width: int) -> ConcatenatedLayer:
        """The module for a stream of this width."""
        if not 0 < self.width < width:
            raise InputError(f"a position of width {self.width} leaves no room in a stream of width {width}.")
        return ConcatenatedLayer(self.of.build(self.width), self.width)


class ConcatenatedLayer(EmbeddedPosition):
    def __init__(self, inner: SinusoidLayer | LearnedLayer, taken: int) -> None:
        super().__init__()
        self.inner = inner
        self.taken = taken

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        table = self.inner.table(positions).to(x.dtype)
        return torch.cat([x, table.expand(*x.shape[:-1], -1)], dim=-1)


@dataclass(frozen=True)
class Rotary:
    """Turns queries and keys by an angle that grows with their position (Su 2021), so scores see distances only."""

    base: float = 10_000.0
    place: ClassVar[Place] = "attention"

    def build(self, key_width: int) -> RotaryLayer:
        """The module for heads of this width."""
        return RotaryLayer(key_width, self.base)


class RotaryLayer(nn.Module):
    def __init__(self, key_width: int, base: float) -> None:
        super().__init__()
        if key_width % 2:
            raise InputError(f"rotary positions need heads of an even width, got {key_width}. Try another heads.")
        self.key_width, self.base = key_width, base

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """BHTK, (B)T -> BHTK: each pair of dimensions (i, i + K/2) turned by its own angle."""
        angles = turning(positions, self.key_width, self.base)
        angles = angles[:, None] if angles.dim() == 3 else angles
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@dataclass(frozen=True)
class RelativeBias:
    """A learnt number for each head and bucket of distances, added to the scores (Raffel 2019, section 2.1)."""

    buckets: int = 32
    furthest: int = 128
    place: ClassVar[Place] = "stack"

    def __post_init__(self) -> None:
        if self.buckets < 4 or self.furthest <= self.buckets // 2:
            raise InputError(f"relative_bias needs buckets >= 4 and furthest > buckets / 2, got {self}.")

    def build(self, heads: int, causal: bool) -> RelativeBiasLayer:
        """The module for a stack whose layers have these heads."""
        return RelativeBiasLayer(heads, self.buckets, self.furthest, causal)


class RelativeBiasLayer(nn.Module):
    def __init__(self, heads: int, buckets: int, furthest: int, causal: bool) -> None:
        super().__init__()
        self.buckets, self.furthest, self.causal = buckets, furthest, causal
        self.table = nn.Embedding(buckets, heads, _weight=table(buckets, heads, 1.0))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Positions (B)T, (B)S -> (1|B)HTS."""
        bias: Tensor = self.table(self.bucket(keys[..., None, :] - queries[..., :, None])).movedim(-1, -3)
        return bias if bias.dim() == 4 else bias[None]

    def bucket(self, distance: Tensor) -> Tensor:
        """Half the buckets hold one distance each, the other half ever wider ranges up to `furthest`."""
        buckets, offset = self.buckets, torch.zeros_like(distance)
        if self.causal:
            distance = (-distance).clamp_min(0)
        else:
            buckets //= 2
            offset = (distance > 0).long() * buckets
            distance = distance.abs()
        exact = buckets // 2
        ratio = torch.log(distance.clamp_min(1).float() / exact) / math.log(self.furthest / exact)
        wide = exact + (ratio * (buckets - exact)).long()
        return offset + torch.where(distance < exact, distance, wide.clamp_max(buckets - 1))


Embedded = Sinusoid | Learned | Axial | Concatenated
Position = Embedded | Rotary | RelativeBias


def at(place: Place, position: Position | None) -> Position | None:
    """The position if this is the place where it acts, else None."""
    return position if position is not None and position.place == place else None
