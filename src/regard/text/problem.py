"""What a text is to be learnt as: a translation of another, or what comes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import InputError
from regard.text.batch import IGNORE, Batch, Indices
from regard.text.corpus import Corpus, cut_text
from regard.text.tokenizer import Tokenizer

_SLICE_TEXTS = 10_000
_SLICE_CHARACTERS = 1_000_000


class Samples(Protocol):
    """A corpus as rows that can be drawn in any order."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Samples by sides: the tokens of each as they stand in a batch."""

    @property
    def dropped(self) -> dict[str, int]:
        """How many texts or pairs were left out, by reason."""

    @property
    def bytes(self) -> int:
        """The UTF-8 bytes of all that is to be predicted in an epoch."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int] | Indices) -> Batch:
        """Some of the samples, padded on the right to the longest."""

    def where(self, indices: Sequence[int] | Indices) -> str:
        """Where in the corpus these samples come from."""


@dataclass(frozen=True)
class Translation:
    """Say the source in the target's language; a pair with a side of more than `longest` tokens is dropped."""

    longest: int = 256

    def __post_init__(self) -> None:
        _require_positive("longest", self.longest)

    def samples(self, corpus: Corpus, tokenizers: tuple[Tokenizer, Tokenizer | None]) -> PairSamples:
        """The pairs of a corpus as tokens."""
        if corpus.targets is None:
            raise InputError(f"{corpus.names[0]} has one side (text.train). Name two, as in data/train.{{de,en}}.")
        source, target = tokenizers[0], tokenizers[1] or tokenizers[0]
        sides = encode_texts(source, corpus.sources), encode_texts(target, corpus.targets)
        lengths = np.stack([side.lengths for side in sides], axis=1) + 1
        empty = (lengths == 1).any(axis=1)
        long = (lengths > self.longest).any(axis=1) & ~empty
        dropped = {f"longer than {self.longest:,} tokens": int(long.sum()), "empty": int(empty.sum())}
        kept = np.flatnonzero(~empty & ~long)
        _require_some(len(kept), corpus, "lines", dropped, remedy="Raise text.problem.longest or split the text.")
        return PairSamples(
            corpus=corpus,
            sources=sides[0].select(kept).framed(source.begin, source.end),
            targets=sides[1].select(kept).framed(target.begin, target.end),
            kept=kept,
            pads=(source.pad, target.pad),
            dropped=_counted(dropped),
            bytes=_size(corpus.targets, kept),
        )


@dataclass(frozen=True)
class NextToken:
    """Say what comes next; documents are packed one after the other into rows of `length` tokens."""

    length: int = 256

    def __post_init__(self) -> None:
        _require_positive("length", self.length)

    def samples(self, corpus: Corpus, tokenizers: tuple[Tokenizer, Tokenizer | None]) -> PackedSamples:
        """The documents of a corpus as rows: begin, document, end, begin, document, end, ..."""
        if corpus.targets is not None:
            raise InputError(f"{corpus.names[0]} has two sides (text.train). Name one file, or learn a translation.")
        tokenizer = tokenizers[0]
        encoded = encode_texts(tokenizer, corpus.sources)
        kept = np.flatnonzero(encoded.lengths)
        dropped = {"empty": len(corpus) - len(kept)}
        _require_some(len(kept), corpus, "documents", dropped, remedy="Name a file that holds text.")
        stream = encoded.select(kept).framed(tokenizer.begin, tokenizer.end)
        starts = np.arange(0, len(stream.flat) - 1, self.length)
        rows = Rows(stream.flat, starts, np.minimum(self.length + 1, len(stream.flat) - starts))
        return PackedSamples(
            corpus=corpus,
            rows=rows,
            kept=kept,
            starts=stream.starts,
            begin=tokenizer.begin,
            pad=tokenizer.pad,
            dropped=_counted(dropped),
            bytes=_size(corpus.sources, kept),
        )


def default_problem(corpus: Corpus) -> Translation | NextToken:
    """A translation where there are pairs, else the next token."""
    return NextToken() if corpus.targets is None else Translation()


@dataclass(frozen=True, eq=False)
class Rows:
    """Many rows of tokens in one array; rows may overlap."""

    flat: NDArray[np.int32]
    starts: Indices
    lengths: NDArray[np.int64]

    def select(self, kept: Indices) -> Rows:
        """Some of the rows, and none of the other tokens."""
        if len(kept) == len(self.lengths):
            return self
        wanted = np.zeros(len(self.lengths), dtype=bool)
        wanted[kept] = True
        return _rows(self.flat[np.repeat(wanted, self.lengths)], self.lengths[kept])

    def framed(self, begin: int, end: int) -> Rows:
        """Each row between two tokens."""
        places = np.stack([self.starts, self.starts + self.lengths], axis=1).ravel()
        tokens = np.tile(np.array([begin, end], dtype=np.int32), len(self.lengths))
        return _rows(np.insert(self.flat, places, tokens), self.lengths + 2)

    def padded(self, indices: Indices, *, skip: int = 0, drop: int = 0, fill: int) -> Tensor:
        """BT: rows without their first `skip` and last `drop` tokens, filled up on the right."""
        lengths = self.lengths[indices] - skip - drop
        columns = np.arange(lengths.max(initial=0))
        places = (self.starts[indices] + skip)[:, None] + columns
        tokens = self.flat[np.minimum(places, len(self.flat) - 1)]
        return torch.from_numpy(np.where(columns < lengths[:, None], tokens, fill).astype(np.int64))


