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
    total = weights.sum(-1).clamp_min(1e-12)
    entropy = (torch.special.entr(weights).sum(-1) / total + total.log()).clamp_min(0) / math.log(2)
    keys = torch.arange(weights.shape[-1], device=weights.device, dtype=weights.dtype)
    queries = torch.arange(first, first + weights.shape[-2], device=weights.device, dtype=weights.dtype)
    distance = torch.linalg.vecdot(weights, queries[:, None].sub(keys).abs_().expand_as(weights)) / total
    return torch.stack([entropy.sum(-1), distance.sum(-1), weights.amax(-1).sum(-1)])


def pool_columns(weights: Tensor, tiles: int) -> Tensor:
    """Weights tS -> tn: the maximum of each tile of keys; key s belongs to tile floor(s * n / S)."""
    length = weights.shape[-1]
    if tiles >= length:
        return weights
    starts = -(-torch.arange(tiles + 1, device=weights.device) * length // tiles)
    # Tiles differ by one key at most: a shorter one counts its last key twice.
    offsets = torch.arange(-(-length // tiles), device=weights.device)
    keys = torch.minimum(starts[:-1, None] + offsets, starts[1:, None] - 1)
    return torch.stack([weights.index_select(1, part) for part in keys.T], dim=-1).amax(-1)


class PooledTiles:
    """The maximum of each of r x c tiles of T x S weights, which arrive in blocks of queries."""

    def __init__(self, queries: int, keys: int, max_tiles: int) -> None:
        self.queries = queries
        self.weights = torch.zeros(min(max_tiles, queries), min(max_tiles, keys))

    def add(self, first: int, block: Tensor) -> None:
        """Add the weights tS of the queries from `first` on."""
        count, last = len(self.weights), first + len(block)
        for row in range(first * count // self.queries, (last - 1) * count // self.queries + 1):
            start, stop = (-(-edge * self.queries // count) for edge in (row, row + 1))
            part = block[max(start - first, 0) : stop - first].amax(0, keepdim=True)
            self.weights[row] = torch.maximum(self.weights[row], pool_columns(part, self.weights.shape[1])[0].cpu())


def top_keys(weights: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Weights tS -> tk, tk: the keys with the largest weights, largest first, and the weights; key -1 at weight 0."""
    values, keys = weights.topk(min(count, weights.shape[-1]), dim=-1)
    return keys.masked_fill(values == 0, -1), values


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
