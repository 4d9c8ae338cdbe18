"""Spans of text taken out and said in their order, as T5 learns it (Raffel 2020, section 3.1.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batching import IGNORE, Batch
from regard.data.draws import Drawn, Draws, Indices
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.tasks.base import TaskBase, PieceSamples, Tokenizers, cut, require_plain, require_room, require_share
from regard.data.tokenize.encode import Frame, padding_of, spread
from regard.errors import InputError

_KEPT, _TAKEN = 1, 2  # what is drawn: where runs of kept and of taken tokens begin


@dataclass(frozen=True)
class SpanCorruption(TaskBase):
    """Say the spans that were taken out of a piece of at most `length` tokens: a share of it, `mean` tokens each."""

    length: int = 256
    share: float = 0.15
    mean: float = 3.0
    stacks: ClassVar[tuple[bool, bool] | None] = (True, True)
    like: ClassVar[str] = "t5"

    def __post_init__(self) -> None:
        require_room("length", self.length, 4)
        require_share("share", self.share)
        if not self.mean >= 1:
            raise InputError(f"mean must be 1 or more, got {self.mean} (text.task.mean).")

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, dropout: float = 0.0  # noqa: B008
    ) -> SpanSamples:  # fmt: skip
        """The pieces of a corpus; the end stands behind each, so they have one token less than `length`."""
        require_plain(corpus, dropout)
        tokenizer = tokenizers[0]
        pieces = cut(corpus, tokenizer, cache, room=self.length - 1, least=2)
        taken, spans = self.counts(np.asarray(pieces.counts))
        most, sentinels = int(spans.max()), tokenizer.sentinels
        if most > len(sentinels):
            raise InputError(
                f"{most} spans are taken out of a piece, and the tokenizer has {len(sentinels)} sentinels for them "
                f"(text.tokenizer). Use sentinels = {max(100, most)}, or a shorter text.task.length."
            )
        lengths = np.stack([pieces.counts - taken + spans + 1, taken + spans + 1], axis=1).astype(np.int32)
        return SpanSamples(
            pieces=pieces,
            frame=Frame.of(tokenizer),
            task=self,
            lengths=lengths,
            sentinels=np.array(sentinels, dtype=np.int64),
        )

    def counts(self, tokens: NDArray[Any]) -> tuple[Indices, Indices]:
        """How many tokens are taken out of pieces of so many, and in how many spans."""
        taken = np.clip(np.rint(tokens * self.share), 1, tokens - 1).astype(np.int64)
        spans = np.clip(np.rint(taken / self.mean), 1, np.minimum(taken, tokens - taken)).astype(np.int64)
        return taken, spans


@dataclass(frozen=True, eq=False, kw_only=True)
class SpanSamples(PieceSamples):
    """Pieces of documents, each with a sentinel in place of every span that was taken out."""

    task: SpanCorruption
    lengths: NDArray[Any]  # pieces by sides: what is left and its end, what was taken and its end
    sentinels: Indices

    def batch(self, indices: Sequence[int] | Indices, draw: int | None = None) -> Batch:
        """Some of the pieces: the source is what is left, the target the spans, each behind its sentinel."""
        places = np.asarray(indices, dtype=np.int64)
        rows, draws = self.pieces.rows(places), Draws(draw, places)
        taken, spans = self.task.counts(rows.lengths)
        kept_runs = _runs(draws, _KEPT, rows.lengths - taken, spans)
        taken_runs = _runs(draws, _TAKEN, taken, spans)
        owners, numbers = spread(spans)
        # A piece is kept run, span, kept run, span, ...: what stands before each, of its own kind and of both.
        kept_before, taken_before = _before(kept_runs, spans), _before(taken_runs, spans)
        begins = rows.starts[owners] + kept_before + taken_before
        sources, targets = (self._filled(places, side) for side in (0, 1))
        runs, inside = spread(kept_runs)
        sources[owners[runs], (kept_before + numbers)[runs] + inside] = rows.flat[begins[runs] + inside]
        sources[owners, kept_before + kept_runs + numbers] = self.sentinels[numbers]
        runs, inside = spread(taken_runs)
        targets[owners[runs], (taken_before + numbers + 1)[runs] + inside] = rows.flat[
            (begins + kept_runs)[runs] + inside
        ]
        targets[owners, taken_before + numbers] = self.sentinels[numbers]
        lengths = self.lengths[places]
        ids = np.full_like(targets, self.frame.pad)
        ids[:, :1], ids[:, 1:] = self.frame.begin, targets[:, :-1]
        beyond = np.arange(ids.shape[1]) >= lengths[:, 1:]
        ids[beyond] = self.frame.pad
        inputs = {
            "ids": torch.from_numpy(ids),
            "source_ids": torch.from_numpy(sources),
            **padding_of("padding", lengths[:, 1]),
            **padding_of("source_padding", lengths[:, 0]),
        }
        targets[beyond] = IGNORE
        return Batch(inputs, torch.from_numpy(targets), tuple(self.pieces.owners[places].tolist()))

    def _filled(self, places: Indices, side: int) -> NDArray[np.int64]:
        """BT: rows of padding with an end in its place."""
        lengths = self.lengths[places, side].astype(np.int64)
        rows = np.full((len(places), int(lengths.max(initial=0))), self.frame.pad, dtype=np.int64)
        rows[np.arange(len(places)), lengths - 1] = self.frame.end
        return rows


def _runs(draws: Draws, purpose: int, tokens: Indices, runs: Indices) -> Indices:
    """Tokens cut at drawn places into runs of one or more; -> the lengths of all runs, row after row."""
    width = int(tokens.max(initial=1)) - 1
    keys: Drawn = np.where(np.arange(width) < tokens[:, None] - 1, draws.uniform(purpose, width), 2.0)
    ranks = keys.argsort(axis=1)
    chosen = np.zeros(keys.shape, dtype=bool)
    np.put_along_axis(chosen, ranks, np.arange(width) < runs[:, None] - 1, axis=1)
    gaps = np.nonzero(chosen)[1]
    # A run begins at 0 and behind each chosen gap; it ends where the next one begins, or with its row.
    first = np.cumsum(runs) - runs
    begins = np.insert(gaps + 1, first - np.arange(len(runs)), 0)
    _, numbers = spread(runs)
    ends = np.append(begins[1:], 0)
    last = numbers == np.repeat(runs, runs) - 1
    ends[last] = tokens
    return np.asarray(ends - begins)


def _before(lengths: Indices, runs: Indices) -> Indices:
    """How many tokens stand in the runs of a row before each."""
    ends = np.cumsum(lengths)
    firsts = np.repeat(np.cumsum(runs) - runs, runs)
    return np.asarray(ends - lengths - (ends - lengths)[firsts])
