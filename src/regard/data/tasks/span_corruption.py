"""Span corruption, as in T5 (Raffel 2020, section 3.1.4): predict spans that sentinels replace in the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batching import IGNORE_INDEX, Batch, Floats, Indices, SampleRandom
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.samples import ChunkSamples, chunk_documents
from regard.data.tasks.base import ModelShape, TaskBase, Tokenizers, require_fraction, require_one_side, require_room
from regard.data.tokenize.encode import Template, padding_mask, ragged_indices
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError

_KEPT, _NOISE = 1, 2  # purposes of random numbers: lengths of kept runs and of noise spans


@dataclass(frozen=True)
class SpanCorruption(TaskBase):
    """Predict the spans that were removed from a chunk of at most `length` tokens.

    A fraction `noise_density` of the tokens is removed, in spans of `mean_noise_span_length` tokens on average.
    """

    length: int = 256
    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0
    model_shape: ClassVar[ModelShape | None] = "encoder-decoder"
    suggested_model: ClassVar[str] = "t5"

    def __post_init__(self) -> None:
        require_room("length", self.length, 4)
        require_fraction("noise_density", self.noise_density)
        if not self.mean_noise_span_length >= 1:
            raise InputError(
                f"mean_noise_span_length must be 1 or more, got {self.mean_noise_span_length} "
                "(text.task.mean_noise_span_length)."
            )

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, bpe_dropout: float = 0.0  # noqa: B008
    ) -> SpanSamples:  # fmt: skip
        """The chunks of a corpus; they have one token less than `length`, because eos follows."""
        require_one_side(corpus, bpe_dropout)
        tokenizer = tokenizers[0]
        chunks = chunk_documents(corpus, tokenizer, cache, max_tokens=self.length - 1, min_tokens=2)
        noise, spans = self.counts(np.asarray(chunks.lengths))
        most, sentinels = int(spans.max()), tokenizer.sentinels
        if most > len(sentinels):
            raise InputError(
                f"{most} spans are removed from a chunk, and the tokenizer has {len(sentinels)} sentinels for them "
                f"(text.tokenizer). Use sentinels = {max(100, most)}, or a shorter text.task.length."
            )
        lengths = np.stack([chunks.lengths - noise + spans + 1, noise + spans + 1], axis=1).astype(np.int32)
        return SpanSamples(
            chunks=chunks, template=Template.of(tokenizer, "source"), tokenizer=tokenizer, task=self, lengths=lengths,
            sentinels=np.array(sentinels),
        )  # fmt: skip

    def counts(self, tokens: NDArray[Any]) -> tuple[Indices, Indices]:
        """The number of noise tokens and of noise spans in chunks of so many tokens."""
        noise = np.clip(np.rint(tokens * self.noise_density), 1, tokens - 1).astype(np.int64)
        spans = np.rint(noise / self.mean_noise_span_length)
        return noise, np.clip(spans, 1, np.minimum(noise, tokens - noise)).astype(np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class SpanSamples(ChunkSamples):
    """Chunks of documents, with a sentinel in place of every noise span."""

    tokenizer: Tokenizer
    task: SpanCorruption
    lengths: NDArray[Any]  # chunks by sides: kept tokens, sentinels and eos; noise tokens, sentinels and eos
    sentinels: Indices

    def batch(self, indices: Sequence[int] | Indices, seed: int | None = None) -> Batch:
        """A batch of chunks: the source has the kept tokens, the target the noise spans, each after its sentinel."""
        chosen = np.asarray(indices, dtype=np.int64)
        rows, random = self.chunks.tokens(chosen), SampleRandom(seed, chosen)
        noise, spans = self.task.counts(rows.lengths)
        kept_runs = _random_partition(random, _KEPT, rows.lengths - noise, spans)
        noise_runs = _random_partition(random, _NOISE, noise, spans)
        owners, numbers = ragged_indices(spans)
        # A chunk is kept run, span, kept run, span, ...: the tokens before each, of its own kind and of both.
        kept_before, noise_before = _tokens_before(kept_runs, spans), _tokens_before(noise_runs, spans)
        starts = rows.starts[owners] + kept_before + noise_before
        sources, targets = (self._padding_and_eos(chosen, side) for side in (0, 1))
        runs, inside = ragged_indices(kept_runs)
        sources[owners[runs], (kept_before + numbers)[runs] + inside] = rows.tokens[starts[runs] + inside]
        sources[owners, kept_before + kept_runs + numbers] = self.sentinels[numbers]
        runs, inside = ragged_indices(noise_runs)
        span_tokens = rows.tokens[(starts + kept_runs)[runs] + inside]
        targets[owners[runs], (noise_before + numbers + 1)[runs] + inside] = span_tokens
        targets[owners, noise_before + numbers] = self.sentinels[numbers]
        lengths = self.lengths[chosen]
        ids = np.full_like(targets, self.tokenizer.pad)
        ids[:, :1], ids[:, 1:] = self.tokenizer.bos, targets[:, :-1]
        padding = np.arange(ids.shape[1]) >= lengths[:, 1:]
        ids[padding] = self.tokenizer.pad
        inputs = {
            "ids": torch.from_numpy(ids),
            "source_ids": torch.from_numpy(sources),
            **padding_mask("padding", lengths[:, 1]),
            **padding_mask("source_padding", lengths[:, 0]),
        }
        targets[padding] = IGNORE_INDEX
        return Batch(inputs, torch.from_numpy(targets), tuple(self.chunks.owners[chosen].tolist()))

    def _padding_and_eos(self, chosen: Indices, side: int) -> NDArray[np.int64]:
        """BT: rows of padding, with eos as the last token of each."""
        lengths = self.lengths[chosen, side].astype(np.int64)
        rows = np.full((len(chosen), int(lengths.max(initial=0))), self.tokenizer.pad, dtype=np.int64)
        rows[np.arange(len(chosen)), lengths - 1] = self.tokenizer.eos
        return rows


def _random_partition(random: SampleRandom, purpose: int, tokens: Indices, runs: Indices) -> Indices:
    """Cut the tokens of each row at random into runs of one or more; -> the lengths of all runs, row after row."""
    width = int(tokens.max(initial=1)) - 1
    keys: Floats = np.where(np.arange(width) < tokens[:, None] - 1, random.uniform(purpose, width), 2.0)
    ranks = keys.argsort(axis=1)
    cuts = np.zeros(keys.shape, dtype=bool)
    np.put_along_axis(cuts, ranks, np.arange(width) < runs[:, None] - 1, axis=1)
    gaps = np.nonzero(cuts)[1]
    # A run starts at 0 and after each cut; it ends where the next run starts, or with its row.
    first = np.cumsum(runs) - runs
    starts = np.insert(gaps + 1, first - np.arange(len(runs)), 0)
    _, numbers = ragged_indices(runs)
    ends = np.append(starts[1:], 0)
    last = numbers == np.repeat(runs, runs) - 1
    ends[last] = tokens
    return np.asarray(ends - starts)


def _tokens_before(lengths: Indices, runs: Indices) -> Indices:
    """The tokens in the runs of a row before each run."""
    ends = np.cumsum(lengths)
    firsts = np.repeat(np.cumsum(runs) - runs, runs)
    return np.asarray(ends - lengths - (ends - lengths)[firsts])
