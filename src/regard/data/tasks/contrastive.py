"""Pairs of texts that belong together, told from those that do not: each is to find its partner in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from regard.data.batching import IGNORE, Batch
from regard.data.draws import Indices
from regard.data.read.cache import Cache, Columns
from regard.data.read.corpus import Corpus
from regard.data.tasks.base import (
    FramedSamples,
    Limit,
    TaskBase,
    Tokenizers,
    answers_of,
    find_usable,
    require_no_dropout,
    require_room,
)
from regard.data.tokenize.encode import Frame, encode_texts, padding_of, unframed
from regard.errors import InputError


@dataclass(frozen=True)
class Contrastive(TaskBase):
    """Say which text belongs to which; a pair with a side of more than `max_length` tokens is dropped."""

    max_length: int = 128

    def __post_init__(self) -> None:
        require_room("max_length", self.max_length, 3)

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, dropout: float = 0.0  # noqa: B008
    ) -> ContrastSamples:  # fmt: skip
        """The pairs of a corpus."""
        require_no_dropout(dropout, "pairs of texts")
        tokenizer, other = tokenizers
        if other is not None:
            raise InputError("one model reads both texts (text.tokenizer.joint). Use joint = true.")
        if corpus.joined:
            raise InputError(f"{corpus.names[0]} has three texts a line (text.fields). Name two.")
        texts = (corpus.sources, answers_of(corpus))
        first, second = (encode_texts(tokenizer, side, cache) for side in texts)

        def more(kept: Indices, columns: Columns) -> None:
            # Both stand in one batch, padded to the max_length of either.
            longer = np.maximum(first.lengths[kept], second.lengths[kept]).astype(np.int32)
            columns.append("lengths", np.stack([longer, longer], axis=1))

        limit = Limit(self.max_length)
        usable = find_usable(
            corpus, list(zip(texts, (first, second))), tokenizer, limit, cache, ["contrast"], more
        )  # fmt: skip
        return ContrastSamples(usable=usable, sides=(first, second), frame=Frame.of(tokenizer))


@dataclass(frozen=True, eq=False, kw_only=True)
class ContrastSamples(FramedSamples):
    """Pairs of texts, of which a batch has all the first and then all the second."""

    def batch(self, indices: Sequence[int] | Indices, draw: int | None = None) -> Batch:
        """Some of the pairs, two rows each; the target of a first text is the row of the second."""
        texts = self.usable.kept[np.asarray(indices, dtype=np.int64)]
        framed = [self.frame.put([unframed(side, texts)]) for side in self.sides]
        ids = np.full((2 * len(texts), max(one.ids.shape[1] for one in framed)), self.frame.pad, dtype=np.int64)
        ids[: len(texts), : framed[0].ids.shape[1]] = framed[0].ids
        ids[len(texts) :, : framed[1].ids.shape[1]] = framed[1].ids
        targets = np.full(2 * len(texts), IGNORE, dtype=np.int64)
        targets[: len(texts)] = np.arange(len(texts), 2 * len(texts))
        padding = padding_of("padding", np.concatenate([one.lengths for one in framed]))
        return Batch({"ids": torch.from_numpy(ids), **padding}, torch.from_numpy(targets), tuple(texts.tolist()))
