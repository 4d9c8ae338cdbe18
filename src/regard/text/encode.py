"""Texts as rows of tokens in one long array, worked out once and kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.text.cache import Cache, Columns
from regard.text.order import Indices
from regard.text.texts import pieces, side_digest
from regard.text.tokenizer import Tokenizer

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
