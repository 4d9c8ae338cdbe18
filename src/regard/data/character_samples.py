"""Samples of any task by the characters of their tokens, for a model with a character CNN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batching import Batch, Indices, MixtureComponent
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.samples import LeftOut, Samples
from regard.data.tokenize.characters import Characters, token_characters
from regard.data.tokenize.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class CharacterSamples:
    """Samples of any task for a model with a character CNN: the inputs are characters, BTC; targets stay token ids."""

    samples: Samples
    table: Characters

    @property
    def corpus(self) -> Corpus:
        return self.samples.corpus

    @property
    def lengths(self) -> NDArray[Any]:
        return self.samples.lengths

    @property
    def text_lengths(self) -> tuple[NDArray[Any], ...]:
        return self.samples.text_lengths

    @property
    def left_out(self) -> LeftOut:
        return self.samples.left_out

    @property
    def bytes(self) -> int:
        return self.samples.bytes

    @property
    def mixture(self) -> tuple[MixtureComponent, ...]:
        return self.samples.mixture

    @property
    def streams(self) -> int:
        return self.samples.streams

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: Sequence[int] | Indices, seed: int | None = None) -> Batch:
        batch = self.samples.batch(indices, seed)
        ids = torch.from_numpy(np.asarray(self.table)[batch.inputs["ids"].numpy()])
        return replace(batch, inputs={**batch.inputs, "ids": ids})

    def where(self, indices: Sequence[int] | Indices) -> str:
        return self.samples.where(indices)


def with_characters(samples: Samples, tokenizer: Tokenizer, characters: int, cache: Cache | None = None) -> Samples:
    """Samples with so many characters per token in place of its id; with 0, unchanged."""
    return CharacterSamples(samples, token_characters(tokenizer, cache, characters)) if characters else samples
