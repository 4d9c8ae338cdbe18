"""Attention summaries: subwords merged into words, rollout, head statistics (entropy, distance), max-pooled tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Offsets, Tokenizer, word_ids
from regard.layers.record import WeightBlock

_FOLDS = 8  # rows into which a query's weights are folded

WordSpans = Sequence[tuple[int, int]]
"""The tokens of each word, in order: its first token, and the one after its last."""


def merge_words(weights: Tensor, rows: WordSpans, columns: WordSpans) -> Tensor:
    """...TS -> weights between words: sum over a word's keys, mean over its queries."""
    by_key = torch.stack([weights[..., first:stop].sum(-1) for first, stop in columns], dim=-1)
    return torch.stack([by_key[..., first:stop, :].mean(-2) for first, stop in rows], dim=-2)


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """HTT of each layer, the lowest first -> TT: attention rollout (Abnar 2020, section 3).

    Each layer is half attention (the mean over its heads) and half the residual connection.
    """
    mixed = [0.5 * layer.mean(dim=0) + 0.5 * torch.eye(layer.shape[-1], device=layer.device) for layer in layers]
    return reduce(lambda below, layer: layer @ below, [layer / layer.sum(-1, keepdim=True) for layer in mixed])


def head_statistics(weights: Tensor, first: int = 0) -> Tensor:
    """...tS, for the queries from `first` on -> 3...: sums over queries of entropy, distance and maximum weight.

    Entropy is in bits, distance in tokens between query and key. Weights that do not sum to one are normalised.
    """
    return block_statistics(WeightBlock(weights), first)


def block_statistics(block: WeightBlock, first: int) -> Tensor:
    """The same for a block, whose keys may be listed, and whose entropy may be known."""
    weights, entropy = block.weights, block.entropy
    total = weights.sum(-1).clamp_min(1e-12)
    if entropy is None:
        surprise = weights.clamp_min(1e-30).log_().neg_()
        entropy = (torch.linalg.vecdot(weights, surprise) / total + total.log()).clamp_min(0) / math.log(2)
    distance = (_distances(weights, first) if block.keys is None else _distances_of(block, first)) / total
    return torch.stack([entropy.sum(-1), distance.sum(-1), weights.amax(-1).sum(-1)])


def _distances_of(block: WeightBlock, first: int) -> Tensor:
    """-> t: the sum of weights times distances, of listed keys."""
    assert block.keys is not None
    queries = torch.arange(first, first + len(block.keys), device=block.keys.device)
    distances = (block.keys - queries[:, None]).abs_().to(block.weights.dtype)
    sums: Tensor = torch.linalg.vecdot(block.weights, distances)
    return sums


def _distances(weights: Tensor, first: int) -> Tensor:
    """...tS -> ...t: the sum of weights times distances.

    Keys before all of these queries are farther from a later query by as much as it is later, and keys after them
    nearer, so that products of the matrix with a vector are enough for both.
    """
    queries, keys = weights.shape[-2:]
    later = torch.arange(queries, device=weights.device, dtype=weights.dtype)
    positions = torch.arange(keys, device=weights.device, dtype=weights.dtype) - first
    before, among, after = weights.tensor_split((min(first, keys), min(first + queries, keys)), dim=-1)
    own = (later[:, None] - positions[first : first + queries]).abs_()
    return (
        before @ -positions[:first] + before.sum(-1) * later
        + (among * own).sum(-1) + after @ positions[first + queries :] - after.sum(-1) * later
    )  # fmt: skip