@dataclass(frozen=True, eq=False, kw_only=True)
class PairSamples:
    """Pairs of sentences, each a row from begin to end; the source is read without its begin."""

    corpus: Corpus
    sources: Rows
    targets: Rows
    kept: Indices
    pads: tuple[int, int]
    dropped: dict[str, int]
    bytes: int

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Pairs by sides: source and end, begin and target."""
        return np.stack([self.sources.lengths, self.targets.lengths], axis=1) - 1

    def batch(self, indices: Sequence[int] | Indices) -> Batch:
        """Some of the pairs, padded on the right to the longest."""
        rows = np.asarray(indices, dtype=np.int64)
        inputs = {
            "ids": self.targets.padded(rows, drop=1, fill=self.pads[1]),
            "source_ids": self.sources.padded(rows, skip=1, fill=self.pads[0]),
            **_padding("padding", self.targets.lengths[rows] - 1),
            **_padding("source_padding", self.sources.lengths[rows] - 1),
        }
        targets = self.targets.padded(rows, skip=1, fill=IGNORE)
        return Batch(inputs, targets, tuple(self.kept[rows].tolist()))

    def where(self, indices: Sequence[int] | Indices) -> str:
        """The lines these pairs come from."""
        return self.corpus.where(self.kept[np.asarray(indices, dtype=np.int64)])


@dataclass(frozen=True, eq=False, kw_only=True)
class PackedSamples:
    """Documents in one stream cut into rows, each row one token longer than its input."""

    corpus: Corpus
    rows: Rows
    kept: Indices
    starts: Indices
    begin: int
    pad: int
    dropped: dict[str, int]
    bytes: int

    def __len__(self) -> int:
        return len(self.rows.lengths)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Rows by one side."""
        return self.rows.lengths[:, None] - 1

    def batch(self, indices: Sequence[int] | Indices) -> Batch:
        """Some of the rows; after a document's end nothing is to be predicted until the next has begun."""
        rows = np.asarray(indices, dtype=np.int64)
        ids = self.rows.padded(rows, drop=1, fill=self.pad)
        targets = self.rows.padded(rows, skip=1, fill=IGNORE)
        targets[targets == self.begin] = IGNORE
        inputs = {"ids": ids, **_padding("padding", self.rows.lengths[rows] - 1), **self._documents(ids)}
        return Batch(inputs, targets, tuple(self.kept[self._document_at(self.rows.starts[rows])].tolist()))

    def where(self, indices: Sequence[int] | Indices) -> str:
        """The documents these rows touch."""
        rows = np.asarray(indices, dtype=np.int64)
        first = self._document_at(self.rows.starts[rows])
        last = self._document_at(self.rows.starts[rows] + self.rows.lengths[rows] - 2)
        touched = [self.kept[start : stop + 1] for start, stop in zip(first, last)]
        return self.corpus.where(chain.from_iterable(touched))

    def _document_at(self, places: Indices) -> Indices:
        """Which kept document each place of the stream belongs to."""
        return np.searchsorted(self.starts, places, side="right") - 1

    def _documents(self, ids: Tensor) -> dict[str, Tensor]:
        """BT -> which document of its row a token is in, and its place there; nothing if every row has one."""
        begins = ids == self.begin
        if not begins[:, 1:].any():
            return {}
        document = begins.cumsum(1) - begins[:, :1].long()
        columns = torch.arange(ids.shape[1]).expand_as(ids)
        last_begin = torch.where(begins, columns, 0).cummax(1).values
        return {"positions": columns - last_begin, "document": document}


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> Rows:
    """Texts as rows of tokens, encoded in slices so that memory stays bounded."""
    lengths = np.zeros(len(texts), dtype=np.int64)
    flat = [np.zeros(0, dtype=np.int32)]
    for owners, parts in _slices(texts):
        encoded = tokenizer.encode_batch(parts)
        np.add.at(lengths, owners, [len(ids) for ids in encoded])
        flat.append(np.fromiter(chain.from_iterable(encoded), dtype=np.int32))
    return _rows(np.concatenate(flat), lengths)


def _slices(texts: Sequence[str]) -> Iterator[tuple[list[int], list[str]]]:
    """Texts, the long ones in parts, in slices of bounded size, and which text each part belongs to."""
    owners: list[int] = []
    parts: list[str] = []
    characters = 0
    for owner, text in enumerate(texts):
        for part in cut_text(text):
            owners.append(owner)
            parts.append(part)
            characters += len(part)
            if len(parts) == _SLICE_TEXTS or characters >= _SLICE_CHARACTERS:
                yield owners, parts
                owners, parts, characters = [], [], 0
    yield owners, parts


def _rows(flat: NDArray[np.int32], lengths: NDArray[np.int64]) -> Rows:
    return Rows(flat, np.cumsum(lengths) - lengths, lengths)


def _padding(name: str, lengths: NDArray[np.int64]) -> dict[str, Tensor]:
    """BT, True where there is a token, under its name; nothing if all rows are equally long."""
    longest = lengths.max(initial=0)
    if (lengths == longest).all():
        return {}
    return {name: torch.from_numpy(np.arange(longest) < lengths[:, None])}


def _size(texts: Sequence[str], kept: Indices) -> int:
    """The UTF-8 bytes of some texts."""
    return sum(len(texts[index].encode()) for index in kept.tolist())


def _counted(dropped: dict[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in dropped.items() if count}


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise InputError(f"{name} = {value} leaves no room for a token (text.problem.{name}). Use 1 or more.")


def _require_some(kept: int, corpus: Corpus, texts: str, dropped: dict[str, int], *, remedy: str) -> None:
    if kept:
        return
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in _counted(dropped).items())
    raise InputError(f"{corpus.names[0]} has 0 usable {texts} of {len(corpus):,}: {reasons}. {remedy}")
