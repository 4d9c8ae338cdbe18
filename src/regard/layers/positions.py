"""Positional encodings: sinusoidal, learned, axial, rotary, relative bias and ALiBi, in one union `Position`.

Each attaches to one of three slots: the embedding (a vector per position), self-attention (which rotates queries and
keys) or the stack (a bias on the scores of all its layers). A new one is written here: a description that extends the
base class of its slot, the module it builds, and its name in `Position`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self, TypeVar, get_args

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.schema import kind_of

Slot = Literal["embedding", "attention", "stack"]


@dataclass(frozen=True)
class Curves:
    """What `regard show` draws of a position. table: positions x width; rotary: cosines, then sines, in that shape;
    bias: heads x distances, from the query back, or key minus query where a stack attends to both sides.
    """

    kind: Literal["table", "rotary", "bias"]
    values: Tensor
    first: int = 0  # the position or distance of the first row


class AttachedPosition:
    """The base of every description of a position."""

    attaches: ClassVar[Slot]

    @property
    def max_positions(self) -> int | None:
        """How many positions there are; None when any position has an encoding."""
        return None

    def grown(self, max_positions: int) -> Self:
        """The same for more positions."""
        return self


class EmbeddingPosition(AttachedPosition):
    """A position that the embedding adds to its tokens' vectors, or appends to them."""

    attaches = "embedding"

    def build(self, width: int) -> EmbeddingPositionLayer:
        """The module for a stream of this width."""
        raise NotImplementedError


class EmbeddingPositionLayer(nn.Module):
    """x BTD and positions (B)T -> BTD."""

    own_width = 0  # the part of the stream's width that holds the position alone

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table(positions)

    def table(self, positions: Tensor) -> Tensor:
        """(B)T -> (B)TD."""
        raise NotImplementedError

    def curves(self, positions: Tensor) -> Curves:
        """What to draw of positions T."""
        return Curves("table", self.table(positions))


class AttentionPosition(AttachedPosition):
    """A position that self-attention applies to its queries and keys."""

    attaches = "attention"

    def build(self, key_width: int) -> AttentionPositionLayer:
        """The module for heads of this width."""
        raise NotImplementedError


class AttentionPositionLayer(nn.Module):
    """Queries or keys BHTK and positions (B)T -> BHTK."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        raise NotImplementedError

    def curves(self, positions: Tensor) -> Curves | None:
        """What to draw of positions T; None: nothing."""
        return None


class StackPosition(AttachedPosition):
    """A position bias: a number per head and distance, added to the scores of all self-attention layers of a stack."""

    attaches = "stack"

    def build(self, heads: int, causal: bool) -> PositionBias:
        """The module for a stack whose layers have these heads."""
        raise NotImplementedError


class PositionBias(nn.Module):
    """Positions (B)T of queries and (B)S of keys -> (1|B)HTS."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        bias = self.bias(keys[..., None, :] - queries[..., :, None])
        return bias if bias.dim() == 4 else bias[None]

    def bias(self, distance: Tensor) -> Tensor:
        """Key minus query position (B)TS -> (B)HTS."""
        raise NotImplementedError

    def curves(self, positions: Tensor) -> Curves:
        """What to draw of positions T."""
        back = -positions if self.causal else torch.cat([-positions.flip(0), positions[1:]])
        return Curves("bias", self.bias(back[None])[:, 0], 0 if self.causal else 1 - len(positions))


def normal_table(rows: int, width: int, std: float) -> Tensor:
    """Vectors drawn from a normal distribution; empty on the meta device, where drawing imports much of torch."""
    weight = torch.empty(rows, width)
    return weight if weight.is_meta else nn.init.normal_(weight, std=std)


def angles_of(positions: Tensor, width: int, base: float, scaling: RotaryScaling | None = None) -> Tensor:
    """(B)T -> (B)T, width / 2: a position's angles at wavelengths growing geometrically from 2 pi to base * 2 pi."""
    half = width // 2
    # In single precision the angles of distant positions would have errors larger than their differences.
    exact = torch.float64 if positions.device.type != "mps" else torch.float32
    frequencies = base ** (-torch.arange(half, device=positions.device, dtype=exact) / half)
    return positions[..., None] * (frequencies if scaling is None else scaling.scale(frequencies))


@dataclass(frozen=True)
class Sinusoid(EmbeddingPosition):
    """Sines and cosines of geometric wavelengths (Vaswani 2017, section 3.5): sines in the first half of the width,
    cosines in the second, which is the paper's table with its columns reordered.
    """

    base: float = 10_000.0
    first: int = 0  # the position of the first token

    def build(self, width: int) -> SinusoidLayer:
        return SinusoidLayer(width, self.base, self.first)


class SinusoidLayer(EmbeddingPositionLayer):
    def __init__(self, width: int, base: float, first: int = 0) -> None:
        super().__init__()
        if width % 2:
            raise InputError(f"sinusoids need an even width, got {width}. Try {width + 1}.")
        self.width, self.base, self.first = width, base, first

    def table(self, positions: Tensor) -> Tensor:
        angles = angles_of(positions + self.first, self.width, self.base)
        return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


