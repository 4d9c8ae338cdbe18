"""Rows as a network reads them: begin, text, end; or begin, one text, end, another text, end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.text.encode import Rows
from regard.text.order import Indices
from regard.text.tokenizer import Tokenizer


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
