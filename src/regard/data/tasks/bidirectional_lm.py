"""What comes next and what came before, as ELMo learns it (Peters 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batching import IGNORE, Batch
from regard.data.draws import Indices
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.tasks.base import TaskBase, PieceSamples, Tokenizers, cut, require_plain, require_room
from regard.data.tokenize.encode import Frame, padding_of


@dataclass(frozen=True)
class BidirectionalLM(TaskBase):
    """Say the token that follows and the one before, in pieces of at most `length` tokens."""

    length: int = 128
    stacks: ClassVar[tuple[bool, bool] | None] = (True, False)
    sides: ClassVar[int] = 2
    like: ClassVar[str] = "elmo"

    def __post_init__(self) -> None:
        require_room("length", self.length, 3)

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, dropout: float = 0.0  # noqa: B008
    ) -> BothWaysSamples:  # fmt: skip
        """The pieces of a corpus."""
        require_plain(corpus, dropout)
        tokenizer = tokenizers[0]
        return BothWaysSamples(
            pieces=cut(corpus, tokenizer, cache, room=self.length - 2), frame=Frame.of(tokenizer)
        )  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class BothWaysSamples(PieceSamples):
    """Pieces of documents, of which each token is said from both sides."""

    @property
    def lengths(self) -> NDArray[Any]:
        """Pieces by one side."""
        return np.asarray(self.pieces.counts)[:, None] + 2

    def batch(self, indices: Sequence[int] | Indices, draw: int | None = None) -> Batch:
        """Some of the pieces; targets are BT2: the token behind, and the token before."""
        places = np.asarray(indices, dtype=np.int64)
        framed = self.frame.put([self.pieces.rows(places)])
        real = np.arange(framed.ids.shape[1]) < framed.lengths[:, None]
        asked = np.where(real, framed.ids, IGNORE)
        targets = np.full((*asked.shape, 2), IGNORE, dtype=np.int64)
        targets[:, :-1, 0] = asked[:, 1:]
        targets[:, 1:, 1] = np.where(real[:, 1:], asked[:, :-1], IGNORE)
        inputs = {"ids": torch.from_numpy(framed.ids), **padding_of("padding", framed.lengths)}
        return Batch(inputs, torch.from_numpy(targets), tuple(self.pieces.owners[places].tolist()))
