"""Texts as rows of tokens in one long array, worked out once and kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.draws import Indices
from regard.data.read.cache import Cache, Columns
from regard.data.read.texts import pieces, side_digest
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError

_SLICE_TEXTS = 10_000
_SLICE_CHARACTERS = 1_000_000


@dataclass(frozen=True, eq=False)
class Rows:
    """Many rows of tokens in one array; rows may overlap."""

    flat: NDArray[Any]
    starts: Indices
    lengths: NDArray[Any]

    def padded(self, indices: Indices, *, skip: int = 0, drop: int = 0, fill: int) -> Tensor:
        """BT: rows without their first `skip` and last `drop` tokens, filled up on the right."""
        lengths = self.lengths[indices].astype(np.int64) - skip - drop
        columns = np.arange(lengths.max(initial=0))
        places = (self.starts[indices] + skip)[:, None] + columns
        tokens = self.flat[np.minimum(places, len(self.flat) - 1)].astype(np.int64)
        return torch.from_numpy(np.where(columns < lengths[:, None], tokens, fill))


def rows_of(texts: Sequence[Sequence[int]]) -> Rows:
    """Rows from lists of tokens."""
    lengths = np.array([len(ids) for ids in texts], dtype=np.int64)
    flat = np.fromiter(chain.from_iterable(texts), dtype=np.int32, count=int(lengths.sum()))
    return Rows(flat, np.cumsum(lengths) - lengths, lengths)


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], cache: Cache = Cache()) -> Rows:  # noqa: B008 (frozen)
    """Each text as a row from begin to end; an empty one is an empty row."""
    key = [side_digest(texts), tokenizer.digest] if cache.root else None
    table = cache.table("tokens", key, lambda columns: _encode(tokenizer, texts, columns))
    return Rows(table.columns["tokens"], table.columns["starts"], table.columns["lengths"])


def _encode(tokenizer: Tokenizer, texts: Sequence[str], columns: Columns) -> Mapping[str, Any]:
    kind = np.uint16 if tokenizer.vocabulary <= 1 << 16 else np.int32
    columns.append("tokens", np.zeros(0, dtype=kind))
    columns.append("lengths", np.zeros(0, dtype=np.int32))
    columns.append("starts", np.zeros(0, dtype=np.int64))
    place = unfinished = 0
    for owners, parts, last in _slices(texts):
        encoded = tokenizer.encode_batch(parts)
        counts = np.array([len(ids) for ids in encoded], dtype=np.int64)
        flat = np.fromiter(chain.from_iterable(encoded), dtype=kind, count=int(counts.sum()))
        new = np.diff(owners, prepend=owners[0] if unfinished else -1) != 0
        framed = np.stack([new, last], axis=1) & ((counts > 0) | ~(new & last))[:, None]
        ends = np.cumsum(counts)
        where = np.stack([ends - counts, ends], axis=1)[framed]
        what = np.broadcast_to(np.array([tokenizer.begin, tokenizer.end], dtype=kind), framed.shape)[framed]
        columns.append("tokens", np.insert(flat, where, what))
        totals = np.bincount(owners - owners[0], weights=counts + framed.sum(1)).astype(np.int64)
        totals[0] += unfinished
        done = totals if last[-1] else totals[:-1]
        columns.append("lengths", done.astype(np.int32))
        columns.append("starts", place + np.cumsum(done) - done)
        place += int(done.sum())
        unfinished = 0 if last[-1] else int(totals[-1])
    return {}


def _slices(texts: Sequence[str]) -> Iterator[tuple[Indices, list[str], NDArray[np.bool_]]]:
    """Texts, the long ones in parts, in slices of bounded size: each part's text, the part, whether it is the last."""
    owners: list[int] = []
    parts: list[str] = []
    characters = 0
    for owner, part in pieces(texts):
        if len(parts) >= _SLICE_TEXTS or characters >= _SLICE_CHARACTERS:
            yield _slice(owners, parts, owner)
            owners, parts, characters = [], [], 0
        owners.append(owner)
        parts.append(part)
        characters += len(part)
    if parts:
        yield _slice(owners, parts, -1)


