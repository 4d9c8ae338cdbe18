"""TODO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from regard.data.read.cache import Cache, Columns, forget
from regard.data.read.corpus import Corpus
from regard.data.read.texts import prefixed, sizes_of
from regard.data.samples import LeftOut, PairSamples
from regard.data.tasks.base import TaskBase, Tokenizers, bad, blank, require_room, require_some
from regard.data.tokenize.encode import Dropout, Rows, encode_texts
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError

_BLOCK = 100_000


@dataclass(frozen=True)
class Translation(TaskBase):
    """Say the source in the target's language; a pair with a side of more than `max_length` tokens is dropped."""

    max_length: int = 256
    prefix: str = ""  # before every source: what is to be done with it
    aligned: ClassVar[bool] = True
    stacks: ClassVar[tuple[bool, bool] | None] = (True, True)
    like: ClassVar[str] = "transformer"

    def __post_init__(self) -> None:
        require_room("max_length", self.max_length)

    def wording(self, corpus: Corpus) -> Corpus:
        """The pairs with the prefix before each source."""
        return replace(corpus, sources=prefixed(corpus.sources, self.prefix))

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, dropout: float = 0.0  # noqa: B008
    ) -> PairSamples:  # fmt: skip
        """The pairs of a corpus as tokens."""
        if corpus.targets is None:
            raise InputError(f"{corpus.names[0]} has one side (text.train). Name two, as in data/train.{{de,en}}.")
        corpus = self.wording(corpus)
        assert corpus.targets is not None
        both = tokenizers[0], tokenizers[1] or tokenizers[0]
        sides = encode_texts(both[0], corpus.sources, cache), encode_texts(both[1], corpus.targets, cache)
        key = [corpus.digest, [one.digest for one in both], self.max_length] if cache.root else None
        table = cache.table("pairs", key, lambda columns: self._sort_out(corpus, sides, both, columns))
        left_out = LeftOut(table.columns["left"], table.columns["reason"], tuple(table.facts["reasons"]))
        kept = table.columns["kept"]
        require_some(len(kept), corpus, "lines", left_out, "Raise text.task.max_length or split the text.")
        return PairSamples(
            corpus=corpus,
            sides=sides,
            kept=kept,
            lengths=table.columns["lengths"],
            pads=(both[0].pad, both[1].pad),
            frames=tuple((one.begin, one.end) for one in both),
            left_out=left_out,
            bytes=table.facts["bytes"],
            dropout=tuple(Dropout(one, dropout) for one in both) if dropout else (),
            max_length=self.max_length,
        )

    def _sort_out(
        self, corpus: Corpus, sides: tuple[Rows, Rows], tokenizers: tuple[Tokenizer, Tokenizer], columns: Columns
    ) -> Mapping[str, Any]:
        """Which pairs are learnt from, block by block."""
        reasons = ("not UTF-8", "empty", f"longer than {self.max_length:,} tokens")
        assert corpus.targets is not None
        size = 0
        for first in range(0, len(corpus), _BLOCK):
            stop = min(len(corpus), first + _BLOCK)
            lengths = np.stack([side.lengths[first:stop] for side in sides], axis=1) - 1
            blanks = [blank(*of, first, stop) for of in zip(corpus.sides, sides, tokenizers)]
            tests = [
                bad(corpus, first, stop),
                (lengths <= 1).any(axis=1) | np.any(blanks, axis=0),
                (lengths > self.max_length).any(axis=1),
            ]
            held = np.stack([*tests, np.ones(stop - first, dtype=bool)], axis=1).argmax(axis=1)
            left, kept = np.flatnonzero(held < len(reasons)), np.flatnonzero(held == len(reasons))
            columns.append("kept", kept + first)
            columns.append("lengths", lengths[kept].astype(np.int32))
            columns.append("left", left + first)
            columns.append("reason", held[left].astype(np.uint8))
            size += int(sizes_of(corpus.targets, first, stop)[kept].sum())
            for side in sides:
                for column in (side.flat, side.starts, side.lengths):
                    forget(column)
        return {"reasons": reasons, "bytes": size}
