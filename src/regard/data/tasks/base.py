"""What all problems have in common: names that are found in the text, and texts that cannot be learnt from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from regard import messages
from regard.data.draws import Indices, Share
from regard.data.read.cache import Cache, Columns, forget
from regard.data.read.corpus import Corpus
from regard.data.read.texts import side_digest, sizes_of
from regard.data.samples import LeftOut
from regard.data.tokenize.encode import Frame, Rows, encode_texts, spread
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError

Tokenizers = tuple[Tokenizer, Tokenizer | None]


class TaskBase:
    """A problem, as far as all are alike."""

    stacks: ClassVar[tuple[bool, bool] | None] = None  # whether an encoder and a decoder are needed; None: either
    sides: ClassVar[int] = 1  # of each token from which it is to be said
    like: ClassVar[str] = ""  # a model that is made for it
    aligned: ClassVar[bool] = False  # whether a pair's sides say the same, so that one that is shifted shows

    @property
    def reach(self) -> int:
        """How many positions rows may stand in, when they do not begin at 0."""
        return 0

    def named(self, corpus: Corpus) -> Self:
        """The problem with the names of what can be answered, as the training text has them."""
        return self

    def wording(self, corpus: Corpus) -> Corpus:
        """What of a corpus is cut into tokens, so that a tokenizer is trained on it."""
        return corpus


def blank(texts: Sequence[str], rows: Rows, tokenizer: Tokenizer, first: int, stop: int) -> NDArray[np.bool_]:
    """Which texts hold nothing but space; only those whose first token may be some are looked at."""
    found = np.zeros(stop - first, dtype=bool)
    filled = np.flatnonzero(rows.lengths[first:stop] > 2)
    leading = rows.flat[rows.starts[first + filled] + 1]
    space = [number for number in np.unique(leading).tolist() if not tokenizer.decode([number]).strip().strip("\ufffd")]
    for place in filled[np.isin(leading, space)].tolist():
        found[place] = not texts[first + place].strip()
    return found


def bad(corpus: Corpus, first: int, stop: int) -> NDArray[np.bool_]:
    """Which texts are not UTF-8."""
    return np.isin(np.arange(first, stop), list(corpus.bad)) if corpus.bad else np.zeros(stop - first, dtype=bool)


def require_room(name: str, value: int, least: int = 1) -> None:
    """Refuse a length in which nothing fits."""
    if value < least:
        raise InputError(f"{name} = {value} leaves no room for a token (text.task.{name}). Use {least} or more.")


def require_share(name: str, value: float) -> None:
    """Refuse a share of nothing, or of all."""
    if not 0 < value < 1:
        raise InputError(f"{name} must lie between 0 and 1, got {value} (text.task.{name}).")


def require_plain(corpus: Corpus, dropout: float) -> None:
    """Refuse pairs where plain text is learnt."""
    if corpus.targets is not None:
        raise InputError(f"{corpus.names[0]} has two sides (text.train). Name one file, or learn a translation.")
    require_no_dropout(dropout, "plain text")


def require_no_dropout(dropout: float, texts: str) -> None:
    """Refuse BPE-dropout where words are not cut anew."""
    if dropout:
        raise InputError(f"bpe_dropout is for translations (text.bpe_dropout). Leave it out for {texts}.")


def require_some(kept: int, corpus: Corpus, texts: str, left_out: LeftOut, remedy: str) -> None:
    """Refuse a corpus of which nothing is left."""
    if not kept:
        counts = sorted(left_out.counts().items(), key=lambda pair: -pair[1])
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts)
        raise messages.NOTHING_USABLE(
            path=corpus.names[0], texts=texts, count=len(corpus), reasons=reasons, remedy=remedy
        )


_BLOCK = 100_000


@dataclass(frozen=True, eq=False)
class Usable:
    """The texts of a corpus that are learnt from, those that are not, and what else was found of them."""

    corpus: Corpus
    kept: Indices
    left_out: LeftOut
    bytes: int
    columns: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False, kw_only=True)
class AnsweredSamples:
    """Texts with answers as samples; what is asked of them is for each problem to say."""

    usable: Usable
    lanes: ClassVar[int] = 0

    def __len__(self) -> int:
        return len(self.usable.kept)

    @property
    def corpus(self) -> Corpus:
        """The texts, and what belongs to each."""
        return self.usable.corpus

    @property
    def left_out(self) -> LeftOut:
        """The texts that are not among the samples."""
        return self.usable.left_out

    @property
    def bytes(self) -> int:
        """The bytes of the texts that are kept."""
        return self.usable.bytes

    @property
    def shares(self) -> tuple[Share, ...]:
        """The texts of each part of the corpus."""
        parts = self.usable.corpus.parts
        ends = np.searchsorted(self.usable.kept, list(accumulate(part.texts for part in parts)))
        return tuple(Share(n, part.weight) for n, part in zip(np.diff(ends, prepend=0).tolist(), parts))

    def where(self, indices: Sequence[int] | Indices) -> str:
        """The lines these texts come from."""
        return self.usable.corpus.where(self.usable.kept[np.asarray(indices, dtype=np.int64)])


@dataclass(frozen=True, eq=False, kw_only=True)
class FramedSamples(AnsweredSamples):
    """Texts, or pairs of texts, with answers, that stand in a frame."""

    sides: tuple[Rows, ...]
    frame: Frame

    @property
    def lengths(self) -> NDArray[Any]:
        """The tokens of each sample as they stand in a batch."""
        return self.usable.columns["lengths"]

    @property
    def text_lengths(self) -> tuple[NDArray[Any], ...]:
        """The tokens of every text."""
        return tuple(side.lengths for side in self.sides)


@dataclass(frozen=True, eq=False)
class Limit:
    """How long texts may be: all that stand in a frame together, or, without one, each alone."""

    max_length: int
    frame: Frame | None = None

    def exceeded(self, lengths: NDArray[Any]) -> NDArray[np.bool_]:
        """Which rows are too long, given the tokens of each text, begin and end included."""
        if self.frame is None:
            return np.asarray(lengths.max(1) > self.max_length)
        return np.asarray((lengths - 2).sum(1) + self.frame.around(lengths.shape[1]) > self.max_length)


def answers_of(corpus: Corpus) -> Sequence[str]:
    """What belongs to each text of a corpus."""
    if corpus.targets is None:
        raise InputError(
            f'{corpus.names[0]} has no answers (text.train). Name the text and them: text.fields = ["text", "label"].'
        )
    return corpus.targets


def find_usable(
    corpus: Corpus,
    texts: Sequence[tuple[Sequence[str], Rows]],
    tokenizer: Tokenizer,
    limit: Limit,
    cache: Cache,
    said: list[Any],
    more: Callable[[Indices, Columns], None],
) -> Usable:
    """The texts that are there, have an answer and are not too long; `more` adds columns about them, as `said`."""

    def make(columns: Columns) -> Mapping[str, Any]:
        left_out, kept = _sort_out(corpus, texts, tokenizer, limit)
        columns.append("kept", kept)
        columns.append("left", left_out.index)
        columns.append("reason", left_out.reason)
        more(kept, columns)
        return {"reasons": left_out.reasons, "bytes": int(sizes_of(corpus.sources)[kept].sum())}

    answers_of(corpus)
    key = (
        [corpus.digest, corpus.joined, tokenizer.digest, limit.max_length, limit.frame is None, said]
        if cache.root
        else None
    )
    table = cache.table("answers", key, make)
    left_out = LeftOut(table.columns["left"], table.columns["reason"], tuple(table.facts["reasons"]))
    kept = table.columns["kept"]
    require_some(len(kept), corpus, "lines", left_out, "Raise text.task.max_length or split the text.")
    return Usable(corpus, kept, left_out, table.facts["bytes"], table.columns)


def _sort_out(
    corpus: Corpus, texts: Sequence[tuple[Sequence[str], Rows]], tokenizer: Tokenizer, limit: Limit
) -> tuple[LeftOut, Indices]:
    reasons = ("not UTF-8", "empty", f"longer than {limit.max_length:,} tokens")
    held = np.full(len(corpus), len(reasons), dtype=np.uint8)
    for first in range(0, len(corpus), _BLOCK):
        stop = min(len(corpus), first + _BLOCK)
        lengths = np.stack([rows.lengths[first:stop] for _, rows in texts], axis=1).astype(np.int64)
        blanks = [blank(side, rows, tokenizer, first, stop) for side, rows in texts]
        blanks.append(np.array([not answer.strip() for answer in answers_of(corpus)[first:stop]], dtype=bool))
        tests = [bad(corpus, first, stop), (lengths <= 2).any(1) | np.any(blanks, axis=0), limit.exceeded(lengths)]
        for reason in reversed(range(len(reasons))):
            held[first:stop][tests[reason]] = reason
    left = np.flatnonzero(held < len(reasons))
    return LeftOut(left, held[left], reasons), np.flatnonzero(held == len(reasons))


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
