"""Held-out text: a share of the training text that validates or tests instead, chosen by content.

Texts are chosen by a hash of the text, or of the source of a pair, so duplicates stay together, and a text stays where
it is when others are added. Of plain text in a few long documents, the end of each is held out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from regard.data.corpora import Split
from regard.data.read.cache import Cache, Columns
from regard.data.read.texts import StoredTexts, text_parts
from regard.errors import InputError

FEW = 20  # documents, of which the ends are held out
_BLOCK = 100_000
_WINDOW = 1 << 20  # bytes in which the end of a line is searched


@dataclass(frozen=True)
class HeldOut:
    """The shares of the training text that are held out."""

    valid: float = 0.0
    test: float = 0.0

    def __post_init__(self) -> None:
        for name in ("valid", "test"):
            if not 0 <= getattr(self, name) <= 0.5:
                raise InputError(
                    f"a share of the training text lies between 0 and 0.5, got {getattr(self, name)} (text.{name}). "
                    "Use 0.05, or name a file."
                )

    def __bool__(self) -> bool:
        return bool(self.valid or self.test)


def split_texts(
    sides: tuple[StoredTexts, ...], split: Split, held_out: HeldOut, cache: Cache
) -> tuple[tuple[StoredTexts, ...], NDArray[np.int64]]:
    """The sides of the texts that belong to a split, and the indices of these texts in the file."""
    cut = sides[0].whole_files and len(sides[0]) < FEW
    key = ["split", [side.digest for side in sides], held_out.valid, held_out.test, cut]

    def make(columns: Columns) -> dict[str, int]:
        for name in get_args(Split):
            columns.append(name, np.zeros(0, dtype=np.int64))
            for number in range(len(sides)):
                columns.append(f"{name}-{number}", np.zeros((0, 2), dtype=np.int64))
        for name, indices, bounds in _cut_ends(sides[0], held_out) if cut else _by_content(sides, held_out):
            columns.append(name, indices)
            for number, found in enumerate(bounds):
                columns.append(f"{name}-{number}", found)
        return {}

    table = cache.table("split", key, make)
    indices = table.columns[split]
    name = f"{split} of {held_out.valid} and {held_out.test}"
    parts = (side.part(indices, table.columns[f"{split}-{number}"], name) for number, side in enumerate(sides))
    return tuple(parts), indices


Found = Iterator[tuple[Split, NDArray[np.int64], list[NDArray[np.int64]]]]
"""Block by block: a split, the indices of its texts, and their bounds on each side."""


def _by_content(sides: tuple[StoredTexts, ...], held_out: HeldOut) -> Found:
    shares = _content_shares(sides[0])
    limits = np.array([held_out.test, held_out.test + held_out.valid])
    names: tuple[Split, ...] = ("test", "valid", "train")
    for first in range(0, len(sides[0]), _BLOCK):
        count = min(_BLOCK, len(sides[0]) - first)
        kinds = np.searchsorted(limits, np.fromiter(shares, dtype=np.float64, count=count), side="right")
        for number, name in enumerate(names):
            chosen = first + np.flatnonzero(kinds == number)
            yield name, chosen, [np.asarray(side.bounds[chosen]) for side in sides]


def _content_shares(texts: Sequence[str]) -> Iterator[float]:
    """A number from 0 to 1 per text, which depends on its words alone: not on case or spaces."""
    for _, parts in groupby(text_parts(texts), key=itemgetter(0)):
        digest = hashlib.blake2b(digest_size=8)
        for _, part in parts:
            digest.update(" ".join(part.casefold().split()).encode("utf-8", "surrogatepass"))
        yield int.from_bytes(digest.digest(), "big") / (1 << 64)


def _cut_ends(texts: StoredTexts, held_out: HeldOut) -> Found:
    """Each document in three, cut at the end of a line: train, valid, test."""
    for index, (start, stop) in enumerate(texts.bounds.tolist()):
        size = stop - start
        test = _line_start(texts, start, stop - round(size * held_out.test), stop)
        valid = _line_start(texts, start, test - round(size * held_out.valid), test)
        pieces: list[tuple[Split, int, int]] = [("train", start, valid), ("valid", valid, test), ("test", test, stop)]
        for name, begin, end in pieces:
            if begin < end:
                yield name, np.array([index]), [np.array([[begin, end]])]


def _line_start(texts: StoredTexts, start: int, position: int, stop: int) -> int:
    """The first start of a line at or behind a position; the first word, where no line starts."""
    if position <= start or position == stop:
        return max(start, position)
    window = texts.raw(position - 1, min(stop, position + _WINDOW))
    for mark in (b"\n", b" "):
        found = window.find(mark)
        if 0 <= found < len(window) - 1:
            return position + found
    return stop
