"""Which texts with an answer can be learnt from, worked out once and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.errors import InputError
from regard.text.cache import Cache, Columns
from regard.text.corpus import Corpus
from regard.text.encode import Rows
from regard.text.frame import Frame
from regard.text.objective import bad, blank, require_some
from regard.text.order import Indices, Share
from regard.text.samples import LeftOut
from regard.text.texts import sizes_of
from regard.text.tokenizer import Tokenizer

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

    longest: int
    frame: Frame | None = None

    def exceeded(self, lengths: NDArray[Any]) -> NDArray[np.bool_]:
        """Which rows are too long, given the tokens of each text, begin and end included."""
        if self.frame is None:
            return np.asarray(lengths.max(1) > self.longest)
        return np.asarray((lengths - 2).sum(1) + self.frame.around(lengths.shape[1]) > self.longest)


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
        [corpus.digest, corpus.joined, tokenizer.digest, limit.longest, limit.frame is None, said]
        if cache.root
        else None
    )
    table = cache.table("answers", key, make)
    left_out = LeftOut(table.columns["left"], table.columns["reason"], tuple(table.facts["reasons"]))
    kept = table.columns["kept"]
    require_some(len(kept), corpus, "lines", left_out, "Raise text.problem.longest or split the text.")
    return Usable(corpus, kept, left_out, table.facts["bytes"], table.columns)


def _sort_out(
    corpus: Corpus, texts: Sequence[tuple[Sequence[str], Rows]], tokenizer: Tokenizer, limit: Limit
) -> tuple[LeftOut, Indices]:
    reasons = ("not UTF-8", "empty", f"longer than {limit.longest:,} tokens")
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