def _slice(owners: list[int], parts: list[str], following: int) -> tuple[Indices, list[str], NDArray[np.bool_]]:
    numbers = np.array(owners, dtype=np.int64)
    return numbers, parts, np.diff(numbers, append=following) != 0


class Dropout:
    """Encodes as a BPE tokenizer does, but each merge that could be made is passed over with a probability."""

    def __init__(self, tokenizer: Tokenizer, rate: float) -> None:
        model = json.loads(tokenizer.to_json())["model"]
        if model.get("type") != "BPE" or not model.get("merges"):
            raise InputError('bpe_dropout needs a tokenizer that merges (text.tokenizer). Use kind = "bpe".')
        merges = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._numbers: dict[str, int] = model["vocab"]
        self._tokenizer, self._rate = tokenizer, rate

    def encode(self, text: str, seed: int) -> list[int]:
        """Text to tokens; the same seed cuts the same text alike."""
        random = Random(seed)
        return [number for word in self._tokenizer.words(text) for number in self._cut(list(word), random)]

    def _cut(self, parts: list[str], random: Random) -> list[int]:
        while len(parts) > 1:
            possible = [
                (rank, place)
                for place, pair in enumerate(pairwise(parts))
                if (rank := self._ranks.get(pair)) is not None and random.random() >= self._rate
            ]
            if not possible:
                break
            place = min(possible)[1]
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return [self._number(part) for part in parts]

    def _number(self, part: str) -> int:
        number = self._numbers.get(part)
        return self._tokenizer.unknown if number is None else number


@dataclass(frozen=True, eq=False)
class Framed:
    """Rows with their frames, BT, how many tokens each has, and which text a token belongs to: 0 or 1."""

    ids: NDArray[np.int64]
    lengths: Indices
    segments: NDArray[np.int64]


@dataclass(frozen=True)
class Frame:
    """What stands before a text, behind it, and behind the row."""

    begin: int
    end: int
    pad: int
    between: int = 1  # ends between two texts: RoBERTa has two

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Frame:
        """The frame of a tokenizer's texts."""
        between = tokenizer.roles.between if tokenizer.roles else 1
        return cls(tokenizer.begin, tokenizer.end, tokenizer.pad, between)

    def around(self, texts: int) -> int:
        """How many tokens stand around so many texts of a row."""
        return 2 + self.between * (texts - 1)

    def put(self, texts: Sequence[Rows]) -> Framed:
        """Row i of each of `texts`, one behind the other; they come without frames of their own."""
        counts = [np.asarray(rows.lengths, dtype=np.int64) for rows in texts]
        lengths = np.stack(counts).sum(0) + self.around(len(texts))
        ids = np.full((len(lengths), int(lengths.max(initial=0))), self.pad, dtype=np.int64)
        segments = np.zeros_like(ids)
        ids[:, :1] = self.begin
        place = np.ones_like(lengths)
        every = np.arange(len(lengths))
        for number, (rows, count) in enumerate(zip(texts, counts)):
            owners, inside = spread(count)
            ids[owners, place[owners] + inside] = rows.flat[rows.starts[owners] + inside]
            ends = 1 if number == len(texts) - 1 else self.between
            for more in range(ends):
                ids[every, place + count + more] = self.end
                segments[every, place + count + more] = number
            segments[owners, place[owners] + inside] = number
            place = place + count + ends
        return Framed(ids, lengths, segments)


def spread(counts: NDArray[Any]) -> tuple[Indices, Indices]:
    """[2, 0, 3] -> [0, 0, 2, 2, 2] and [0, 1, 0, 1, 2]: which row each of so many is in, and its place there."""
    counts = np.asarray(counts, dtype=np.int64)
    owners = np.repeat(np.arange(len(counts)), counts)
    return owners, np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]


def unframed(rows: Rows, indices: Indices) -> Rows:
    """Some rows without their first and last tokens."""
    return Rows(rows.flat, rows.starts[indices] + 1, np.maximum(rows.lengths[indices].astype(np.int64) - 2, 0))


def padding_of(name: str, lengths: NDArray[Any]) -> dict[str, Tensor]:
    """BT, True where there is a token, under its name; nothing if all rows are equally long."""
    longest = lengths.max(initial=0)
    if (lengths == longest).all():
        return {}
    return {name: torch.from_numpy(np.arange(longest) < lengths[:, None])}
