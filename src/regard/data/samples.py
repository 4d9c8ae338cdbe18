"""Samples: what a task makes of a corpus, in random access; with filtering, labelled samples and document chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from regard import messages
from regard.data.batching import Batch, Indices, MixtureComponent
from regard.data.read.cache import Cache, Columns, release_pages
from regard.data.read.corpus import Corpus
from regard.data.read.texts import byte_lengths, texts_digest
from regard.data.tokenize.encode import Template, TokenRows, encode_texts, ragged_indices
from regard.data.tokenize.tokenizer import Tokenizer

_BLOCK = 100_000


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Texts that are left out of training, and why: text `index[i]` for reason number `reason[i]` of `reasons`."""

    index: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    reason: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))
    reasons: tuple[str, ...] = ()

    def counts(self) -> dict[str, int]:
        """The number of texts by reason, without reasons that never apply."""
        found = np.bincount(self.reason, minlength=len(self.reasons)).tolist()
        return {reason: count for reason, count in zip(self.reasons, found) if count}


class Samples(Protocol):
    """The samples of a corpus, in random access."""

    @property
    def corpus(self) -> Corpus:
        """The corpus, as it is tokenized."""

    @property
    def lengths(self) -> NDArray[Any]:
        """Samples by sides: how many tokens each has in a batch."""

    @property
    def text_lengths(self) -> tuple[NDArray[Any], ...]:
        """Per side, the length of every text in tokens, left-out texts too; bos and eos included."""

    @property
    def left_out(self) -> LeftOut:
        """The texts that are not among the samples."""

    @property
    def bytes(self) -> int:
        """The UTF-8 bytes of the texts that an epoch predicts."""

    @property
    def mixture(self) -> tuple[MixtureComponent, ...]:
        """The samples of each subcorpus, and how often each occurs per epoch."""

    @property
    def streams(self) -> int:
        """Parallel streams for truncated BPTT: sample i + streams continues sample i. 0: samples are independent."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int] | Indices, seed: int | None = None) -> Batch:
        """A batch of samples, padded on the right; all that is random in it is a function of seed and index."""

    def where(self, indices: Sequence[int] | Indices) -> str:
        """The lines of the corpus that these samples come from."""


def require_samples(count: int, corpus: Corpus, texts: str, left_out: LeftOut, remedy: str) -> None:
    """Refuse a corpus of which every text is left out."""
    if not count:
        counts = sorted(left_out.counts().items(), key=lambda pair: -pair[1])
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts)
        raise messages.NOTHING_USABLE(
            path=corpus.names[0], texts=texts, count=len(corpus), reasons=reasons, remedy=remedy
        )


def mixture_of(corpus: Corpus, owners: Indices) -> tuple[MixtureComponent, ...]:
    """The samples of each subcorpus; `owners` has the text of each sample, sorted."""
    ends = np.searchsorted(owners, list(accumulate(part.texts for part in corpus.subcorpora)))
    counts = np.diff(ends, prepend=0).tolist()
    return tuple(MixtureComponent(count, part.weight) for count, part in zip(counts, corpus.subcorpora))


@dataclass(frozen=True, eq=False)
class TokenizedSide:
    """One side of a corpus, or one text of its pairs, with its tokens."""

    texts: Sequence[str]
    rows: TokenRows
    tokenizer: Tokenizer

    @classmethod
    def encode(cls, texts: Sequence[str], tokenizer: Tokenizer, cache: Cache) -> TokenizedSide:
        """Tokenize texts."""
        return cls(texts, encode_texts(tokenizer, texts, cache), tokenizer)

    def blank(self, first: int, stop: int) -> NDArray[np.bool_]:
        """Which texts are blank; only those whose first token may be a space are read."""
        rows, found = self.rows, np.zeros(stop - first, dtype=bool)
        filled = np.flatnonzero(rows.lengths[first:stop] > 2)
        leading = rows.tokens[rows.starts[first + filled] + 1]
        decode = self.tokenizer.decode
        spaces = [number for number in np.unique(leading).tolist() if not decode([number]).strip().strip("\ufffd")]
        for index in filled[np.isin(leading, spaces)].tolist():
            found[index] = not self.texts[first + index].strip()
        return found


@dataclass(frozen=True)
class LengthLimit:
    """The maximal length of texts: of all in a template together, or without a template, of each side."""

    max_length: int
    template: Template | None = None
    uncounted: int = 0  # special tokens per side that do not count

    def exceeded(self, lengths: NDArray[Any]) -> NDArray[np.bool_]:
        """Which texts are too long, given the tokens of each side, bos and eos included."""
        if self.template is None:
            return np.asarray(lengths.max(1) - self.uncounted > self.max_length)
        special = self.template.num_special_tokens(lengths.shape[1])
        return np.asarray((lengths - 2).sum(1) + special > self.max_length)


@dataclass(frozen=True, eq=False)
class FilteredTexts:
    """The texts of a corpus after filtering: the indices of those kept, those left out, and columns about them."""

    corpus: Corpus
    kept: Indices
    left_out: LeftOut
    bytes: int
    columns: Mapping[str, NDArray[Any]]


def filter_texts(
    corpus: Corpus,
    sides: Sequence[TokenizedSide],
    limit: LengthLimit,
    cache: Cache,
    *,
    kind: str,
    key: list[Any],
    counted: Sequence[str],
    labels: Sequence[str] | None = None,
    add_columns: Callable[[Indices, Columns], None],
) -> FilteredTexts:
    """Filter out texts that are not UTF-8, empty, without a label, or too long.

    `add_columns` adds columns about the texts that are kept, block by block; `kind` and `key` name the cached table;
    `counted` are the texts whose bytes are counted.
    """
    reasons = ("not UTF-8", "empty", f"longer than {limit.max_length:,} tokens")

    def make(columns: Columns) -> Mapping[str, Any]:
        size = 0
        for first in range(0, max(1, len(corpus)), _BLOCK):
            stop = min(len(corpus), first + _BLOCK)
            lengths = np.stack([side.rows.lengths[first:stop] for side in sides], axis=1).astype(np.int64)
            blanks = [side.blank(first, stop) for side in sides]
            if labels is not None:
                blanks.append(np.array([not label.strip() for label in labels[first:stop]], dtype=bool))
            tests = [
                np.isin(np.arange(first, stop), list(corpus.bad_utf8)),
                (lengths <= 2).any(axis=1) | np.any(blanks, axis=0),
                limit.exceeded(lengths),
            ]
            reason = np.stack([*tests, np.ones(stop - first, dtype=bool)]).argmax(axis=0)
            left, kept = np.flatnonzero(reason < len(reasons)), np.flatnonzero(reason == len(reasons))
            columns.append("kept", kept + first)
            columns.append("left", left + first)
            columns.append("reason", reason[left].astype(np.uint8))
            add_columns(kept + first, columns)
            size += int(byte_lengths(counted, first, stop)[kept].sum())
            for side in sides:
                release_pages(side.rows.tokens, side.rows.starts, side.rows.lengths)
        return {"bytes": size}

    digests = [corpus.digest, [side.tokenizer.digest for side in sides]] if cache.root else []
    table = cache.table(kind, [*digests, limit.max_length, corpus.paired_sources, key], make)
    kept, left_out = table.columns["kept"], LeftOut(table.columns["left"], table.columns["reason"], reasons)
    require_samples(len(kept), corpus, "lines", left_out, "Raise text.task.max_length or split the text.")
    return FilteredTexts(corpus, kept, left_out, table.metadata["bytes"], table.columns)


@dataclass(frozen=True, eq=False, kw_only=True)
class FilteredSamples:
    """Base of samples that are the filtered texts of a corpus, one each; a task adds `lengths` and `batch`."""

    filtered: FilteredTexts
    sides: tuple[TokenRows, ...]
    streams: ClassVar[int] = 0

    def __len__(self) -> int:
        return len(self.filtered.kept)

    @property
    def corpus(self) -> Corpus:
        return self.filtered.corpus

    @property
    def text_lengths(self) -> tuple[NDArray[Any], ...]:
        return tuple(side.lengths for side in self.sides)

    @property
    def left_out(self) -> LeftOut:
        return self.filtered.left_out

    @property
    def bytes(self) -> int:
        return self.filtered.bytes

    @property
    def mixture(self) -> tuple[MixtureComponent, ...]:
        return mixture_of(self.filtered.corpus, self.filtered.kept)

    def where(self, indices: Sequence[int] | Indices) -> str:
        return self.filtered.corpus.where(self.filtered.kept[np.asarray(indices, dtype=np.int64)])


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelledSamples(FilteredSamples):
    """Base of samples that are texts, or pairs of texts, in a template."""

    template: Template

    @property
    def lengths(self) -> NDArray[Any]:
        return self.filtered.columns["lengths"]


@dataclass(frozen=True, eq=False)
class DocumentChunks:
    """Documents cut into chunks: the start, length and document of each chunk."""

    corpus: Corpus
    rows: TokenRows
    starts: Indices
    lengths: NDArray[Any]
    owners: Indices
    left_out: LeftOut
    bytes: int

    def __len__(self) -> int:
        return len(self.owners)

    def tokens(self, indices: Indices) -> TokenRows:
        """The tokens of some chunks, without special tokens."""
        return TokenRows(self.rows.tokens, self.starts[indices], self.lengths[indices].astype(np.int64))


def chunk_documents(
    corpus: Corpus, tokenizer: Tokenizer, cache: Cache, *, max_tokens: int, min_tokens: int = 1
) -> DocumentChunks:
    """Cut each document into as few chunks of at most `max_tokens` tokens as possible, all of about the same length."""
    rows = encode_texts(tokenizer, corpus.sources, cache)
    key = [texts_digest(corpus.sources), tokenizer.digest, max_tokens, min_tokens] if cache.root else None
    table = cache.table("chunks", key, lambda columns: _cut(corpus, rows, max_tokens, min_tokens, columns))
    columns, reasons = table.columns, ("not UTF-8", "empty", f"shorter than {min_tokens} tokens")
    left_out = LeftOut(columns["left"], columns["reason"], reasons)
    require_samples(len(columns["owners"]), corpus, "documents", left_out, "Name a file that holds text.")
    return DocumentChunks(
        corpus, rows, columns["starts"], columns["lengths"], columns["owners"], left_out, table.metadata["bytes"]
    )


def _cut(corpus: Corpus, rows: TokenRows, max_tokens: int, min_tokens: int, columns: Columns) -> Mapping[str, Any]:
    size = 0
    for first in range(0, len(corpus), _BLOCK):
        stop = min(len(corpus), first + _BLOCK)
        tokens = np.maximum(rows.lengths[first:stop].astype(np.int64) - 2, 0)
        chunks = np.where(tokens < min_tokens, 0, -(-tokens // max_tokens))
        owners, number = ragged_indices(chunks)
        starts = number * tokens[owners] // chunks[owners]
        stops = (number + 1) * tokens[owners] // chunks[owners]
        columns.append("starts", rows.starts[first + owners] + 1 + starts)
        columns.append("lengths", (stops - starts).astype(np.int32))
        columns.append("owners", owners + first)
        left = np.flatnonzero(chunks == 0)
        bad_utf8 = np.isin(left + first, list(corpus.bad_utf8))
        columns.append("left", left + first)
        columns.append("reason", np.where(bad_utf8, 0, np.where(tokens[left] == 0, 1, 2)).astype(np.uint8))
        size += int(byte_lengths(corpus.sources, first, stop)[chunks > 0].sum())
        release_pages(rows.starts, rows.lengths)
    return {"bytes": size}


@dataclass(frozen=True, eq=False, kw_only=True)
class ChunkSamples:
    """Base of samples that are chunks of documents, one each; a task adds `lengths` and `batch`."""

    chunks: DocumentChunks
    template: Template
    streams: ClassVar[int] = 0

    def __len__(self) -> int:
        return len(self.chunks)

    @property
    def corpus(self) -> Corpus:
        return self.chunks.corpus

    @property
    def text_lengths(self) -> tuple[NDArray[Any], ...]:
        return (self.chunks.rows.lengths,)

    @property
    def left_out(self) -> LeftOut:
        return self.chunks.left_out

    @property
    def bytes(self) -> int:
        return self.chunks.bytes

    @property
    def mixture(self) -> tuple[MixtureComponent, ...]:
        return mixture_of(self.chunks.corpus, self.chunks.owners)

    def where(self, indices: Sequence[int] | Indices) -> str:
        return self.chunks.corpus.where(self.chunks.owners[np.asarray(indices, dtype=np.int64)])
