"""Encoding of texts: ragged rows of token ids, cached; BPE-dropout; the template of special tokens around texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.data.read.cache import Cache, Columns
from regard.data.read.texts import text_parts, texts_digest
from regard.data.tokenize.tokenizer import FIRST_TEXT, SECOND_TEXT, Pieces, SpecialTokens, Tokenizer
from regard.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from regard.data.batching import Indices

_SLICE_TEXTS = 10_000
_SLICE_CHARACTERS = 1_000_000

Reads = Literal["text", "prompt", "source"]
"""What a model reads: a text or a pair as a whole, a prompt to continue, or the source of a translation."""


@dataclass(frozen=True, eq=False)
class TokenRows:
    """A ragged array: rows of token ids in one flat array; rows may overlap."""

    tokens: NDArray[Any]
    starts: Indices
    lengths: NDArray[Any]

    def padded(self, indices: Indices, *, skip: int = 0, drop: int = 0, fill: int) -> Tensor:
        """BT: rows without their first `skip` and last `drop` tokens, padded on the right."""
        import torch

        lengths = self.lengths[indices].astype(np.int64) - skip - drop
        columns = np.arange(lengths.max(initial=0))
        offsets = (self.starts[indices] + skip)[:, None] + columns
        tokens = self.tokens[np.minimum(offsets, len(self.tokens) - 1)].astype(np.int64)
        return torch.from_numpy(np.where(columns < lengths[:, None], tokens, fill))


def token_rows(rows: Sequence[Sequence[int]]) -> TokenRows:
    """Lists of token ids as a ragged array."""
    lengths = np.array([len(ids) for ids in rows], dtype=np.int64)
    tokens = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths.sum()))
    return TokenRows(tokens, np.cumsum(lengths) - lengths, lengths)


def without_bos_and_eos(rows: TokenRows, indices: Indices) -> TokenRows:
    """Some rows without their first and last token."""
    lengths = np.maximum(rows.lengths[indices].astype(np.int64) - 2, 0)
    return TokenRows(rows.tokens, rows.starts[indices] + 1, lengths)


def ragged_indices(counts: NDArray[Any]) -> tuple[Indices, Indices]:
    """[2, 0, 3] -> [0, 0, 2, 2, 2] and [0, 1, 0, 1, 2]: the row and the column of each element of ragged rows."""
    counts = np.asarray(counts, dtype=np.int64)
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]


def padding_mask(name: str, lengths: NDArray[Any]) -> dict[str, Tensor]:
    """A padding mask under its name: BT, True where there is a token; {} if all rows have the same length."""
    import torch

    longest = lengths.max(initial=0)
    if (lengths == longest).all():
        return {}
    return {name: torch.from_numpy(np.arange(longest) < lengths[:, None])}


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], cache: Cache = Cache()) -> TokenRows:  # noqa: B008 (frozen)
    """Each text as a row: bos, tokens, eos; an empty text is an empty row."""
    key = [texts_digest(texts), tokenizer.digest] if cache.root else None
    table = cache.table("tokens", key, lambda columns: _encode(tokenizer, texts, columns))
    return TokenRows(table.columns["tokens"], table.columns["starts"], table.columns["lengths"])


def _encode(tokenizer: Tokenizer, texts: Sequence[str], columns: Columns) -> Mapping[str, Any]:
    kind = np.uint16 if tokenizer.vocabulary <= 1 << 16 else np.int32
    columns.append("tokens", np.zeros(0, dtype=kind))
    columns.append("lengths", np.zeros(0, dtype=np.int32))
    columns.append("starts", np.zeros(0, dtype=np.int64))
    offset = unfinished = 0
    for owners, parts, last in _slices(texts):
        encoded = tokenizer.encode_batch(parts)
        counts = np.array([len(ids) for ids in encoded], dtype=np.int64)
        tokens = np.fromiter(chain.from_iterable(encoded), dtype=kind, count=int(counts.sum()))
        first = np.diff(owners, prepend=owners[0] if unfinished else -1) != 0
        # Whether bos goes before a part, and eos behind it.
        special = np.stack([first, last], axis=1) & ((counts > 0) | ~(first & last))[:, None]
        ends = np.cumsum(counts)
        where = np.stack([ends - counts, ends], axis=1)[special]
        what = np.broadcast_to(np.array([tokenizer.bos, tokenizer.eos], dtype=kind), special.shape)[special]
        columns.append("tokens", np.insert(tokens, where, what))
        totals = np.bincount(owners - owners[0], weights=counts + special.sum(1)).astype(np.int64)
        totals[0] += unfinished
        finished = totals if last[-1] else totals[:-1]
        columns.append("lengths", finished.astype(np.int32))
        columns.append("starts", offset + np.cumsum(finished) - finished)
        offset += int(finished.sum())
        unfinished = 0 if last[-1] else int(totals[-1])
    return {}


def _slices(texts: Sequence[str]) -> Iterator[tuple[Indices, list[str], NDArray[np.bool_]]]:
    """Slices of bounded size: the text index of each part, the parts, and which of them are the last of their text."""
    owners: list[int] = []
    parts: list[str] = []
    characters = 0
    for owner, part in text_parts(texts):
        if len(parts) >= _SLICE_TEXTS or characters >= _SLICE_CHARACTERS:
            yield np.array(owners, dtype=np.int64), parts, np.diff(owners, append=owner) != 0
            owners, parts, characters = [], [], 0
        owners.append(owner)
        parts.append(part)
        characters += len(part)
    if parts:
        yield np.array(owners, dtype=np.int64), parts, np.diff(owners, append=-1) != 0


class BPEDropout:
    """BPE-dropout (Provilkov 2020): encodes as a BPE tokenizer, but skips each possible merge with a probability."""

    def __init__(self, tokenizer: Tokenizer, probability: float) -> None:
        model = json.loads(tokenizer.to_json())["model"]
        if model.get("type") != "BPE" or not model.get("merges"):
            raise InputError('bpe_dropout needs a tokenizer that merges (text.tokenizer). Use kind = "bpe".')
        merges = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._vocabulary: dict[str, int] = model["vocab"]
        self._tokenizer, self._probability = tokenizer, probability

    def encode(self, text: str, seed: int) -> list[int]:
        """Text to token ids; a function of text and seed."""
        random = Random(seed)
        return [number for word in self._tokenizer.words(text) for number in self._merge(list(word), random)]

    def _merge(self, parts: list[str], random: Random) -> list[int]:
        while len(parts) > 1:
            possible = [
                (rank, index)
                for index, pair in enumerate(pairwise(parts))
                if (rank := self._ranks.get(pair)) is not None and random.random() >= self._probability
            ]
            if not possible:
                break
            index = min(possible)[1]
            parts[index : index + 2] = [parts[index] + parts[index + 1]]
        known = self._vocabulary
        # Not `get`: unk is asked for only where it is needed, because a vocabulary of bytes may lack it
        return [known[part] if part in known else self._tokenizer.unk for part in parts]  # noqa: SIM401


@dataclass(frozen=True, eq=False)
class FilledTemplate:
    """Rows with special tokens, BT, their lengths, the segment of each token, and whether it is special."""

    ids: NDArray[np.int64]
    lengths: Indices
    segments: NDArray[np.int64]
    special: NDArray[np.bool_]


@dataclass(frozen=True)
class Template:
    """The special tokens around a text and around a pair of texts: [CLS] A [SEP] and [CLS] A [SEP] B [SEP] in BERT."""

    single: Pieces
    pair: Pieces
    pad: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, reads: Reads = "text") -> Template:
        """The tokenizer's own template, or else the usual one for what a model reads."""
        given = tokenizer.special_tokens or SpecialTokens()
        if given.single is not None and given.pair is not None:
            return cls(given.single, given.pair, tokenizer.pad)
        before = () if reads == "source" else ((tokenizer.bos, 0),)
        after = () if reads == "prompt" else (tokenizer.eos,)
        single = (*before, (FIRST_TEXT, 0), *((token, 0) for token in after))
        pair = (*single, (SECOND_TEXT, 1), *((token, 1) for token in after))
        return cls(single, pair, tokenizer.pad)

    @property
    def prefix(self) -> tuple[int, ...]:
        """The special tokens before a text."""
        return tuple(token for token, _ in takewhile(lambda piece: piece[0] != FIRST_TEXT, self.single))

    def num_special_tokens(self, texts: int) -> int:
        """The number of special tokens in a row of one text or two."""
        return sum(token >= 0 for token, _ in self._pieces(texts))

    def row(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The tokens of a text with the special tokens around them."""
        return tuple(chain.from_iterable(ids if token == FIRST_TEXT else (token,) for token, _ in self.single))

    def fill(self, texts: Sequence[TokenRows]) -> FilledTemplate:
        """Row i of each of `texts`, which come without special tokens, in one row."""
        counts = [np.asarray(rows.lengths, dtype=np.int64) for rows in texts]
        lengths = np.stack(counts).sum(0) + self.num_special_tokens(len(texts))
        ids = np.full((len(lengths), int(lengths.max(initial=0))), self.pad, dtype=np.int64)
        segments, special = np.zeros_like(ids), np.zeros(ids.shape, dtype=bool)
        column, all_rows = np.zeros_like(lengths), np.arange(len(lengths))
        for token, segment in self._pieces(len(texts)):
            if token >= 0:
                ids[all_rows, column], segments[all_rows, column], special[all_rows, column] = token, segment, True
                column = column + 1
                continue
            rows, count = texts[FIRST_TEXT - token], counts[FIRST_TEXT - token]
            owners, inside = ragged_indices(count)
            ids[owners, column[owners] + inside] = rows.tokens[rows.starts[owners] + inside]
            segments[owners, column[owners] + inside] = segment
            column = column + count
        return FilledTemplate(ids, lengths, segments, special)

    def _pieces(self, texts: int) -> Pieces:
        return self.single if texts == 1 else self.pair
