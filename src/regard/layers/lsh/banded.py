"""Attention in bands: tokens laid out in some order, cut into chunks, each of which sees itself and its neighbours.

Time and memory grow with the length, not with its square. The order may be the text's (local attention) or that of
buckets (LSH), and may hold a token once a round: rounds are then weighed by the sum of what they saw, so that together
they are one softmax. Work goes slice by slice, and nothing as large as queries times keys is ever kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.layers.patterns import Near, Pattern
from regard.layers.record import Attended, Inside, Rows

_SLICE = 8192  # places worked on at once: what they need stays in a processor's cache

Hide = Callable[[slice, slice], Tensor]
"""Rows and chunks -> (1|n)cCW: what is added to the scores of a chunk's queries and the keys around it."""


@dataclass(frozen=True)
class Band:
    """N rows of M places, a whole number of chunks. Windows at either end go round to the other; `hide` says no."""

    tokens: Tensor  # NM, which token stands at a place
    places: Tensor  # NRT, at which place a token stands, in each of this band's rounds
    chunk: int
    before: int  # chunks seen before one's own, and after it
    after: int
    hide: Hide

    def around(self, chunks: slice) -> Tensor:
        """-> the places of these chunks and of their neighbours, in a row."""
        length = self.tokens.shape[1]
        first, last = (chunks.start - self.before) * self.chunk, (chunks.stop + self.after) * self.chunk
        return torch.arange(first, last, device=self.tokens.device) % length

    def windows(self, values: Tensor) -> Tensor:
        """Values nL... over places in a row -> ncW...: the window of each chunk, a view where there can be one."""
        wide = (self.before + 1 + self.after) * self.chunk
        seen = values.unfold(1, wide, self.chunk)
        return seen if values.dim() == 2 else seen.transpose(2, 3)

    def chunks(self, values: Tensor) -> Tensor:
        """Values nL... -> ncC...: cut into chunks."""
        apart: Tensor = values.unflatten(1, (-1, self.chunk))
        return apart

    @property
    def together(self) -> int:
        """How many rows are worked on at once."""
        rows, length = self.tokens.shape
        return min(rows, max(1, _SLICE // length))

    def slices(self) -> Iterator[tuple[slice, list[slice]]]:
        """Rows, and the chunks of theirs to go through one slice after the other."""
        rows, length = self.tokens.shape
        count, at_once = length // self.chunk, max(1, _SLICE // self.chunk)
        pieces = [slice(first, min(first + at_once, count)) for first in range(0, count, at_once)]
        for first in range(0, rows, self.together):
            yield slice(first, min(first + self.together, rows)), pieces if self.together == 1 else [slice(0, count)]

    def room(self, values: Tensor, beyond: int = 0) -> Tensor:
        """Room for something as wide as the values NTD, by place, of the rows that are worked on at once."""
        return values.new_empty(self.together, self.tokens.shape[1] + beyond, values.shape[-1])


def banded(q: Tensor, k: Tensor | None, v: Tensor, bands: list[Band], scale: float = 1.0) -> Tensor:
    """BHTK, BHTK, BHTV -> BHTV: each token's softmax over what it sees in all rounds of all bands.

    Without keys the queries are their own, of length one, made and forgotten head by head.
    """
    flat = (None if part is None else part.flatten(0, 1) for part in (q, k, v))
    said: Tensor = Banded.apply(*flat, bands, scale)  # type: ignore[no-untyped-call]
    apart: Tensor = said.unflatten(0, q.shape[:2])
    return apart


class Banded(torch.autograd.Function):
    """Keeps what came out and how much each place saw; the weights are worked out again on the way back."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor | None, v: Tensor, bands: list[Band], scale: float) -> Tensor:
        """NTK, NTK, NTV -> NTV."""
        exact = torch.promote_types(q.dtype, torch.float32)
        said, seen = torch.zeros_like(v), q.new_full((*v.shape[:2], 1), -torch.inf, dtype=exact)
        amounts = [q.new_empty(band.tokens.shape, dtype=exact) for band in bands]
        for band, amount in zip(bands, amounts):
            room = band.room(v)
            for rows, pieces in band.slices():
                laid, given = room[: rows.stop - rows.start], (q[rows], None if k is None else k[rows], v[rows])
                for chunks in pieces:
                    own = slice(chunks.start * band.chunk, chunks.stop * band.chunk)
                    y, lse = _weigh(*_laid(*given, band, rows, chunks), band.hide(rows, chunks), scale)
                    laid[:, own], amount[rows, own] = y.flatten(1, 2), lse.flatten(1, 2)
                for places, tokens in _in_slices(band.places[rows]):
                    now, much = _take(laid, places), _take(amount[rows, :, None], places)
                    share = torch.sigmoid(much - seen[rows, tokens]).to(now.dtype)
                    said[rows, tokens] = torch.lerp(said[rows, tokens], now, share)
                    seen[rows, tokens] = torch.logaddexp(seen[rows, tokens], much)
        ctx.save_for_backward(q, k, v, said, *amounts)
        ctx.bands, ctx.scale = bands, scale
        return said

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        """The slopes of q, k and v."""
        q, k, v, said, *amounts = ctx.saved_tensors
        asked, told = torch.zeros_like(q), torch.zeros_like(v)
        answered = None if k is None else torch.zeros_like(k)
        for band, amount, share in zip(ctx.bands, amounts, _shares(ctx.bands, amounts)):
            beyond = (band.before + band.after) * band.chunk
            rooms = band.room(q), band.room(q, beyond), band.room(v, beyond)
            for rows, pieces in band.slices():
                given = q[rows], None if k is None else k[rows], v[rows]
                ended = said[rows], slopes[0][rows], amount[rows], share[rows]
                laid = _back(given, ended, [room[: len(given[0])] for room in rooms], band, rows, pieces, ctx.scale)
                for places, tokens in _in_slices(band.places[rows]):
                    of_query, of_key, of_value = (_take(part, places) for part in laid)
                    asked[rows, tokens] += of_query
                    told[rows, tokens] += of_value
                    if answered is None:
                        asked[rows, tokens] += _slope_of_unit(q[rows, tokens], of_key)
                    else:
                        answered[rows, tokens] += of_key
        return asked, answered, told, None, None


def _in_slices(places: Tensor) -> Iterator[tuple[Tensor, slice]]:
    """Places nRT -> round by round those of some tokens nt, and which tokens these are."""
    for first in range(0, places.shape[2], _SLICE):
        tokens = slice(first, first + _SLICE)
        yield from ((part, tokens) for part in places[:, :, tokens].unbind(1))


def _back(
    given: tuple[Tensor, Tensor | None, Tensor],
    ended: tuple[Tensor, ...],
    laid: list[Tensor],
    band: Band,
    rows: slice,
    pieces: list[slice],
    scale: float,
) -> list[Tensor]:
    """Queries, keys and values of some rows; what was said, its slope, how much each place saw and the rounds' shares
    -> the slopes of all three, by place, in the room that is given for them.
    """
    said, slope, amount, share = ended
    weight = torch.zeros_like(amount).scatter_(1, band.places[rows].flatten(1).long(), share.flatten(1))
    for room in laid[1:]:
        room.zero_()
    for chunks in pieces:
        own = slice(chunks.start * band.chunk, chunks.stop * band.chunk)
        out, down = (_take(part, band.tokens[rows, own]) for part in (said, slope))
        down = down * weight[:, own, None].to(down.dtype)
        of_query, *of_windows = _slopes(
            band.chunks(down), *_laid(*given, band, rows, chunks), band.chunks(out), band.chunks(amount[:, own]),
            band.hide(rows, chunks), scale,
        )  # fmt: skip
        laid[0][:, own] = of_query.flatten(1, 2)
        for room, windows in zip(laid[1:], of_windows):
            for number, part in enumerate(windows.split(band.chunk, dim=2)):
                first = (chunks.start + number) * band.chunk
                room[:, first : first + own.stop - own.start] += part.flatten(1, 2)
    return [laid[0], *(_folded(band, room) for room in laid[1:])]


def unit(q: Tensor) -> Tensor:
    """...K -> ...K: keys, of length one."""
    keys: Tensor = q * ((q.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * q.shape[-1] ** -0.5)
    return keys


def _slope_of_unit(q: Tensor, slope: Tensor) -> Tensor:
    """What a slope of the keys is for the queries."""
    with torch.enable_grad():
        asking = q.detach().requires_grad_()
        found: Tensor = torch.autograd.grad(unit(asking), asking, slope)[0]
    return found


def _laid(
    q: Tensor, k: Tensor | None, v: Tensor, band: Band, rows: slice, chunks: slice
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of some rows: queries ncCK of these chunks; keys ncWK and values ncWV in the windows around them."""
    around = band.tokens[rows].index_select(1, band.around(chunks))
    asking = _take(q, around)
    answering = unit(asking) if k is None else _take(k, around)
    own = asking[:, band.before * band.chunk : asking.shape[1] - band.after * band.chunk]
    return band.chunks(own), band.windows(answering), band.windows(_take(v, around))


def _take(values: Tensor, index: Tensor) -> Tensor:
    """nTD, nL -> nLD."""
    rows, length = values.shape[:2]
    if rows == 1:
        return values[0].index_select(0, index[0])[None]
    offset = length * torch.arange(rows, device=index.device, dtype=index.dtype)
    taken: Tensor = values.flatten(0, 1).index_select(0, (index + offset[:, None]).flatten())
    apart: Tensor = taken.unflatten(0, index.shape)
    return apart


def _folded(band: Band, room: Tensor) -> Tensor:
    """What stood beyond an end belongs to the other end."""
    before, after = band.before * band.chunk, band.after * band.chunk
    length = band.tokens.shape[1]
    inner = room[:, before : before + length]
    for place in range(0, before, band.chunk):
        at = (place - before) % length
        inner[:, at : at + band.chunk] += room[:, place : place + band.chunk]
    for place in range(0, after, band.chunk):
        at = place % length
        inner[:, at : at + band.chunk] += room[:, before + length + place : before + length + place + band.chunk]
    return inner


def _shares(bands: list[Band], amounts: list[Tensor]) -> list[Tensor]:
    """NRT for each band: how much of a token's answer is a round's."""
    seen = [_take(amount[..., None], band.places.flatten(1))[..., 0] for band, amount in zip(bands, amounts)]
    rounds = [part.unflatten(1, (band.places.shape[1], -1)) for band, part in zip(bands, seen)]
    return list(torch.cat(rounds, dim=1).softmax(1).split([len(part[0]) for part in rounds], dim=1))


def _weigh(q: Tensor, k: Tensor, v: Tensor, hide: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """ncCK, ncWK, ncWV, hidden or not -> what was said ncCV, and how much was seen ncC, as a logarithm."""
    if q.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        said, seen = kernel(q, k, v, 0.0, False, attn_mask=hide.to(q.dtype).expand(len(q), -1, -1, -1), scale=scale)
        return said, seen
    scores = (q @ k.transpose(-1, -2) * scale + hide).float()
    seen = scores.logsumexp(-1)
    return scores.sub_(seen[..., None]).exp_().to(v.dtype) @ v, seen


def _slopes(
    slope: Tensor, q: Tensor, k: Tensor, v: Tensor, said: Tensor, seen: Tensor, hide: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The slopes of ncCK, ncWK and ncWV; what was said may be more than these windows said."""
    if q.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        hidden = hide.to(q.dtype).expand(len(q), -1, -1, -1)
        found: tuple[Tensor, Tensor, Tensor] = kernel(
            slope, q, k, v, said, seen, 0.0, False, attn_mask=hidden, scale=scale
        )  # fmt: skip
        return found
    weights = ((q @ k.transpose(-1, -2) * scale + hide).float() - seen[..., None]).exp_().to(v.dtype)
    inner = weights * (slope @ v.transpose(-1, -2) - (slope * said).sum(-1, keepdim=True)) * scale
    return inner @ k, inner.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ slope


@dataclass(frozen=True)
class InBands(Attended):
    """The weights that `banded` gives, worked out for one head at a time, and never as queries times keys."""

    query: Tensor
    key: Tensor | None  # None: the queries, one long
    bands: list[Band]
    scale: float = 1.0

    @property
    def queries(self) -> int:
        """How many queries attend, in each row."""
        return self.query.shape[2]

    def head(self, number: int) -> Rows:
        """The weights of one head, asked for by queries."""
        rows = [self.windows(row) for row in range(number, len(self.query) * self.heads, self.heads)]

        def of(queries: slice) -> Tensor:
            found = self.query.new_zeros(len(rows), len(range(self.queries)[queries]), self.keys)
            for row, rounds in zip(found, rows):
                for tokens, chunk, weights in rounds:
                    row.scatter_add_(1, tokens[chunk[queries]].long(), weights[queries].to(row.dtype))
            return found

        return of

    def windows(self, row: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of a row, round by round: the tokens around each chunk cW, each token's chunk T, and its weights there TW."""
        found, amounts = [], []
        for band in self.bands:
            tokens, scores = (torch.cat(parts) for parts in zip(*self.scored(band, slice(row, row + 1))))
            for places in band.places[row]:
                mine = scores[places]
                found.append((tokens, places // band.chunk, mine.softmax(-1)))
                amounts.append(mine.logsumexp(-1))
        shares = torch.stack(amounts).softmax(0)
        return [(tokens, chunk, odds * share[:, None]) for (tokens, chunk, odds), share in zip(found, shares)]

    def scored(self, band: Band, row: slice) -> Iterator[tuple[Tensor, Tensor]]:
        """Of a row, slice by slice: the tokens around each chunk cW, and how they score with each of its places."""
        asking = self.query.flatten(0, 1)[row]
        answering = None if self.key is None else self.key.flatten(0, 1)[row]
        count, at_once = band.tokens.shape[1] // band.chunk, max(1, _SLICE // band.chunk)
        for first in range(0, count, at_once):
            chunks = slice(first, min(first + at_once, count))
            mine, around, _ = _laid(asking, answering, asking, band, row, chunks)
            scores = mine @ around.transpose(-1, -2) * self.scale + band.hide(row, chunks)
            yield band.windows(band.tokens[row].index_select(1, band.around(chunks)))[0], scores[0].flatten(0, 1)

    def inside(self) -> Inside:
        """What the weights are made of."""
        if self.key is None:
            return Inside("shared", self.query, unit(self.query), self.scale)
        return Inside("dot", self.query, self.key, self.scale)


def local_bands(pattern: Pattern, length: int, rows: int, document_ids: Tensor | None, device: torch.device) -> list[Band] | None:
    """A band of the text as it stands; None for a pattern that looks anywhere in it."""
    near = pattern.near(length)
    if near is None:
        return None
    along = torch.arange(near.whole, device=device, dtype=torch.int32).expand(rows, -1)
    tokens, places = along.clamp_max(length - 1), along[:, None, :length]
    hide = Strangers(pattern, near, length, document_ids, device)
    return [Band(tokens, places, near.chunk, near.before, near.after, hide)]


@dataclass(frozen=True)
class Strangers:
    """What is hidden among neighbours: what the pattern does not see, other realms, and what is no token.

    What a pattern finds in chunks it finds by distance and place in the chunk, so that all within a text are alike.
    """

    pattern: Pattern
    near: Near
    length: int
    document_ids: Tensor | None  # NT
    device: torch.device

    def __call__(self, rows: slice, chunks: slice) -> Tensor:
        """-> (1|n)cCW."""
        chunk, before, after, whole, joined = self.near
        count = chunks.stop - chunks.start
        if self.document_ids is None and chunks.start >= before and (chunks.stop + after) * chunk <= self.length:
            chunks = slice(chunks.start, chunks.start + 1)
        slots = torch.arange((chunks.start - before) * chunk, (chunks.stop + after) * chunk, device=self.device)
        own: Tensor = slots[before * chunk : len(slots) - after * chunk].unflatten(0, (-1, chunk))
        around = (slots % whole if joined else slots).unfold(0, (before + 1 + after) * chunk, chunk)[:, None]
        pattern = self.pattern.sees(own, around)
        seen = ((around >= 0) & (around < self.length))[None]
        seen = seen if pattern is None else seen & pattern
        if self.document_ids is not None:
            document_ids = F.pad(self.document_ids[rows], (0, 1), value=-1)
            asker, answerer = (document_ids[:, part.clamp(0, self.length)] for part in (own, around))
            seen = seen & (asker[..., None] == answerer)
        hidden = ~(seen | (around == own[..., None]))
        hide = torch.zeros(hidden.shape, device=self.device).masked_fill_(hidden, -torch.inf)
        return hide.expand(-1, count, -1, -1)
