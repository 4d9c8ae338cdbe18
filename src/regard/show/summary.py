"""Attention in fewer numbers: words for tokens, layers as one, three numbers a head, tiles of a long text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Span, Tokenizer, word_numbers

SpanCorruption = Sequence[tuple[int, int]]
"""The tokens of each word, from the first to before the last, in order."""


def by_words(weights: Tensor, rows: SpanCorruption, columns: SpanCorruption) -> Tensor:
    """...TS -> ... words of queries x words of keys: a word's keys add up, its queries are averaged."""
    together = torch.stack([weights[..., first:stop].sum(-1) for first, stop in columns], dim=-1)
    return torch.stack([together[..., first:stop, :].mean(-2) for first, stop in rows], dim=-2)


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """HTT of each layer, the first one first -> TT: what attention and the stream beside it carry up to each token.

    Each layer is half attention, the mean of its heads, and half the token itself (Abnar 2020, section 3).
    """
    through: Tensor | None = None
    for weights in layers:
        mixed = 0.5 * weights.mean(dim=0) + 0.5 * torch.eye(weights.shape[-1], device=weights.device)
        mixed = mixed / mixed.sum(-1, keepdim=True)
        through = mixed if through is None else mixed @ through
    assert through is not None, "there is a layer"
    return through


def measured(weights: Tensor, first: int = 0) -> Tensor:
    """...tS, of queries from `first` on -> 3...: sums over queries of entropy, distance and greatest weight.

    Entropy is in bits, distance in tokens between query and key. Weights that do not sum to one are taken as shares.
    """
    whole = weights.sum(-1).clamp_min(1e-12)
    entropy = (torch.special.entr(weights).sum(-1) / whole + whole.log()).clamp_min(0) / math.log(2)
    keys = torch.arange(weights.shape[-1], device=weights.device, dtype=weights.dtype)
    queries = torch.arange(first, first + weights.shape[-2], device=weights.device, dtype=weights.dtype)
    distance = torch.linalg.vecdot(weights, queries[:, None].sub(keys).abs_().expand_as(weights)) / whole
    return torch.stack([entropy.sum(-1), distance.sum(-1), weights.amax(-1).sum(-1)])


def tile_columns(weights: Tensor, tiles: int) -> Tensor:
    """Weights tS -> tn: the greatest weight of each tile of keys; key s belongs to tile floor(s * n / S)."""
    length = weights.shape[-1]
    if tiles >= length:
        return weights
    starts = -(-torch.arange(tiles + 1, device=weights.device) * length // tiles)
    # Tiles differ by one key at most: a shorter one looks at its last key twice.
    wide = torch.arange(-(-length // tiles), device=weights.device)
    keys = torch.minimum(starts[:-1, None] + wide, starts[1:, None] - 1)
    return torch.stack([weights.index_select(1, part) for part in keys.T], dim=-1).amax(-1)


class Tiles:
    """The greatest weight in each of r x c tiles of T x S weights, which come in blocks of queries."""

    def __init__(self, queries: int, keys: int, most: int) -> None:
        self.queries, self.most = queries, most
        self.weights = torch.zeros(min(most, queries), min(most, keys))

    def put(self, first: int, block: Tensor) -> None:
        """Take tS, of queries from `first` on."""
        count, last = len(self.weights), first + len(block)
        for row in range(first * count // self.queries, (last - 1) * count // self.queries + 1):
            start, stop = (-(-edge * self.queries // count) for edge in (row, row + 1))
            part = block[max(start - first, 0) : stop - first].amax(0, keepdim=True)
            self.weights[row] = torch.maximum(self.weights[row], tile_columns(part, self.weights.shape[1])[0].cpu())


def weightiest(weights: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Weights tS -> tk, tk: the weightiest keys, weightiest first, and their weights; key -1 where nothing weighs."""
    most, keys = weights.topk(min(count, weights.shape[-1]), dim=-1)
    return keys.masked_fill(most == 0, -1), most


@dataclass(frozen=True)
class Side:
    """Tokens, and the words that cover them in order; a token that stands in no word is one of its own."""

    tokens: list[str]
    numbers: list[int]  # which word of its text each token stands in; -1: none, as special tokens
    words: list[tuple[int, int]]  # from which token to before which
    word_texts: list[str]

    @classmethod
    def of(cls, tokens: Sequence[str], text: str, spans: Sequence[Span]) -> Side:
        """Tokens, and where each stands in a text: (0, 0) where it does not."""
        numbers = word_numbers(text, spans)
        firsts = [
            place
            for place, number in enumerate(numbers)
            if place == 0 or number < 0 or number != numbers[place - 1]
        ]  # fmt: skip
        words = list(zip(firsts, [*firsts[1:], len(tokens)]))
        texts = [
            text[spans[first][0] : spans[stop - 1][1]].strip() or "".join(tokens[first:stop]) for first, stop in words
        ]
        return cls(list(tokens), numbers, words, texts)

    @classmethod
    def bare(cls, tokens: Sequence[str]) -> Side:
        """Tokens of which each is a word."""
        places = range(len(tokens))
        return cls(list(tokens), list(places), [(place, place + 1) for place in places], list(tokens))

    def behind(self, token: str) -> Side:
        """The same but for its last token, behind another that stands in no word: what is read to say this."""
        last = len(self.tokens) - 1
        words = [(first + 1, min(stop, last) + 1) for first, stop in self.words if first < last]
        texts = self.word_texts[: len(words)]
        return Side([token, *self.tokens[:-1]], [-1, *self.numbers[:-1]], [(0, 1), *words], [token, *texts])

    def to_json(self) -> dict[str, Any]:
        """Plain data, as the page has it."""
        return {"tokens": self.tokens, "words": [list(span) for span in self.words], "word_texts": self.word_texts}


def side_of(tokenizer: Tokenizer, ids: Sequence[int], text: str | None = None) -> Side:
    """Tokens of which some are those of a text, the others around it; without a text, of what they say."""
    tokens, around = tokenizer.token_texts(ids), (0, 0)
    if text is None:
        return Side.of(tokens, *tokenizer.decode_in_place(ids))
    located = tokenizer.encode_in_place(text)
    count = len(located.ids)
    before = next((at for at in range(len(ids) - count + 1) if list(ids[at : at + count]) == located.ids), None)
    if before is None:
        return Side.of(tokens, *tokenizer.decode_in_place(ids))
    after = len(ids) - before - count
    return Side.of(tokens, text, [around] * before + located.spans + [around] * after)