@dataclass(frozen=True)
class Learned(EmbeddingPosition):
    """A trained vector for each of the first `max_positions` positions."""

    max_positions: int = 512

    def grown(self, max_positions: int) -> Self:
        return replace(self, max_positions=max_positions)

    def build(self, width: int) -> LearnedLayer:
        return LearnedLayer(width, self.max_positions)


class LearnedLayer(EmbeddingPositionLayer):
    def __init__(self, width: int, max_positions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal_table(max_positions, width, 0.02))

    def table(self, positions: Tensor) -> Tensor:
        return nn.functional.embedding(positions, self.weight)


@dataclass(frozen=True)
class Axial(EmbeddingPosition):
    """A vector for each row and one for each column of a grid, concatenated (Kitaev 2020, section 4).

    Position p is in row p // columns and in column p % columns. `widths`: of the two vectors; by default halves.
    """

    shape: tuple[int, int] = (64, 64)
    widths: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name, pair in (("shape", self.shape), ("widths", self.widths or (1, 1))):
            if min(pair) < 1:
                raise InputError(f"axial positions need {name} of 1 or more, got {list(pair)}. Use [64, 64].")

    @property
    def max_positions(self) -> int:
        return self.shape[0] * self.shape[1]

    def grown(self, max_positions: int) -> Self:
        return replace(self, shape=(-(-max_positions // self.shape[1]), self.shape[1]))

    def split_width(self, width: int) -> tuple[int, int]:
        """The widths of the row's and the column's vector."""
        return self.widths or (width // 2, width - width // 2)

    def build(self, width: int) -> AxialLayer:
        widths = self.split_width(width)
        if sum(widths) != width or min(widths) < 1:
            raise InputError(f"axial widths {list(widths)} do not make up a stream of width {width}. Leave them out.")
        return AxialLayer(self.shape, widths)


class AxialLayer(EmbeddingPositionLayer):
    def __init__(self, shape: tuple[int, int], widths: tuple[int, int]) -> None:
        super().__init__()
        self.rows = nn.Parameter(normal_table(shape[0], widths[0], 0.02))
        self.columns = nn.Parameter(normal_table(shape[1], widths[1], 0.02))

    def table(self, positions: Tensor) -> Tensor:
        columns = len(self.columns)
        row = nn.functional.embedding(positions // columns, self.rows)
        return torch.cat([row, nn.functional.embedding(positions % columns, self.columns)], dim=-1)


@dataclass(frozen=True)
class Concatenated(EmbeddingPosition):
    """Appended to the token's vector instead of added to it; takes `width` of the stream for itself."""

    width: int = 32
    of: Sinusoid | Learned = field(default_factory=Sinusoid)

    @property
    def max_positions(self) -> int | None:
        return self.of.max_positions

    def grown(self, max_positions: int) -> Self:
        return replace(self, of=self.of.grown(max_positions))

    def build(self, width: int) -> ConcatenatedLayer:
        if not 0 < self.width < width:
            raise InputError(f"a position of width {self.width} leaves no room in a stream of width {width}.")
        return ConcatenatedLayer(self.of.build(self.width), self.width)


class ConcatenatedLayer(EmbeddingPositionLayer):
    def __init__(self, inner: EmbeddingPositionLayer, own_width: int) -> None:
        super().__init__()
        self.inner, self.own_width = inner, own_width

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        table = self.table(positions).to(x.dtype)
        return torch.cat([x, table.expand(*x.shape[:-1], -1)], dim=-1)

    def table(self, positions: Tensor) -> Tensor:
        return self.inner.table(positions)


@dataclass(frozen=True)
class Interpolated:
    """Position interpolation (Chen 2023): all frequencies divided by a factor, for texts so much longer."""

    factor: float = 2.0

    def __post_init__(self) -> None:
        _require_factor(self.factor)

    def scale(self, frequencies: Tensor) -> Tensor:
        """The frequencies of longer texts."""
        return frequencies / self.factor


@dataclass(frozen=True)
class InterpolatedByWavelength:
    """Interpolation of Llama 3.1: wavelengths that fit into `trained_length` less than `low` times are divided by the
    factor, those that fit more than `high` times stay, and those between are mixed.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    trained_length: int = 8192

    def __post_init__(self) -> None:
        _require_factor(self.factor)
        if not 0 < self.low < self.high < math.inf or not self.trained_length >= 1:
            raise InputError("scaled rotary positions need 0 < low < high and a trained_length of 1 or more, got "
                             f"{self.low}, {self.high} and {self.trained_length}.")  # fmt: skip

    def scale(self, frequencies: Tensor) -> Tensor:
        """The frequencies of longer texts."""
        periods = self.trained_length * frequencies / (2 * math.pi)
        kept = ((periods - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


def _require_factor(factor: float) -> None:
    if not 1 <= factor < math.inf:
        raise InputError(f"the factor of scaled rotary positions must be 1 or more, got {factor}.")


RotaryScaling = Interpolated | InterpolatedByWavelength


@dataclass(frozen=True)
class Rotary(AttentionPosition):
    """RoPE (Su 2021): rotates queries and keys by angles proportional to position: scores depend on distances only.

    `scaling` slows the rotation for texts longer than those of the training.
    """

    base: float = 10_000.0
    scaling: RotaryScaling | None = None

    def build(self, key_width: int) -> RotaryLayer:
        return RotaryLayer(key_width, self)


class RotaryLayer(AttentionPositionLayer):
    def __init__(self, key_width: int, rotary: Rotary) -> None:
        super().__init__()
        if key_width % 2:
            raise InputError(f"rotary positions need heads of an even width, got {key_width}. Try another heads.")
        self.key_width, self.rotary = key_width, rotary

    def angles(self, positions: Tensor) -> Tensor:
        """(B)T -> (B)T, K/2: the angles by which a position rotates."""
        return angles_of(positions, self.key_width, self.rotary.base, self.rotary.scaling)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """BHTK, (B)T -> BHTK: each pair of dimensions (i, i + K/2) rotated by its own angle."""
        angles = self.angles(positions)
        angles = angles[:, None] if angles.dim() == 3 else angles
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def curves(self, positions: Tensor) -> Curves:
        angles = self.angles(positions)
        return Curves("rotary", torch.cat([angles.cos(), angles.sin()], dim=-1))


@dataclass(frozen=True)
class RelativeBias(StackPosition):
    """T5's relative position bias: a trained number per head and bucket of distances (Raffel 2019, section 2.1)."""

    buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        if self.buckets < 4 or self.max_distance <= self.buckets // 2:
            raise InputError(f"relative_bias needs buckets >= 4 and max_distance > buckets / 2, got {self}.")

    def build(self, heads: int, causal: bool) -> RelativeBiasLayer:
        return RelativeBiasLayer(heads, self.buckets, self.max_distance, causal)


class RelativeBiasLayer(PositionBias):
    def __init__(self, heads: int, buckets: int, max_distance: int, causal: bool) -> None:
        super().__init__(causal)
        self.buckets, self.max_distance = buckets, max_distance
        self.table = nn.Embedding(buckets, heads, _weight=normal_table(buckets, heads, 1.0))

    def bias(self, distance: Tensor) -> Tensor:
        bias: Tensor = self.table(self.bucket(distance))
        return bias.transpose(-1, -2).transpose(-2, -3)

    def bucket(self, distance: Tensor) -> Tensor:
        """Half the buckets hold one distance each, the other half ever wider ranges up to `max_distance`."""
        buckets, offset = self.buckets, torch.zeros_like(distance)
        if self.causal:
            distance = (-distance).clamp_min(0)
        else:
            buckets //= 2
            offset = (distance > 0).long() * buckets
            distance = distance.abs()
        exact = buckets // 2
        ratio = torch.log(distance.clamp_min(1).float() / exact) / math.log(self.max_distance / exact)
        wide = exact + (ratio * (buckets - exact)).long()
        return offset + torch.where(distance < exact, distance, wide.clamp_max(buckets - 1))


@dataclass(frozen=True)
class ALiBi(StackPosition):
    """Attention with linear biases (Press 2022): minus a slope per head times the distance, so nothing is trained and
    texts may be longer than in training. An encoder counts distances to both sides.
    """

    kind: ClassVar[str] = "alibi"

    def build(self, heads: int, causal: bool) -> ALiBiLayer:
        return ALiBiLayer(heads, causal)


class ALiBiLayer(PositionBias):
    def __init__(self, heads: int, causal: bool) -> None:
        super().__init__(causal)
        self.heads = heads

    def bias(self, distance: Tensor) -> Tensor:
        return -self.slopes(distance.device)[:, None, None] * distance.abs()[..., None, :, :]

    def slopes(self, device: torch.device) -> Tensor:
        """-> H: m_h = 2^(-8h/H), h = 1 ... H; for H that is no power of two, those of the power n below it, followed by
        every other slope of 2n heads (the authors' code).
        """
        power = 1 << (self.heads.bit_length() - 1)
        first = (torch.arange(power, device=device) + 1) / power
        between = (torch.arange(self.heads - power, device=device) + 0.5) / power
        return torch.exp2(-8 * torch.cat([first, between]))


Position = Sinusoid | Learned | Axial | Concatenated | Rotary | RelativeBias | ALiBi

P = TypeVar("P", bound=AttachedPosition)


def position_for(slot: Slot, position: Position | None) -> Position | None:
    """The position if it attaches to this slot, else None."""
    return position if position is not None and position.attaches == slot else None


def require_attached(position: Position | None, to: type[P]) -> P | None:
    """The position, refused if it attaches to another slot."""
    if position is None or isinstance(position, to):
        return position
    *kinds, last = (kind_of(option) for option in get_args(Position) if issubclass(option, to))
    if not isinstance(position, AttachedPosition):
        raise InputError(f"{kind_of(type(position))} is no position. Use {', '.join(kinds)} or {last} there.")
    raise InputError(
        f"a position of kind {kind_of(type(position))} attaches to the {position.attaches}, not to the {to.attaches}. "
        f"Use {', '.join(kinds) + ' or ' if kinds else ''}{last} there."
    )
