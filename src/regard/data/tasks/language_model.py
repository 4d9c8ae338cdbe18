"""Language modelling: predict the next token, in packed rows, or in parallel streams for truncated BPTT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching import IGNORE_INDEX, Batch, Indices, MixtureComponent, SampleRandom
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.read.texts import byte_lengths
from regard.data.samples import LeftOut, require_samples
from regard.data.tasks.base import ModelShape, TaskBase, Tokenizers, require_one_side, require_room
from regard.data.tokenize.encode import TokenRows, encode_texts, padding_mask, ragged_indices
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError

_FIRST_POSITION = 1  # purpose of a random number


@dataclass(frozen=True)
class LanguageModel(TaskBase):
    """Predict the next token; documents are packed one after the other into rows of `length` tokens.

    `random_positions`: in training, the positions of a row start at random, so that it ends within so many positions
    and all of them are trained with short rows. Without it, and in validation, they start at 0.
    """

    length: int = 256
    random_positions: int = 0
    model_shape: ClassVar[ModelShape | None] = "decoder"
    suggested_model: ClassVar[str] = "gpt2"

    def __post_init__(self) -> None:
        require_room("length", self.length)
        if self.random_positions and self.random_positions < self.length:
            raise InputError(
                f"random_positions = {self.random_positions:,} leaves no room for rows of {self.length:,} tokens "
                f"(text.task.random_positions). Use {self.length:,} or more, or leave it out."
            )

    @property
    def max_positions(self) -> int:
        return self.random_positions

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, bpe_dropout: float = 0.0  # noqa: B008
    ) -> PackedSamples:  # fmt: skip
        """The documents of a corpus as rows: bos, document, eos, bos, document, eos, ..."""
        require_one_side(corpus, bpe_dropout)
        stream, left_out = _encode_documents(corpus, tokenizers[0], cache)
        return PackedSamples(
            corpus=corpus, stream=stream, length=self.length, pad=tokenizers[0].pad, left_out=left_out,
            random_positions=self.random_positions,
        )  # fmt: skip


@dataclass(frozen=True)
class TruncatedBPTT(TaskBase):
    """Predict the next token in `streams` parallel streams of the text, `length` tokens of each per step.

    Truncated backpropagation through time: the state of each stream is carried to the next step, without gradient. An
    epoch reads each stream from start to end, then states are reset. A step has streams * length tokens, whatever
    `batch_tokens` is.
    """

    length: int = 256
    streams: int = 16  # fewer if the text is too short for one segment of each
    model_shape: ClassVar[ModelShape | None] = "decoder"
    suggested_model: ClassVar[str] = "sha_rnn"

    def __post_init__(self) -> None:
        require_room("length", self.length)
        if self.streams < 1:
            raise InputError(f"streams must be 1 or more, got {self.streams} (text.task.streams).")

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, bpe_dropout: float = 0.0  # noqa: B008
    ) -> StreamSamples:  # fmt: skip
        require_one_side(corpus, bpe_dropout)
        if any(part.weight != 1 for part in corpus.subcorpora):
            raise InputError("a stream is read once per epoch (text.train). Leave out the weights.")
        stream, left_out = _encode_documents(corpus, tokenizers[0], cache)
        return StreamSamples(
            corpus=corpus, stream=stream, length=self.length, pad=tokenizers[0].pad, left_out=left_out,
            streams=max(1, min(self.streams, (len(stream.tokens) - 1) // self.length)),
        )  # fmt: skip


def _encode_documents(corpus: Corpus, tokenizer: Tokenizer, cache: Cache) -> tuple[TokenRows, LeftOut]:
    """The documents of a corpus, each with bos and eos; and the empty ones, which are left out."""
    stream = encode_texts(tokenizer, corpus.sources, cache)
    empty = np.flatnonzero(np.asarray(stream.lengths) == 0)
    reason = np.isin(empty, list(corpus.bad_utf8), invert=True).astype(np.uint8)
    left_out = LeftOut(empty, reason, ("not UTF-8", "empty"))
    require_samples(len(corpus) - len(empty), corpus, "documents", left_out, "Name a file that holds text.")
    return stream, left_out


@dataclass(frozen=True, eq=False, kw_only=True)
class PackedSamples:
    """Packed documents: one stream of tokens cut into rows, each one token longer than its input."""

    corpus: Corpus
    stream: TokenRows
    length: int
    pad: int
    left_out: LeftOut
    streams: int = 0
    random_positions: int = 0

    def __len__(self) -> int:
        return -(-(len(self.stream.tokens) - 1) // self.length)

    @cached_property
    def bytes(self) -> int:
        return int(byte_lengths(self.corpus.sources).sum())

    @property
    def lengths(self) -> NDArray[Any]:
        lengths = np.full((len(self), 1), self.length, dtype=np.int32)
        lengths[-1] = len(self.stream.tokens) - 1 - (len(self) - 1) * self.length
        return lengths

    @property
    def text_lengths(self) -> tuple[NDArray[Any], ...]:
        return (self.stream.lengths,)

    @property
    def mixture(self) -> tuple[MixtureComponent, ...]:
        """The rows that start in each subcorpus."""
        parts = self.corpus.subcorpora
        ends = [int(self.stream.lengths[:end].sum()) for end in accumulate(part.texts for part in parts)]
        rows = np.minimum(-(-np.array(ends) // self.length), len(self))
        return tuple(MixtureComponent(n, part.weight) for n, part in zip(np.diff(rows, prepend=0).tolist(), parts))

    def batch(self, indices: Sequence[int] | Indices, seed: int | None = None) -> Batch:
        """A batch of rows; eos does not predict the bos of the next document."""
        chosen = np.asarray(indices, dtype=np.int64)
        rows = TokenRows(self.stream.tokens, *self._bounds(chosen))
        all_rows = np.arange(len(chosen))
        ids = rows.padded(all_rows, drop=1, fill=self.pad)
        targets = rows.padded(all_rows, skip=1, fill=IGNORE_INDEX)
        starts = self._document_starts(rows)
        targets[starts[:, 1:]] = IGNORE_INDEX
        inputs = {"ids": ids, **padding_mask("padding", rows.lengths - 1), **self._document_inputs(starts[:, :-1])}
        if self.random_positions and seed is not None:
            limits = self.random_positions - rows.lengths + 2
            first = torch.from_numpy(SampleRandom(seed, chosen).integers(_FIRST_POSITION, limits))[:, None]
            positions = inputs.get("positions", torch.arange(ids.shape[1])) + first
            # Clamped, because the padding of a short row has positions too.
            inputs["positions"] = positions.clamp_max(self.random_positions - 1)
        return Batch(inputs, targets, tuple(self._document_at(rows.starts).tolist()))

    def where(self, indices: Sequence[int] | Indices) -> str:
        starts, lengths = self._bounds(np.asarray(indices, dtype=np.int64))
        ranges = zip(self._document_at(starts).tolist(), self._document_at(starts + lengths - 2).tolist())
        documents = chain.from_iterable(range(first, last + 1) for first, last in ranges)
        return self.corpus.where(number for number in documents if self.stream.lengths[number])

    def _bounds(self, rows: Indices) -> tuple[Indices, Indices]:
        """The offset of rows in the stream, and their number of tokens."""
        starts = rows * self.length
        return starts, np.minimum(self.length + 1, len(self.stream.tokens) - starts)

    def _document_at(self, offsets: Indices) -> Indices:
        """The document at each offset of the stream."""
        return np.searchsorted(self.stream.starts, offsets, side="right") - 1

    def _document_starts(self, rows: TokenRows) -> Tensor:
        """BT, one column more than the inputs: True where a document starts, whatever its first token is."""
        first = np.searchsorted(self.stream.starts, rows.starts)
        counts = np.searchsorted(self.stream.starts, rows.starts + rows.lengths) - first
        owners, numbers = ragged_indices(counts)
        found = np.zeros((len(rows.starts), int(rows.lengths.max(initial=1))), dtype=bool)
        found[owners, self.stream.starts[first[owners] + numbers] - rows.starts[owners]] = True
        return torch.from_numpy(found)

    @staticmethod
    def _document_inputs(starts: Tensor) -> dict[str, Tensor]:
        """BT -> the document of each token in its row, and its position there; {} if each row has one document."""
        if not starts[:, 1:].any():
            return {}
        document = starts.cumsum(1) - starts[:, :1].long()
        columns = torch.arange(starts.shape[1]).expand_as(starts)
        last_start = torch.where(starts, columns, 0).cummax(1).values
        return {"positions": columns - last_start, "document": document}


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamSamples(PackedSamples):
    """Segments of parallel streams: sample number n * streams + r is segment n of stream r.

    Streams differ by at most one token. The last segment of a stream has what remains, at least one token.
    """

    def __len__(self) -> int:
        return self._segments * self.streams

    @property
    def lengths(self) -> NDArray[Any]:
        return (self._bounds(np.arange(len(self)))[1] - 1)[:, None].astype(np.int32)

    @property
    def mixture(self) -> tuple[MixtureComponent, ...]:
        return (MixtureComponent(len(self)),)

    @property
    def _shortest(self) -> int:
        """The tokens of the shortest stream."""
        return (len(self.stream.tokens) - 1) // self.streams

    @property
    def _segments(self) -> int:
        return max(1, -(-self._shortest // self.length))

    def _bounds(self, rows: Indices) -> tuple[Indices, Indices]:
        """The offset of segments in the text, and their number of tokens, one more than their input."""
        number, stream = np.divmod(rows, self.streams)
        longer = (len(self.stream.tokens) - 1) % self.streams
        whole = self._shortest + (stream < longer)
        starts = stream * self._shortest + np.minimum(stream, longer) + number * self.length
        sizes = np.where(number < self._segments - 1, self.length, whole - number * self.length)
        return starts, sizes + 1

    @staticmethod
    def _document_inputs(starts: Tensor) -> dict[str, Tensor]:  # noqa: ARG004
        """Nothing: states are carried from one document to the next."""
        return {}
