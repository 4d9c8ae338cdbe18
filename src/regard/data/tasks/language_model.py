"""Documents of any length, read on from step to step: the text as one stream, cut into lanes that are read abreast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.data.draws import Indices, Share
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.read.texts import sizes_of
from regard.data.samples import LeftOut, PackedSamples
from regard.data.tasks.base import TaskBase, Tokenizers, require_plain, require_room, require_some
from regard.data.tokenize.encode import Rows, encode_texts
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError


@dataclass(frozen=True)
class LanguageModel(TaskBase):
    """Say what comes next; documents are packed one after the other into rows of `length` tokens.

    `shift`: while learning, the positions of a row begin anywhere, so that it ends within so many: then all positions
    are learnt, though rows are short. Without it, and when validating, they begin at 0.
    """

    length: int = 256
    shift: int = 0
    stacks: ClassVar[tuple[bool, bool] | None] = (False, True)
    like: ClassVar[str] = "gpt2"

    def __post_init__(self) -> None:
        require_room("length", self.length)
        if self.shift and self.shift < self.length:
            raise InputError(
                f"shift = {self.shift:,} leaves no room for rows of {self.length:,} tokens (text.task.shift). "
                f"Use {self.length:,} or more, or leave it out."
            )

    @property
    def reach(self) -> int:
        """How many positions rows may stand in, when they do not begin at 0."""
        return self.shift

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, dropout: float = 0.0  # noqa: B008
    ) -> PackedSamples:  # fmt: skip
        """The documents of a corpus as rows: begin, document, end, begin, document, end, ..."""
        require_plain(corpus, dropout)
        stream, left_out = documents(corpus, tokenizers[0], cache)
        return PackedSamples(
            corpus=corpus,
            stream=stream,
            length=self.length,
            pad=tokenizers[0].pad,
            left_out=left_out,
            bytes=int(sizes_of(corpus.sources).sum()),
            shift=self.shift,
        )


@dataclass(frozen=True)
class TruncatedBPTT(TaskBase):
    """Say what comes next, in `rows` lanes of the text, `length` tokens of each a step; what is remembered goes on.

    An epoch reads every lane from its begin to its end; then all that is remembered is forgotten. A step has
    rows * length tokens, whatever `batch_tokens` is.
    """

    length: int = 256
    rows: int = 16  # fewer where a text is too short to fill a window of each
    stacks: ClassVar[tuple[bool, bool] | None] = (False, True)
    like: ClassVar[str] = "sha_rnn"

    def __post_init__(self) -> None:
        require_room("length", self.length)
        if self.rows < 1:
            raise InputError(f"rows must be 1 or more, got {self.rows} (text.task.rows).")

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, dropout: float = 0.0  # noqa: B008
    ) -> StreamSamples:  # fmt: skip
        """The windows of all lanes of a corpus."""
        require_plain(corpus, dropout)
        if any(part.weight != 1 for part in corpus.parts):
            raise InputError("a stream is read once an epoch (text.train). Leave out the weights.")
        stream, left_out = documents(corpus, tokenizers[0], cache)
        return StreamSamples(
            corpus=corpus,
            stream=stream,
            length=self.length,
            pad=tokenizers[0].pad,
            left_out=left_out,
            bytes=int(sizes_of(corpus.sources).sum()),
            lanes=max(1, min(self.rows, (len(stream.flat) - 1) // self.length)),
        )


def documents(corpus: Corpus, tokenizer: Tokenizer, cache: Cache) -> tuple[Rows, LeftOut]:
    """The documents of a corpus as tokens: begin, document, end, begin, document, end, ...; and those without any."""
    stream = encode_texts(tokenizer, corpus.sources, cache)
    empty = np.flatnonzero(np.asarray(stream.lengths) == 0)
    held = np.isin(empty, list(corpus.bad), invert=True).astype(np.uint8)
    left_out = LeftOut(empty, held, ("not UTF-8", "empty"))
    require_some(len(corpus) - len(empty), corpus, "documents", left_out, "Name a file that holds text.")
    return stream, left_out


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamSamples(PackedSamples):
    """Windows of lanes: sample number n * lanes + r is window n of lane r.

    Lanes differ by one token at most. The last window of a lane has what is left, at least one token.
    """

    def __len__(self) -> int:
        return self._windows * self.lanes

    @property
    def lengths(self) -> NDArray[Any]:
        """Windows by one side."""
        return (self._bounds(np.arange(len(self)))[1] - 1)[:, None].astype(np.int32)

    @property
    def shares(self) -> tuple[Share, ...]:
        """Every window once."""
        return (Share(len(self)),)

    @property
    def _shortest(self) -> int:
        """How many tokens every lane has."""
        return (len(self.stream.flat) - 1) // self.lanes

    @property
    def _windows(self) -> int:
        """How many windows each lane has."""
        return max(1, -(-self._shortest // self.length))

    def _bounds(self, rows: Indices) -> tuple[Indices, Indices]:
        """Where windows start in the stream, and how many tokens they have, one more than is read."""
        number, lane = np.divmod(rows, self.lanes)
        longer = (len(self.stream.flat) - 1) % self.lanes
        whole = self._shortest + (lane < longer)
        starts = lane * self._shortest + np.minimum(lane, longer) + number * self.length
        sizes = np.where(number < self._windows - 1, self.length, whole - number * self.length)
        return starts, sizes + 1

    @staticmethod
    def _documents(begins: Tensor) -> dict[str, Tensor]:  # noqa: ARG004
        """Nothing: what is remembered goes on from one document to the next."""
        return {}