class PooledTiles:
    """The maximum of each of r x c tiles of T x S weights, which arrive in blocks of queries.

    Key s belongs to tile floor(s * c / S).
    """

    def __init__(self, queries: int, keys: int, max_tiles: int) -> None:
        self.queries, self.keys = queries, keys
        self.weights = torch.zeros(min(max_tiles, queries), min(max_tiles, keys))
        starts = -(-torch.arange(self.weights.shape[1] + 1) * keys // self.weights.shape[1])
        # Tiles differ by one key at most: a shorter one counts its last key twice.
        offsets = torch.arange(-(-keys // self.weights.shape[1]))
        self._keys = torch.minimum(starts[:-1, None] + offsets, starts[1:, None] - 1)

    def add(self, first: int, block: Tensor, keys: Tensor | None = None) -> None:
        """Add the weights of the queries from `first` on: of these keys tk, or ts of the first keys; others are 0."""
        count, last = len(self.weights), first + len(block)
        if keys is not None:
            rows = torch.arange(first, last, device=keys.device)[:, None] * count // self.queries
            tiles = rows * self.weights.shape[1] + keys * self.weights.shape[1] // self.keys
            self.weights.view(-1).scatter_reduce_(0, tiles.flatten().cpu(), block.flatten().cpu(), "amax")
            return
        for row in range(first * count // self.queries, (last - 1) * count // self.queries + 1):
            start, stop = (-(-edge * self.queries // count) for edge in (row, row + 1))
            part = block[max(start - first, 0) : stop - first].amax(0).cpu()
            part = torch.nn.functional.pad(part, (0, self.keys - len(part)))
            self.weights[row] = torch.maximum(self.weights[row], part[self._keys].amax(-1))


def top_keys(weights: Tensor, count: int, keys: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights tS -> tk, tk: the keys with the largest weights, largest first, and the weights; key -1 at weight 0.

    The weights are those of `keys` tS, or else of the first keys.
    """
    values, found = _top(weights, min(count, weights.shape[-1]), True)
    found = found if keys is None else keys.gather(-1, found)
    return found.masked_fill(values == 0, -1), values


def _top(weights: Tensor, count: int, ordered: bool) -> tuple[Tensor, Tensor]:
    """`topk`, which takes less time among the columns with the largest maxima, if rows are folded into a few rows."""
    size = weights.shape[-1]
    if size <= _FOLDS * count:
        values, keys = weights.topk(count, sorted=ordered)
        return values, keys
    width = -(-size // _FOLDS)
    if size % _FOLDS:
        weights = torch.nn.functional.pad(weights, (0, _FOLDS * width - size), value=-1)  # never among the largest
    _, columns = _top(weights.unflatten(-1, (_FOLDS, width)).amax(dim=-2), count, False)
    among = (columns[..., None] + width * torch.arange(_FOLDS, device=weights.device)).flatten(-2)
    values, found = weights.gather(-1, among).topk(count, sorted=ordered)
    return values, among.gather(-1, found)


@dataclass(frozen=True)
class Side:
    """The tokens of one side (source, decoder input, target) and the words that cover them in order.

    A special token is a word of its own; a token of spaces belongs to the word after it, or else to the one before.
    """

    tokens: list[str]
    word_ids: list[int]  # the word of the text that each token belongs to; -1: none, as for special tokens
    word_spans: list[tuple[int, int]]  # a word's first token, and the one after its last
    word_texts: list[str]

    @classmethod
    def of(cls, tokens: Sequence[str], text: str, offsets: Sequence[Offsets]) -> Side:
        """Tokens, and the characters of a text that each covers: (0, 0) for none."""
        ids = word_ids(text, offsets)
        owners = _with_spaces(ids, offsets)
        firsts = [index for index, word in enumerate(owners) if index == 0 or word < 0 or word != owners[index - 1]]
        words = list(zip(firsts, [*firsts[1:], len(tokens)]))
        texts = [text[offsets[first][0] : offsets[stop - 1][1]].strip() for first, stop in words]
        texts = [covered or "".join(tokens[first:stop]) for covered, (first, stop) in zip(texts, words)]
        return cls(list(tokens), ids, words, texts)

    @classmethod
    def of_tokens(cls, tokens: Sequence[str]) -> Side:
        """Tokens of which each is a word."""
        indices = range(len(tokens))
        return cls(list(tokens), list(indices), [(index, index + 1) for index in indices], list(tokens))

    def shifted_right(self, begin: str) -> Side:
        """The decoder input for this target: `begin` in front, the last token dropped."""
        last = len(self.tokens) - 1
        words = [(first + 1, min(stop, last) + 1) for first, stop in self.word_spans if first < last]
        texts = self.word_texts[: len(words)]
        return Side([begin, *self.tokens[:-1]], [-1, *self.word_ids[:-1]], [(0, 1), *words], [begin, *texts])

    def to_json(self) -> dict[str, Any]:
        """The side as the page reads it."""
        spans = [list(span) for span in self.word_spans]
        ids = [self.word_ids[first] for first, _ in self.word_spans]
        return {"tokens": self.tokens, "word_spans": spans, "word_texts": self.word_texts, "word_ids": ids}


def _with_spaces(words: Sequence[int], offsets: Sequence[Offsets]) -> list[int]:
    """The word of each token, with tokens of spaces in the word after them, or else in the one before."""
    spaces = [word < 0 and stop > start for word, (start, stop) in zip(words, offsets)]
    owners = list(words)
    for indices, before in ((range(len(owners) - 2, -1, -1), 1), (range(1, len(owners)), -1)):
        for index in indices:
            if spaces[index] and owners[index] < 0:
                owners[index] = owners[index + before]
    return owners


def side_of(tokenizer: Tokenizer, ids: Sequence[int], text: str | None = None) -> Side:
    """The side of these token ids; words are those of `text` if it is part of them, else of the decoded ids."""
    tokens, none = tokenizer.token_texts(ids), (0, 0)
    if text is not None:
        encoded = tokenizer.encode_with_offsets(text)
        count = len(encoded.ids)
        for before in range(len(ids) - count + 1):
            if list(ids[before : before + count]) == encoded.ids:
                after = len(ids) - before - count
                return Side.of(tokens, text, [none] * before + encoded.offsets + [none] * after)
    return Side.of(tokens, *tokenizer.decode_with_offsets(ids))
