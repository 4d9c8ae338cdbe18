"""Documents cut into pieces, each a row of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.text.cache import Cache, Columns, forget
from regard.text.corpus import Corpus
from regard.text.encode import Rows, encode_texts
from regard.text.frame import Frame, spread
from regard.text.objective import require_some
from regard.text.order import Indices, Share
from regard.text.samples import LeftOut
from regard.text.texts import side_digest, sizes_of
from regard.text.tokenizer import Tokenizer

_BLOCK = 100_000


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of documents: where each starts, how many tokens it has, and which document it is of."""

    corpus: Corpus
    stream: Rows
    starts: Indices
    counts: NDArray[Any]
    owners: Indices
    left_out: LeftOut
    bytes: int

    def __len__(self) -> int:
        return len(self.owners)

    def rows(self, indices: Indices) -> Rows:
        """Some of the pieces, without frames."""
        return Rows(self.stream.flat, self.starts[indices], self.counts[indices].astype(np.int64))


@dataclass(frozen=True, eq=False, kw_only=True)
class PieceSamples:
    """Pieces of documents as samples; what is asked of them is for each problem to say."""

    pieces: Pieces
    frame: Frame
    lanes: ClassVar[int] = 0

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def corpus(self) -> Corpus:
        """The documents."""
        return self.pieces.corpus

    @property
    def text_lengths(self) -> tuple[NDArray[Any], ...]:
        """The tokens of every document."""
        return (self.pieces.stream.lengths,)

    @property
    def left_out(self) -> LeftOut:
        """The documents that have no piece."""
        return self.pieces.left_out

    @property
    def bytes(self) -> int:
        """The bytes of the documents."""
        return self.pieces.bytes

    @property
    def shares(self) -> tuple[Share, ...]:
        """The pieces of each part of the corpus."""
        parts = self.pieces.corpus.parts
        ends = np.searchsorted(self.pieces.owners, list(accumulate(part.texts for part in parts)))
        return tuple(Share(n, part.weight) for n, part in zip(np.diff(ends, prepend=0).tolist(), parts))

    def where(self, indices: Sequence[int] | Indices) -> str:
        """The documents these pieces are of."""
        return self.pieces.corpus.where(self.pieces.owners[np.asarray(indices, dtype=np.int64)])


def cut(corpus: Corpus, tokenizer: Tokenizer, cache: Cache, *, room: int, least: int = 1) -> Pieces:
    """Documents in as few pieces of at most `room` tokens as can be, all of a document's about equally long."""
    stream = encode_texts(tokenizer, corpus.sources, cache)
    key = [side_digest(corpus.sources), tokenizer.digest, room, least] if cache.root else None
    table = cache.table("pieces", key, lambda columns: _cut(corpus, stream, room, least, columns))
    columns = table.columns
    left_out = LeftOut(columns["left"], columns["reason"], tuple(table.facts["reasons"]))
    require_some(len(columns["owners"]), corpus, "documents", left_out, "Name a file that holds text.")
    return Pieces(
        corpus, stream, columns["starts"], columns["counts"], columns["owners"], left_out, table.facts["bytes"]
    )


def _cut(corpus: Corpus, stream: Rows, room: int, least: int, columns: Columns) -> Mapping[str, Any]:
    size = 0
    for first in range(0, len(corpus), _BLOCK):
        stop = min(len(corpus), first + _BLOCK)
        tokens = np.maximum(stream.lengths[first:stop].astype(np.int64) - 2, 0)
        pieces = np.where(tokens < least, 0, -(-tokens // room))
        owners, inside = spread(pieces)
        starts = inside * tokens[owners] // pieces[owners]
        stops = (inside + 1) * tokens[owners] // pieces[owners]
        columns.append("starts", stream.starts[first + owners] + 1 + starts)
        columns.append("counts", (stops - starts).astype(np.int32))
        columns.append("owners", owners + first)
        left = np.flatnonzero(pieces == 0)
        broken = np.isin(left + first, list(corpus.bad))
        columns.append("left", left + first)
        columns.append("reason", np.where(broken, 0, np.where(tokens[left] == 0, 1, 2)).astype(np.uint8))
        size += int(sizes_of(corpus.sources, first, stop)[pieces > 0].sum())
        for column in (stream.starts, stream.lengths):
            forget(column)
    return {"reasons": ("not UTF-8", "empty", f"shorter than {least} tokens"), "bytes": size}
