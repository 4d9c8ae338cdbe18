"""Who meets whom, once tokens have been hashed into buckets: the `see` of LSH attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import InputError
from regard.layers.lsh.banded import Band
from regard.layers.patterns import Around, Neighbours, Window, require_chunks, rounded

SELF = -1e5  # what is added to a token's score with itself: nothing else counts less, but for what is hidden
_HIDDEN = -1e9
_NOWHERE = -(1 << 30)


@dataclass(frozen=True)
class Ranks:
    """The last `window` tokens of one's own bucket, oneself among them; where all is known, the next as well.

    What a token sees follows from the past alone, so that no later token changes it, whatever the length. A token that
    several rounds find counts once.
    """

    window: int = 64

    def __post_init__(self) -> None:
        require_chunks(self.window)

    def counts(self, buckets: int | tuple[int, ...] | None, length: int) -> tuple[int, ...]:
        """The numbers of buckets that are multiplied."""
        if buckets is None:
            raise InputError(
                "the number of buckets cannot follow the length here, or the future would change the past "
                "(model.buckets). Use 64, or [128, 128] for long texts."
            )
        return (buckets,) if isinstance(buckets, int) else buckets

    def beside(self, causal: bool) -> Window | Around:
        """What layers of local attention see that stand beside such layers."""
        return Window(self.window) if causal else Around(self.window)

    def rotations(self, seed: int, shape: tuple[int, int, int, int]) -> Tensor:
        """-> HKRN: directions that follow from the seed, round by round, so that more rounds keep the first."""
        heads, width, rounds, directions = shape
        drawn = [
            torch.randn(heads, width, directions, generator=torch.Generator().manual_seed(seed * 1_000_003 + number))
            for number in range(rounds)
        ]
        return torch.stack(drawn, dim=2)

    def bands(self, buckets: Tensor, document_ids: Tensor | None, causal: bool) -> list[Band] | None:
        """Buckets NRT; tokens of different realms NT never meet -> a band a round."""
        rounds, length = buckets.shape[1:]
        chunk = min(self.window, length)  # a text shorter than the window is one chunk
        buckets = self.apart(buckets, document_ids)
        ranked, order = buckets.sort(dim=-1, stable=True)
        along = torch.arange(length, device=buckets.device, dtype=torch.int32)
        # Ranks, with a gap of a window from bucket to bucket: two tokens meet when these are less than a window apart.
        gaps = F.pad(ranked[..., 1:] != ranked[..., :-1], (1, 0)).cumsum(-1, dtype=torch.int32)
        ranks = torch.empty_like(gaps).scatter_(-1, order, along + self.window * gaps)
        places = torch.empty_like(gaps).scatter_(-1, order, along.expand_as(gaps))
        tokens = F.pad(order.to(torch.int32), (0, -length % chunk))
        return [
            Band(
                tokens[:, number], places[:, number : number + 1], chunk, 1, 0 if causal else 1,
                Meeting(order[:, number], ranks[:, : number + 1], chunk, self.window, causal),
            )
            for number in range(rounds)
        ]  # fmt: skip

    def apart(self, buckets: Tensor, document_ids: Tensor | None) -> Tensor:
        """Buckets NRT that hold tokens of one realm only."""
        return buckets if document_ids is None else buckets + document_ids[:, None] * (int(buckets.max()) + 1)

    def visible(self, asking: Tensor, answering: Tensor, past: Tensor) -> Tensor:
        """Buckets BHRT of queries, BHRS of keys, and which keys are past (B)TS -> BHTS: which are seen."""
        same = (asking[..., None] == answering[..., None, :]) & _headed(past)[:, :, None]
        since = same.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
        return (same & (since <= self.window)).any(2)


@dataclass(frozen=True)
class Meeting:
    """What is hidden in a round of `Ranks`: other buckets, far ranks, and whom an earlier round has found."""

    order: Tensor  # NT, tokens by bucket
    ranks: Tensor  # NRT, of this round, which is the last, and of those before it
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
            rank = F.pad(self.ranks[rows, number].gather(1, order), missing, value=_NOWHERE)
            own = rank[:, self.chunk : rank.shape[1] - after * self.chunk].unflatten(1, (-1, self.chunk))
            around = rank.unfold(1, (2 + after) * self.chunk, self.chunk)
            far = (own[..., None] - around[..., None, :]).abs_()
            hidden = far >= self.window if hidden is None else hidden.logical_or_(far < self.window)
        assert hidden is not None
        triangle = torch.zeros(hidden.shape[-2:], device=order.device)
        if self.causal:
            triangle.masked_fill_(torch.ones_like(triangle, dtype=torch.bool).triu_(self.chunk), -torch.inf)
        hide = triangle.masked_fill(hidden, -torch.inf)
        hide.diagonal(self.chunk, -2, -1).fill_(SELF)
        return hide


@dataclass(frozen=True)
class Chunks:
    """The published form: tokens in the order of their buckets, rounds end to end, in chunks that see their neighbours.

    Where a chunk ends depends on all tokens, so that later ones change what earlier ones see, and neighbours in a batch
    each other: for published weights. Lengths are rounded up so that `among`, the windows of all layers, divide them.
    `longest` is how many tokens the model can read, which limits how many buckets are counted together.
    """

    window: int = 64
    before: int = 1
    after: int = 0
    among: tuple[int, ...] = ()
    max_positions: int = 4096
    steady: ClassVar[bool] = False  # what a token sees changes with what is read beside it

    def __post_init__(self) -> None:
        require_chunks(self.window, self.before, self.after, self.among)

    def padded(self, length: int) -> int:
        """The length, rounded up."""
        return rounded(length, self.among or (self.window,))

    def counts(self, buckets: int | tuple[int, ...] | None, length: int) -> tuple[int, ...]:
        """The numbers of buckets that are multiplied; when nothing is said, two a chunk."""
        if buckets is not None:
            return (buckets,) if isinstance(buckets, int) else buckets
        power = max(1, (2 * (self.padded(length) // self.window)).bit_length() - 1)
        if 2**power <= 2 * max(math.isqrt(self.max_positions // self.window), self.window):
            return (2**power,)
        return 2 ** (power // 2), 2 ** (power - power // 2)

    def beside(self, causal: bool) -> Neighbours:
        """What layers of local attention see that stand beside such layers."""
        return Neighbours(self.window, self.before, 0 if causal else self.after, causal, self.among)

    def rotations(self, seed: int, shape: tuple[int, int, int, int]) -> Tensor:
        """-> HKRN: directions that follow from the seed."""
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    def bands(self, buckets: Tensor, document_ids: Tensor | None, causal: bool) -> list[Band] | None:
        """Buckets NRT; tokens of different realms NT never meet -> one band of all rounds; None when a chunk is all."""
        rounds, length = buckets.shape[1:]
        whole = self.padded(length)
        if whole <= self.window:
            return None
        last = int(buckets.max()) + 1
        if document_ids is not None:
            buckets = buckets.masked_fill((document_ids < 0)[:, None], last)
        buckets = F.pad(buckets, (0, whole - length), value=last)
        offset = (last + 1) * torch.arange(rounds, device=buckets.device, dtype=buckets.dtype)
        order = (buckets + offset[:, None]).flatten(1).argsort(dim=-1, stable=True)
        places = torch.empty_like(order).scatter_(
            1, order, torch.arange(whole * rounds, device=order.device).expand_as(order)
        )
        tokens = (order % whole).to(torch.int32)
        places = places.unflatten(1, (rounds, whole))[..., :length].to(torch.int32)
        hide = Neighbourhood(tokens, length, document_ids, self.window, self.before, self.after, causal)
        return [Band(tokens.clamp_max(length - 1), places, self.window, self.before, self.after, hide)]


@dataclass(frozen=True)
class Neighbourhood:
    """What is hidden among neighbouring chunks: what is later, of another realm, or no token at all."""

    tokens: Tensor  # NM
    length: int
    document_ids: Tensor | None
    window: int
    before: int
    after: int
    causal: bool

    def __call__(self, rows: slice, chunks: slice) -> Tensor:
        """-> ncCW."""
        size = self.window
        around = torch.arange((chunks.start - self.before) * size, (chunks.stop + self.after) * size)
        tokens = self.tokens[rows].index_select(1, around.to(self.tokens.device) % self.tokens.shape[1])
        key = tokens.unfold(1, (self.before + 1 + self.after) * size, size)[..., None, :]
        own = self.tokens[rows, chunks.start * size : chunks.stop * size].unflatten(1, (-1, size))[..., None]
        hidden = key >= self.length
        if self.causal:
            hidden = hidden | (key > own)
        if self.document_ids is not None:
            document_ids = F.pad(self.document_ids[rows], (0, 1), value=-1)
            at = [
                document_ids.gather(1, side.flatten(1).clamp_max(self.length).long()).view(side.shape) for side in (own, key)
            ]
            hidden = hidden | (at[0] != at[1]) | (at[1] < 0)
        hide = torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, _HIDDEN)
        return hide.masked_fill(key == own, SELF)


@dataclass(frozen=True)
class Whole:
    """Every token, whatever its bucket: full attention whose queries are its keys."""

    def counts(self, buckets: int | tuple[int, ...] | None, length: int) -> tuple[int, ...]:
        """No buckets."""
        return ()

    def rotations(self, seed: int, shape: tuple[int, int, int, int]) -> Tensor:
        """No directions."""
        return torch.zeros(shape)

    def bands(self, buckets: Tensor, document_ids: Tensor | None, causal: bool) -> list[Band] | None:
        """No bands: all is seen at once."""
        return None

    def visible(self, asking: Tensor, answering: Tensor, past: Tensor) -> Tensor:
        """Everything that is past."""
        return _headed(past)


def _headed(past: Tensor) -> Tensor:
    """(B)TS -> (1|B)1TS."""
    return past[None, None] if past.dim() == 2 else past[:, None]
