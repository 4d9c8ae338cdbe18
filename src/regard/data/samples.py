"""Texts as rows of tokens that can be drawn in any order: pairs of sentences, or documents packed into rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching import IGNORE, Batch
from regard.data.draws import Draws, Indices, Share
from regard.data.read.corpus import Corpus
from regard.data.tokenize.encode import Dropout, Rows, padding_of, rows_of, spread

_FIRST = 1  # what is drawn


@dataclass(frozen=True, eq=False)
class LeftOut:
    """The texts that are not learnt from, and why: `reason[i]` of `reasons` for text `index[i]`."""

    index: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    reason: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))
    reasons: tuple[str, ...] = ()

    def counts(self) -> dict[str, int]:
        """How many were left out, by reason; reasons that never held are not named."""
        found = np.bincount(self.reason, minlength=len(self.reasons)).tolist()
        return {reason: count for reason, count in zip(self.reasons, found) if count}


class Samples(Protocol):
    """A corpus as rows that can be drawn in any order."""

    @property
    def corpus(self) -> Corpus:
        """The texts, as they are cut into tokens."""

    @property
    def lengths(self) -> NDArray[Any]:
        """Samples by sides: the tokens of each as they stand in a batch."""

    @property
    def text_lengths(self) -> tuple[NDArray[Any], ...]:
        """The tokens of every text, begin and end included, side by side; of those left out too."""

    @property
    def left_out(self) -> LeftOut:
        """The texts or pairs that are not among the samples."""

    @property
    def bytes(self) -> int:
        """The UTF-8 bytes of all that is to be predicted in an epoch."""

    @property
    def shares(self) -> tuple[Share, ...]:
        """How many samples come from each part of the corpus, and how often each comes in an epoch."""

    @property
    def lanes(self) -> int:
        """How many texts are read abreast, each on from step to step: sample i + lanes follows i. 0: any order."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int] | Indices, draw: int | None = None) -> Batch:
        """Some of the samples, padded on the right to the max_length; what is random in them follows from `draw`."""

    def where(self, indices: Sequence[int] | Indices) -> str:
        """Where in the corpus these samples come from."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PairSamples:
    """Pairs of sentences, each a row from begin to end; the source is read without its begin."""

    corpus: Corpus
    sides: tuple[Rows, Rows]
    kept: Indices
    lengths: NDArray[Any]  # pairs by sides: source and end, begin and target
    pads: tuple[int, int]
    frames: tuple[tuple[int, int], ...]
    left_out: LeftOut
    bytes: int
    dropout: tuple[Dropout, ...] = ()
    max_length: int = 0
    lanes: ClassVar[int] = 0

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def text_lengths(self) -> tuple[NDArray[Any], ...]:
        """The tokens of every line."""
        return tuple(side.lengths for side in self.sides)

    @property
    def shares(self) -> tuple[Share, ...]:
        """The pairs of each part of the corpus."""
        ends = np.searchsorted(self.kept, list(accumulate(part.texts for part in self.corpus.parts)))
        counts = np.diff(ends, prepend=0).tolist()
        return tuple(Share(count, part.weight) for count, part in zip(counts, self.corpus.parts))

    def batch(self, indices: Sequence[int] | Indices, draw: int | None = None) -> Batch:
        """Some of the pairs, padded on the right to the max_length; with a draw, words are cut as it has it."""
        texts = self.kept[np.asarray(indices, dtype=np.int64)]
        sources, targets = self.sides
        rows = texts
        if draw is not None and self.dropout:
            sources, targets = (self._cut_anew(side, texts, draw) for side in (0, 1))
            rows = np.arange(len(texts))
        inputs = {
            "ids": targets.padded(rows, drop=1, fill=self.pads[1]),
            "source_ids": sources.padded(rows, skip=1, fill=self.pads[0]),
            **padding_of("padding", targets.lengths[rows] - 1),
            **padding_of("source_padding", sources.lengths[rows] - 1),
        }
        return Batch(inputs, targets.padded(rows, skip=1, fill=IGNORE), tuple(texts.tolist()))

    def where(self, indices: Sequence[int] | Indices) -> str:
        """The lines these pairs come from."""
        return self.corpus.where(self.kept[np.asarray(indices, dtype=np.int64)])

    def _cut_anew(self, side: int, texts: Indices, draw: int) -> Rows:
        """The rows of some texts under BPE-dropout; one that grows beyond the max_length stays as it was."""
        begin, end = self.frames[side]
        rows = []
        for number in texts.tolist():
            ids = self.dropout[side].encode(self.corpus.sides[side][number], (draw << 40) ^ (2 * number + side))
            if len(ids) + 1 > self.max_length:
                start, length = int(self.sides[side].starts[number]), int(self.sides[side].lengths[number])
                ids = self.sides[side].flat[start + 1 : start + length - 1].tolist()
            rows.append([begin, *ids, end])
        return rows_of(rows)


@dataclass(frozen=True, eq=False, kw_only=True)
class PackedSamples:
    """Documents in one stream cut into rows, each row one token longer than its input."""

    corpus: Corpus
    stream: Rows
    length: int
    pad: int
    left_out: LeftOut
    bytes: int
    lanes: int = 0
    shift: int = 0  # positions begin at random, so that a row ends within so many; 0: at 0

    def __len__(self) -> int:
        return -(-(len(self.stream.flat) - 1) // self.length)

    @property
    def lengths(self) -> NDArray[Any]:
        """Rows by one side."""
        lengths = np.full((len(self), 1), self.length, dtype=np.int32)
        lengths[-1] = len(self.stream.flat) - 1 - (len(self) - 1) * self.length
        return lengths

    @property
    def text_lengths(self) -> tuple[NDArray[Any], ...]:
        """The tokens of every document."""
        return (self.stream.lengths,)

    @property
    def shares(self) -> tuple[Share, ...]:
        """The rows that begin in each part of the corpus."""
        ends = [int(self.stream.lengths[:end].sum()) for end in accumulate(part.texts for part in self.corpus.parts)]
        rows = np.minimum(-(-np.array(ends) // self.length), len(self))
        return tuple(Share(n, part.weight) for n, part in zip(np.diff(rows, prepend=0).tolist(), self.corpus.parts))

    def batch(self, indices: Sequence[int] | Indices, draw: int | None = None) -> Batch:
        """Some of the rows; after a document's end nothing is to be predicted until the next has begun."""
        places = np.asarray(indices, dtype=np.int64)
        rows = Rows(self.stream.flat, *self._bounds(places))
        every = np.arange(len(places))
        ids = rows.padded(every, drop=1, fill=self.pad)
        targets = rows.padded(every, skip=1, fill=IGNORE)
        begins = self._begins(rows)
        targets[begins[:, 1:]] = IGNORE
        inputs = {"ids": ids, **padding_of("padding", rows.lengths - 1), **self._documents(begins[:, :-1])}
        if self.shift and draw is not None:
            first = Draws(draw, places).below(_FIRST, self.shift - rows.lengths + 2)
            along = inputs.get("positions", torch.arange(ids.shape[1]))
            # What stands behind a short row is no token, but has a position too.
            inputs["positions"] = (along + torch.from_numpy(first)[:, None]).clamp_max(self.shift - 1)
        return Batch(inputs, targets, tuple(self._document_at(rows.starts).tolist()))

    def where(self, indices: Sequence[int] | Indices) -> str:
        """The documents these rows touch."""
        starts, lengths = self._bounds(np.asarray(indices, dtype=np.int64))
        touched = zip(self._document_at(starts).tolist(), self._document_at(starts + lengths - 2).tolist())
        return self.corpus.where(chain.from_iterable(self._filled(first, last) for first, last in touched))

    def _bounds(self, rows: Indices) -> tuple[Indices, Indices]:
        """Where rows start in the stream, and how many tokens they have."""
        starts = rows * self.length
        return starts, np.minimum(self.length + 1, len(self.stream.flat) - starts)

    def _document_at(self, places: Indices) -> Indices:
        """Which document each place of the stream belongs to."""
        return np.searchsorted(self.stream.starts, places, side="right") - 1

    def _filled(self, first: int, last: int) -> Iterator[int]:
        return (number for number in range(first, last + 1) if self.stream.lengths[number])

    def _begins(self, rows: Rows) -> Tensor:
        """BT, one column more than the inputs: where documents begin, whatever token it is that begins them."""
        first = np.searchsorted(self.stream.starts, rows.starts)
        counts = np.searchsorted(self.stream.starts, rows.starts + rows.lengths) - first
        owners, places = spread(counts)
        found = np.zeros((len(rows.starts), int(rows.lengths.max(initial=1))), dtype=bool)
        found[owners, self.stream.starts[first[owners] + places] - rows.starts[owners]] = True
        return torch.from_numpy(found)

    @staticmethod
    def _documents(begins: Tensor) -> dict[str, Tensor]:
        """BT -> which document of its row a token is in, and its place there; nothing if every row has one."""
        if not begins[:, 1:].any():
            return {}
        document = begins.cumsum(1) - begins[:, :1].long()
        columns = torch.arange(begins.shape[1]).expand_as(begins)
        last_begin = torch.where(begins, columns, 0).cummax(1).values
        return {"positions": columns - last_begin, "document": document}
