"""Banded (chunked) attention: tokens in some order, cut into chunks; a chunk attends to itself and its neighbours.

Time and memory grow linearly with the length. The order is the text's own (local attention), or tokens are sorted by
bucket (LSH attention, Kitaev 2020, figure 2). A token may occur once per hashing round; rounds are weighted by their
log-sum-exp, so that together they are one softmax. Slices are computed one by one; no matrix of queries times keys is
kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import RunFailed
from regard.layers.patterns import ChunkSpan, SelfPattern
from regard.layers.record import AttentionWeights, Blocks, Rows, ScoreInputs, WeightBlock

_FEW = 4  # the part of all keys, at most, that is summarised key by key is one of so many
_SLICE = 8192  # sorted positions per slice, whose working set stays in a CPU's cache

Mask = Callable[[slice, slice], Tensor]
"""Rows and chunks -> (1|n)cCW: the additive mask of a chunk's C queries over the W keys of its window."""


@dataclass(frozen=True)
class Band:
    """N rows of M sorted positions, a whole number of chunks.

    Rounds of one band may find a key several times, which adds up; a later band hides what earlier ones found, but
    not the token itself.
    The window of a chunk is the chunk itself, `before` chunks before it and `after` after it. Windows wrap around at
    both ends; the mask hides what must not be attended to.
    """

    tokens: Tensor  # NM, the token at each sorted position
    sorted_positions: Tensor  # NRT, the sorted position of each token, in each of the band's rounds
    chunk: int
    before: int
    after: int
    mask: Mask

    def window_positions(self, chunks: slice) -> Tensor:
        """-> the sorted positions of these chunks and of the neighbours that their windows reach."""
        length = self.tokens.shape[1]
        first, last = (chunks.start - self.before) * self.chunk, (chunks.stop + self.after) * self.chunk
        return torch.arange(first, last, device=self.tokens.device) % length

    def windows(self, values: Tensor) -> Tensor:
        """Values nL... at window positions -> ncW...: the window of each chunk, as a view."""
        width = (self.before + 1 + self.after) * self.chunk
        windows = values.unfold(1, width, self.chunk)
        return windows if values.dim() == 2 else windows.transpose(2, 3)

    def chunks(self, values: Tensor) -> Tensor:
        """Values nL... -> ncC...: cut into chunks."""
        chunked: Tensor = values.unflatten(1, (-1, self.chunk))
        return chunked

    @property
    def rows_at_once(self) -> int:
        """The number of rows in one slice."""
        rows, length = self.tokens.shape
        return min(rows, max(1, _SLICE // length))

    def slices(self) -> Iterator[tuple[slice, list[slice]]]:
        """Slices of rows, each with the slices of chunks to process one after the other."""
        rows, length = self.tokens.shape
        count, at_once = length // self.chunk, max(1, _SLICE // self.chunk)
        chunks = [slice(first, min(first + at_once, count)) for first in range(0, count, at_once)]
        for first in range(0, rows, self.rows_at_once):
            last = min(first + self.rows_at_once, rows)
            yield slice(first, last), chunks if self.rows_at_once == 1 else [slice(0, count)]

    def buffer(self, values: Tensor, extra: int = 0) -> Tensor:
        """An empty tensor for one slice of rows, by sorted position, as wide as the values NTD."""
        return values.new_empty(self.rows_at_once, self.tokens.shape[1] + extra, values.shape[-1])


def banded_attention(q: Tensor, k: Tensor | None, v: Tensor, bands: list[Band], scale: float = 1.0) -> Tensor:
    """BHTK, BHTK, BHTV -> BHTV: each token's softmax over the keys it attends to in all rounds of all bands.

    Without keys it is shared-QK attention: keys are the queries at unit length, computed slice by slice.
    """
    flat = (None if part is None else part.flatten(0, 1) for part in (q, k, v))
    output: Tensor = BandedAttention.apply(*flat, bands, scale)  # type: ignore[no-untyped-call]
    return output.view(v.shape)


class BandedAttention(torch.autograd.Function):
    """Keeps the output and the log-sum-exp (lse) of each round; the backward pass recomputes the weights."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor | None, v: Tensor, bands: list[Band], scale: float) -> Tensor:
        """NTK, NTK, NTV -> NTV."""
        exact = torch.promote_types(q.dtype, torch.float32)
        output, total_lse = torch.zeros_like(v), q.new_full((*v.shape[:2], 1), -torch.inf, dtype=exact)
        lses = [q.new_empty(band.tokens.shape, dtype=exact) for band in bands]
        for band, lse in zip(bands, lses):
            buffer = band.buffer(v)
            for rows, chunk_slices in band.slices():
                inputs = q[rows], None if k is None else k[rows], v[rows]
                sorted_output = buffer[: len(inputs[0])]
                for chunks in chunk_slices:
                    own = slice(chunks.start * band.chunk, chunks.stop * band.chunk)
                    y, y_lse = _attend(*_gather(*inputs, band, rows, chunks), band.mask(rows, chunks), scale)
                    sorted_output[:, own], lse[rows, own] = y.flatten(1, 2), y_lse.flatten(1, 2)
                for positions, tokens in _token_slices(band.sorted_positions[rows]):
                    y, y_lse = _take(sorted_output, positions), _take(lse[rows, :, None], positions)
                    share = torch.sigmoid(y_lse - total_lse[rows, tokens]).to(y.dtype)
                    output[rows, tokens] = torch.lerp(output[rows, tokens], y, share)
                    total_lse[rows, tokens] = torch.logaddexp(total_lse[rows, tokens], y_lse)
        ctx.save_for_backward(q, k, v, output, *lses)
        ctx.bands, ctx.scale = bands, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The gradients of q, k and v."""
        q, k, v, output, *lses = ctx.saved_tensors
        grad_q, grad_v = torch.zeros_like(q), torch.zeros_like(v)
        grad_k = None if k is None else torch.zeros_like(k)
        for band, lse, share in zip(ctx.bands, lses, _round_shares(ctx.bands, lses)):
            extra = (band.before + band.after) * band.chunk
            buffers = band.buffer(q), band.buffer(q, extra), band.buffer(v, extra)
            for rows, chunk_slices in band.slices():
                inputs = q[rows], None if k is None else k[rows], v[rows]
                results = output[rows], gradients[0][rows], lse[rows], share[rows]
                used = [buffer[: len(inputs[0])] for buffer in buffers]
                sorted_gradients = _sorted_gradients(inputs, results, used, band, rows, chunk_slices, ctx.scale)
                for positions, tokens in _token_slices(band.sorted_positions[rows]):
                    of_query, of_key, of_value = (_take(part, positions) for part in sorted_gradients)
                    grad_q[rows, tokens] += of_query
                    grad_v[rows, tokens] += of_value
                    if grad_k is None:
                        grad_q[rows, tokens] += _unit_keys_gradient(q[rows, tokens], of_key)
                    else:
                        grad_k[rows, tokens] += of_key
        return grad_q, grad_k, grad_v, None, None


def _token_slices(sorted_positions: Tensor) -> Iterator[tuple[Tensor, slice]]:
    """Sorted positions nRT -> round by round, those of a slice of tokens nt, and the slice."""
    for first in range(0, sorted_positions.shape[2], _SLICE):
        tokens = slice(first, first + _SLICE)
        yield from ((positions, tokens) for positions in sorted_positions[:, :, tokens].unbind(1))


def _sorted_gradients(
    inputs: tuple[Tensor, Tensor | None, Tensor], results: tuple[Tensor, ...], buffers: list[Tensor], band: Band,
    rows: slice, chunk_slices: list[slice], scale: float,
) -> list[Tensor]:  # fmt: skip
    """The gradients of queries, keys and values of some rows, by sorted position, in the buffers.

    `inputs` are q, k, v; `results` are the output, its gradient, the lse, and the rounds' shares of the output.
    """
    output, gradient, lse, share = results
    weight = torch.zeros_like(lse).scatter_(1, band.sorted_positions[rows].flatten(1).long(), share.flatten(1))
    for buffer in buffers[1:]:
        buffer.zero_()
    for chunks in chunk_slices:
        own = slice(chunks.start * band.chunk, chunks.stop * band.chunk)
        y, grad_y = (_take(part, band.tokens[rows, own]) for part in (output, gradient))
        grad_y = grad_y * weight[:, own, None].to(grad_y.dtype)
        of_query, *of_windows = _attend_backward(
            band.chunks(grad_y), *_gather(*inputs, band, rows, chunks), band.chunks(y), band.chunks(lse[:, own]),
            band.mask(rows, chunks), scale,
        )  # fmt: skip
        buffers[0][:, own] = of_query.flatten(1, 2)
        # Windows overlap: a key's gradient is the sum over the chunks whose window it is in.
        for buffer, windows in zip(buffers[1:], of_windows):
            for number, part in enumerate(windows.split(band.chunk, dim=2)):
                first = (chunks.start + number) * band.chunk
                buffer[:, first : first + own.stop - own.start] += part.flatten(1, 2)
    return [buffers[0], *(_wrap(band, buffer) for buffer in buffers[1:])]


def unit_keys(q: Tensor) -> Tensor:
    """...K -> ...K: the keys of shared-QK attention, which are the queries at unit length."""
    keys: Tensor = q * ((q.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * q.shape[-1] ** -0.5)
    return keys


def _unit_keys_gradient(q: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the queries, from that of their keys."""
    with torch.enable_grad():
        queries = q.detach().requires_grad_()
        found: Tensor = torch.autograd.grad(unit_keys(queries), queries, gradient)[0]
    return found


def _gather(
    q: Tensor, k: Tensor | None, v: Tensor, band: Band, rows: slice, chunks: slice
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Queries ncCK of some rows' chunks, and the keys ncWK and values ncWV of their windows."""
    tokens = band.tokens[rows].index_select(1, band.window_positions(chunks))
    queries = _take(q, tokens)
    keys = unit_keys(queries) if k is None else _take(k, tokens)
    own = queries[:, band.before * band.chunk : queries.shape[1] - band.after * band.chunk]
    return band.chunks(own), band.windows(keys), band.windows(_take(v, tokens))


def _take(values: Tensor, index: Tensor) -> Tensor:
    """nTD, nL -> nLD."""
    rows, length = values.shape[:2]
    if rows == 1:
        return values[0].index_select(0, index[0])[None]
    offset = length * torch.arange(rows, device=index.device, dtype=index.dtype)
    taken = values.flatten(0, 1).index_select(0, (index + offset[:, None]).flatten())
    return taken.view(*index.shape, values.shape[-1])


def _wrap(band: Band, buffer: Tensor) -> Tensor:
    """Add the sums of windows that reach beyond one end to the other end."""
    before, after = band.before * band.chunk, band.after * band.chunk
    length = band.tokens.shape[1]
    inner = buffer[:, before : before + length]
    for first in range(0, before, band.chunk):
        target = (first - before) % length
        inner[:, target : target + band.chunk] += buffer[:, first : first + band.chunk]
    for first in range(0, after, band.chunk):
        target, beyond = first % length, before + length + first
        inner[:, target : target + band.chunk] += buffer[:, beyond : beyond + band.chunk]
    return inner


def _round_shares(bands: list[Band], lses: list[Tensor]) -> list[Tensor]:
    """NRT per band: each round's share of a token's output, softmax over rounds of the log-sum-exp."""
    by_token = [_take(lse[..., None], band.sorted_positions.flatten(1))[..., 0] for band, lse in zip(bands, lses)]
    rounds = [part.unflatten(1, (band.sorted_positions.shape[1], -1)) for band, part in zip(bands, by_token)]
    return list(torch.cat(rounds, dim=1).softmax(1).split([len(part[0]) for part in rounds], dim=1))


def _summed(keys: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Keys tk and their weights -> the same with each key once, and the sum of its weights; the rest has weight 0."""
    keys, order = keys.sort(-1)
    number = F.pad(keys[:, 1:] != keys[:, :-1], (1, 0)).cumsum(-1)  # of the key, among the query's different keys
    weights = torch.zeros_like(weights).scatter_add_(-1, number, weights.gather(-1, order))
    return torch.zeros_like(keys).scatter_(-1, number, keys), weights


def _own_once(keys: Tensor, weights: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Keys tk and their weights -> the same with the sum of the weights of each query's own key at the end only."""
    found = keys == own
    total = torch.linalg.vecdot(weights, found.to(weights.dtype))[:, None]
    return torch.cat([keys, own], dim=-1), torch.cat([weights.masked_fill_(found, 0.0), total], dim=-1)


_KERNEL = "_scaled_dot_product_flash_attention_for_cpu"
_ARGUMENTS = {
    "": "query key value dropout_p is_causal attn_mask scale",
    "_backward": "grad_out query key value out logsumexp dropout_p is_causal attn_mask scale",
}


@functools.cache
def _cpu_kernel(suffix: str = "") -> Callable[..., Any]:
    """Torch's private fused CPU kernel, which also returns the log-sum-exp; refused if its signature has changed."""
    kernel = getattr(torch.ops.aten, _KERNEL + suffix, None)
    arguments = "" if kernel is None else " ".join(argument.name for argument in kernel.default._schema.arguments)
    if kernel is None or arguments != _ARGUMENTS[suffix]:
        raise RunFailed(f"torch {torch.__version__} has another {_KERNEL}{suffix} than LSH and local attention need. "
                        "Use torch 2.13.")  # fmt: skip
    return kernel  # type: ignore[no-any-return]


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """ncCK, ncWK, ncWV, additive mask -> attention output ncCV, and log-sum-exp of the scores ncC."""
    if q.device.type == "cpu":
        kernel = _cpu_kernel()
        y, lse = kernel(q, k, v, 0.0, False, attn_mask=mask.to(q.dtype).expand(len(q), -1, -1, -1), scale=scale)
        return y, lse
    scores = (q @ k.transpose(-1, -2) * scale + mask).float()
    lse = scores.logsumexp(-1)
    return scores.sub_(lse[..., None]).exp_().to(v.dtype) @ v, lse


def _attend_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, lse: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ncCK, ncWK and ncWV; the output y is that of all rounds, not of these windows only."""
    if q.device.type == "cpu":
        mask, kernel = mask.to(q.dtype).expand(len(q), -1, -1, -1), _cpu_kernel("_backward")
        of_q, of_k, of_v = kernel(gradient, q, k, v, y, lse, 0.0, False, attn_mask=mask, scale=scale)
        return of_q, of_k, of_v
    weights = ((q @ k.transpose(-1, -2) * scale + mask).float() - lse[..., None]).exp_().to(v.dtype)
    inner = weights * (gradient @ v.transpose(-1, -2) - (gradient * y).sum(-1, keepdim=True)) * scale
    return inner @ k, inner.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ gradient


@dataclass(frozen=True)
class BandedWeights(AttentionWeights):
    """The attention weights of `banded_attention`, computed head by head, never as queries times keys."""

    query: Tensor
    key: Tensor | None  # None: shared-QK attention
    bands: list[Band]
    scale: float = 1.0

    @property
    def queries(self) -> int:
        return self.query.shape[2]

    def output(self) -> Tensor:
        """-> BHTV: the attention output."""
        return banded_attention(self.query, self.key, self.values, self.bands, self.scale)

    def head(self, number: int) -> Rows:
        rows = [self.windows(row) for row in range(number, len(self.query) * self.heads, self.heads)]

        def weights_of(queries: slice) -> Tensor:
            found = self.query.new_zeros(len(rows), len(range(self.queries)[queries]), self.keys)
            for row, rounds in zip(found, rows):
                for tokens, chunk, weights in rounds:
                    row.scatter_add_(1, tokens[chunk[queries]].long(), weights[queries].to(row.dtype))
            return found

        return weights_of

    @property
    def most_keys(self) -> int:
        rounds = ((band, band.sorted_positions.shape[1]) for band in self.bands)
        listed = sum(count * (band.before + 1 + band.after) * band.chunk for band, count in rounds)
        # Windows as long as the text could reach a key from both ends.
        return listed if listed * _FEW <= self.keys else self.keys

    def blocks(self, number: int) -> Blocks:
        if self.most_keys == self.keys:
            return super().blocks(number)
        rounds = self.windows(number)
        repeats = any(band.sorted_positions.shape[1] > 1 for band in self.bands)

        def block_of(queries: slice) -> WeightBlock:
            keys = torch.cat([tokens[chunk[queries]] for tokens, chunk, _ in rounds], dim=-1)
            weights = torch.cat([found[queries].float() for *_, found in rounds], dim=-1)
            if repeats:
                keys, weights = _summed(keys, weights)
            elif len(rounds) > 1:
                own = torch.arange(queries.start, queries.stop, dtype=keys.dtype, device=keys.device)[:, None]
                keys, weights = _own_once(keys, weights, own)
            return WeightBlock(weights, keys.long())

        return block_of

    def windows(self, row: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of a row, per round: the tokens in each chunk's window cW, each token's chunk T, its weights there TW."""
        found, lses = [], []
        for band in self.bands:
            tokens, scores = (torch.cat(parts) for parts in zip(*self.scores(band, slice(row, row + 1))))
            for positions in band.sorted_positions[row]:
                own = scores[positions]
                found.append((tokens, positions // band.chunk, own.softmax(-1)))
                lses.append(own.logsumexp(-1))
        shares = torch.stack(lses).softmax(0)
        return [(tokens, chunk, weights * share[:, None]) for (tokens, chunk, weights), share in zip(found, shares)]

    def scores(self, band: Band, row: slice) -> Iterator[tuple[Tensor, Tensor]]:
        """Of a row, slice by slice: the tokens in each chunk's window cW, and their scores with each query of it."""
        q = self.query.flatten(0, 1)[row]
        k = None if self.key is None else self.key.flatten(0, 1)[row]
        count, at_once = band.tokens.shape[1] // band.chunk, max(1, _SLICE // band.chunk)
        for first in range(0, count, at_once):
            chunks = slice(first, min(first + at_once, count))
            queries, keys, _ = _gather(q, k, q, band, row, chunks)
            scores = queries @ keys.transpose(-1, -2) * self.scale + band.mask(row, chunks)
            tokens = band.windows(band.tokens[row].index_select(1, band.window_positions(chunks)))
            yield tokens[0], scores[0].flatten(0, 1)

    def score_inputs(self) -> ScoreInputs:
        if self.key is None:
            return ScoreInputs("shared", self.query, unit_keys(self.query), self.scale)
        return ScoreInputs("dot", self.query, self.key, self.scale)


def local_bands(
    pattern: SelfPattern, length: int, rows: int, document_ids: Tensor | None, device: torch.device
) -> list[Band] | None:
    """One band in the text's own order, for local attention; None for a pattern that attends anywhere."""
    span = pattern.chunk_span(length)
    if span is None:
        return None
    positions = torch.arange(span.padded_length, device=device, dtype=torch.int32).expand(rows, -1)
    mask, tokens = LocalMask(pattern, span, length, document_ids, device), positions.clamp_max(length - 1)
    return [Band(tokens, positions[:, None, :length], span.chunk, span.before, span.after, mask)]


@dataclass(frozen=True)
class LocalMask:
    """The mask of local attention: hides what the pattern hides, other documents, and padding.

    Such a pattern depends only on distance and on the position in the chunk, so all chunks inside a text share a mask.
    """

    pattern: SelfPattern
    span: ChunkSpan
    length: int
    document_ids: Tensor | None  # NT
    device: torch.device

    def __call__(self, rows: slice, chunks: slice) -> Tensor:
        """-> (1|n)cCW."""
        chunk, before, after, padded_length, circular, copies = self.span
        count = chunks.stop - chunks.start
        if self.document_ids is None and chunks.start >= before and (chunks.stop + after) * chunk <= self.length:
            chunks = slice(chunks.start, chunks.start + 1)
        slots = torch.arange((chunks.start - before) * chunk, (chunks.stop + after) * chunk, device=self.device)
        queries: Tensor = slots[before * chunk : len(slots) - after * chunk].unflatten(0, (-1, chunk))
        keys = (slots % padded_length if circular else slots).unfold(0, (before + 1 + after) * chunk, chunk)[:, None]
        pattern = self.pattern.mask(queries, keys)
        visible = ((keys >= 0) & (keys < self.length))[None]
        visible = visible if pattern is None else visible & pattern
        if self.document_ids is not None:
            document_ids = F.pad(self.document_ids[rows], (0, 1), value=-1)
            of_query, of_key = (document_ids[:, part.clamp(0, self.length)] for part in (queries, keys))
            visible = visible & (of_query[..., None] == of_key)
        hidden = ~(visible | (keys == queries[..., None]))
        mask = torch.zeros(hidden.shape, device=self.device).masked_fill_(hidden, -torch.inf)
        mask[..., before * chunk : (before + 1) * chunk] += math.log(copies)
        return mask.expand(-1, count, -1, -1)
