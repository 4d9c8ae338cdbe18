"""Bidirectional language model (biLM), as in ELMo (Peters 2018): predict the next token and the previous one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batching import IGNORE_INDEX, Batch, Indices
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.samples import ChunkSamples, chunk_documents
from regard.data.tasks.base import ModelShape, TaskBase, Tokenizers, require_one_side, require_room
from regard.data.tokenize.encode import Template, padding_mask


@dataclass(frozen=True)
class BidirectionalLM(TaskBase):
    """Predict the next and the previous token, in chunks of at most `length` tokens."""

    length: int = 128
    model_shape: ClassVar[ModelShape | None] = "encoder"
    directions: ClassVar[int] = 2
    suggested_model: ClassVar[str] = "elmo"

    def __post_init__(self) -> None:
        require_room("length", self.length, 3)

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, bpe_dropout: float = 0.0  # noqa: B008
    ) -> BidirectionalSamples:  # fmt: skip
        require_one_side(corpus, bpe_dropout)
        template = Template.of(tokenizers[0])
        max_tokens = self.length - template.num_special_tokens(1)
        chunks = chunk_documents(corpus, tokenizers[0], cache, max_tokens=max_tokens)
        return BidirectionalSamples(chunks=chunks, template=template)


@dataclass(frozen=True, eq=False, kw_only=True)
class BidirectionalSamples(ChunkSamples):
    """Chunks of documents in which each token is predicted from both directions."""

    @property
    def lengths(self) -> NDArray[Any]:
        return np.asarray(self.chunks.lengths)[:, None] + self.template.num_special_tokens(1)

    def batch(self, indices: Sequence[int] | Indices, seed: int | None = None) -> Batch:
        """A batch of chunks; targets are BT2: the next token and the previous one."""
        chosen = np.asarray(indices, dtype=np.int64)
        filled = self.template.fill([self.chunks.tokens(chosen)])
        real = np.arange(filled.ids.shape[1]) < filled.lengths[:, None]
        tokens = np.where(real, filled.ids, IGNORE_INDEX)
        targets = np.full((*tokens.shape, 2), IGNORE_INDEX, dtype=np.int64)
        targets[:, :-1, 0] = tokens[:, 1:]
        targets[:, 1:, 1] = np.where(real[:, 1:], tokens[:, :-1], IGNORE_INDEX)
        inputs = {"ids": torch.from_numpy(filled.ids), **padding_mask("padding", filled.lengths)}
        return Batch(inputs, torch.from_numpy(targets), tuple(self.chunks.owners[chosen].tolist()))
