"""Contrastive learning with in-batch negatives: find the partner of each text among all partners of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from regard.data.batching import IGNORE_INDEX, Batch, Indices
from regard.data.read.cache import Cache, Columns
from regard.data.read.corpus import Corpus
from regard.data.samples import LabelledSamples, LengthLimit, TokenizedSide, filter_texts
from regard.data.tasks.base import Outputs, TaskBase, Tokenizers, require_no_bpe_dropout, require_room, require_targets
from regard.data.tokenize.encode import Template, padding_mask, without_bos_and_eos
from regard.errors import InputError


@dataclass(frozen=True)
class Contrastive(TaskBase):
    """Predict which texts are pairs; a pair with a side of more than `max_length` tokens is left out."""

    max_length: int = 128
    outputs: ClassVar[Outputs] = "vectors"

    def __post_init__(self) -> None:
        require_room("max_length", self.max_length, 3)

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, bpe_dropout: float = 0.0  # noqa: B008
    ) -> ContrastiveSamples:  # fmt: skip
        require_no_bpe_dropout(bpe_dropout, "pairs of texts")
        tokenizer, other = tokenizers
        if other is not None:
            raise InputError("one model reads both texts (text.tokenizer.joint). Use joint = true.")
        if corpus.paired_sources:
            raise InputError(f"{corpus.names[0]} has three texts per line (text.fields). Name two.")
        targets = require_targets(corpus)
        sides = [TokenizedSide.encode(side, tokenizer, cache) for side in (corpus.sources, targets)]
        first, second = (side.rows for side in sides)

        def add_columns(kept: Indices, columns: Columns) -> None:
            # Both texts are rows of one batch, padded to the longer of them.
            longer = np.maximum(first.lengths[kept], second.lengths[kept]).astype(np.int32)
            columns.append("lengths", np.stack([longer, longer], axis=1))

        filtered = filter_texts(
            corpus, sides, LengthLimit(self.max_length), cache,
            kind="labelled", key=["contrastive"], counted=corpus.sources, labels=targets, add_columns=add_columns,
        )  # fmt: skip
        return ContrastiveSamples(filtered=filtered, sides=(first, second), template=Template.of(tokenizer))


@dataclass(frozen=True, eq=False, kw_only=True)
class ContrastiveSamples(LabelledSamples):
    """Pairs of texts; a batch has all first texts, then all second texts."""

    def batch(self, indices: Sequence[int] | Indices, seed: int | None = None) -> Batch:
        """A batch of pairs, two rows each; the target of a first text is the row of its partner."""
        texts = self.filtered.kept[np.asarray(indices, dtype=np.int64)]
        filled = [self.template.fill([without_bos_and_eos(side, texts)]) for side in self.sides]
        ids = np.full((2 * len(texts), max(one.ids.shape[1] for one in filled)), self.template.pad, dtype=np.int64)
        ids[: len(texts), : filled[0].ids.shape[1]] = filled[0].ids
        ids[len(texts) :, : filled[1].ids.shape[1]] = filled[1].ids
        targets = np.full(2 * len(texts), IGNORE_INDEX, dtype=np.int64)
        targets[: len(texts)] = np.arange(len(texts), 2 * len(texts))
        padding = padding_mask("padding", np.concatenate([one.lengths for one in filled]))
        return Batch({"ids": torch.from_numpy(ids), **padding}, torch.from_numpy(targets), tuple(texts.tolist()))
