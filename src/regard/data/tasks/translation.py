"""Translation: predict the target of a pair from its source (sequence to sequence)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.data.batching import IGNORE_INDEX, Batch, Indices
from regard.data.read.cache import Cache, Columns
from regard.data.read.corpus import Corpus
from regard.data.read.texts import prefixed
from regard.data.samples import FilteredSamples, LengthLimit, TokenizedSide, filter_texts
from regard.data.tasks.base import ModelShape, TaskBase, Tokenizers, require_room
from regard.data.tokenize.encode import BPEDropout, TokenRows, padding_mask, token_rows
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError


@dataclass(frozen=True)
class Translation(TaskBase):
    """Predict the target from the source; a pair with a side of more than `max_length` tokens is left out."""

    max_length: int = 256
    prefix: str = ""  # before every source: names the task, as in T5
    aligned: ClassVar[bool] = True
    model_shape: ClassVar[ModelShape | None] = "encoder-decoder"

    def __post_init__(self) -> None:
        require_room("max_length", self.max_length)

    def tokenizer_text(self, corpus: Corpus) -> Corpus:
        return replace(corpus, sources=prefixed(corpus.sources, self.prefix))

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, bpe_dropout: float = 0.0  # noqa: B008
    ) -> TranslationSamples:  # fmt: skip
        if corpus.targets is None:
            raise InputError(f"{corpus.names[0]} has one side (text.train). Name two, as in data/train.{{de,en}}.")
        corpus = self.tokenizer_text(corpus)
        assert corpus.targets is not None
        both = tokenizers[0], tokenizers[1] or tokenizers[0]
        sides = [TokenizedSide.encode(*side, cache) for side in zip(corpus.sides, both)]
        source, target = (side.rows for side in sides)

        def add_columns(kept: Indices, columns: Columns) -> None:
            # The source is read without bos; the target's input has no eos.
            lengths = np.stack([side.lengths[kept] - 1 for side in (source, target)], axis=1)
            columns.append("lengths", lengths.astype(np.int32))

        filtered = filter_texts(
            corpus, sides, LengthLimit(self.max_length, uncounted=1), cache,
            kind="pairs", key=[], counted=corpus.targets, add_columns=add_columns,
        )  # fmt: skip
        return TranslationSamples(
            filtered=filtered,
            sides=(source, target),
            tokenizers=both,
            bpe_dropout=tuple(BPEDropout(one, bpe_dropout) for one in both) if bpe_dropout else (),
            max_length=self.max_length,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class TranslationSamples(FilteredSamples):
    """Pairs of sentences; rows have bos and eos, the source is read without bos."""

    tokenizers: tuple[Tokenizer, Tokenizer]
    bpe_dropout: tuple[BPEDropout, ...] = ()
    max_length: int = 0

    @property
    def lengths(self) -> NDArray[Any]:
        """Pairs by sides: source and eos, bos and target."""
        return self.filtered.columns["lengths"]

    def batch(self, indices: Sequence[int] | Indices, seed: int | None = None) -> Batch:
        """A batch of pairs; with a seed, BPE-dropout is applied if there is any."""
        texts = self.filtered.kept[np.asarray(indices, dtype=np.int64)]
        sources, targets = self.sides
        rows = texts
        if seed is not None and self.bpe_dropout:
            sources, targets = (self._encode_with_dropout(side, texts, seed) for side in (0, 1))
            rows = np.arange(len(texts))
        inputs = {
            "ids": targets.padded(rows, drop=1, fill=self.tokenizers[1].pad),
            "source_ids": sources.padded(rows, skip=1, fill=self.tokenizers[0].pad),
            **padding_mask("padding", targets.lengths[rows] - 1),
            **padding_mask("source_padding", sources.lengths[rows] - 1),
        }
        return Batch(inputs, targets.padded(rows, skip=1, fill=IGNORE_INDEX), tuple(texts.tolist()))

    def _encode_with_dropout(self, side: int, texts: Indices, seed: int) -> TokenRows:
        """Rows of some texts under BPE-dropout; a row above the maximal length is encoded without it."""
        tokenizer = self.tokenizers[side]
        rows = []
        for number in texts.tolist():
            ids = self.bpe_dropout[side].encode(self.corpus.sides[side][number], (seed << 40) ^ (2 * number + side))
            if len(ids) + 1 > self.max_length:
                start, length = int(self.sides[side].starts[number]), int(self.sides[side].lengths[number])
                ids = self.sides[side].tokens[start + 1 : start + length - 1].tolist()
            rows.append([tokenizer.bos, *ids, tokenizer.eos])
        return token_rows(rows)
