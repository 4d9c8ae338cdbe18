"""Sliding window evaluation: the loss of a language model on documents longer than its context.

A model with constant memory (a recurrent state, a bounded KV cache) reads each document once instead, in segments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from regard.api import LoadedModel
from regard.data.batching import BatchSampler, Indices
from regard.data.read.corpus import Corpus
from regard.data.tasks.language_model import LanguageModel
from regard.data.tokenize.encode import TokenRows, padding_mask, ragged_indices
from regard.decode.score import log_probabilities
from regard.errors import InputError
from regard.layers.contract import CarriedMemory, select
from regard.progress import QUIET, Progress
from regard.store.loading import TRAINED_LENGTH

Losses = NDArray[np.float64]

_BATCH_TOKENS = 8192
_WINDOW = 512  # of a language model that reads any length
_SEGMENT = 256  # tokens per call of a model with constant memory


@dataclass(frozen=True)
class SlidingWindow:
    """Length and stride of the sliding window.

    Every token is predicted once, from at least `length - stride` tokens before it, or from all that there are.
    """

    length: int
    stride: int

    @classmethod
    def of(cls, model: LoadedModel, length: int | None = None, stride: int | None = None) -> SlidingWindow:
        """The window of a model: the length it was trained on, else its maximum; the stride is half of that."""
        longest, trained = model.network.max_positions, model.config.get(TRAINED_LENGTH)
        length = min(filter(None, (trained, longest)), default=_WINDOW) if length is None else length
        if length < 1 or (longest is not None and length > longest):
            reads = "any number" if longest is None else f"1 to {longest:,}"
            raise InputError(
                f"a window of {length:,} tokens is not possible (--window). This model reads {reads} tokens."
            )
        stride = max(1, length // 2) if stride is None else stride
        if not 1 <= stride <= length:
            raise InputError(
                f"a stride of {stride:,} tokens is not possible (--stride). Use 1 to {length:,}, the window."
            )
        return cls(length, stride)

    def cut(self, documents: TokenRows) -> tuple[TokenRows, Indices, Indices]:
        """Windows over documents, each one token longer than the input, for the targets.

        With them, the document of each window, and how many of its first targets an earlier window predicted.
        """
        targets = _targets(documents)
        counts = np.where(targets > 0, 1 + np.maximum(0, -(-(targets - self.length) // self.stride)), 0)
        owners, numbers = ragged_indices(counts)
        starts = numbers * self.stride
        lengths = np.minimum(self.length, targets[owners] - starts) + 1
        known = np.where(numbers > 0, self.length - self.stride, 0)
        return TokenRows(documents.tokens, documents.starts[owners] + starts, lengths), owners, known


@dataclass(frozen=True)
class Segments:
    """Documents are read from start to end, `length` tokens per call, with the memory carried over."""

    length: int = _SEGMENT


def reading_mode(model: LoadedModel, length: int | None = None, stride: int | None = None) -> SlidingWindow | Segments:
    """How a model reads documents by default."""
    if length is None and stride is None and model.description.constant_memory:
        return Segments()
    return SlidingWindow.of(model, length, stride)


def document_losses(
    model: LoadedModel, corpus: Corpus, *, progress: Progress = QUIET
) -> tuple[Losses, int]:  # fmt: skip
    """The summed cross entropy of each document, read as `evaluate` does, and the number of tokens."""
    documents = LanguageModel().samples(corpus, (model.tokenizer, None)).stream
    return read_documents(model, documents, reading_mode(model), progress=progress)


def read_documents(
    model: LoadedModel, documents: TokenRows, mode: SlidingWindow | Segments, *, progress: Progress = QUIET
) -> tuple[Losses, int]:
    """The summed cross entropy of each document, and the number of tokens.

    `progress` counts documents, in fractions: a long document advances it token by token.
    """
    count, tokens = len(documents.lengths), int(_targets(documents).sum())

    def advance(new: float) -> None:
        progress(count * new / tokens)

    read = _in_segments if isinstance(mode, Segments) else _in_windows
    losses = read(model, documents, mode, advance)  # type: ignore[arg-type]
    if not tokens:
        progress(count)
    return losses, tokens


def _targets(documents: TokenRows) -> Indices:
    """The number of tokens to predict in each document: all but the first."""
    return np.maximum(np.asarray(documents.lengths, dtype=np.int64) - 1, 0)


def _in_segments(model: LoadedModel, documents: TokenRows, mode: Segments, advance: Progress) -> Losses:
    """Read documents side by side, the longest first; a finished document leaves the batch."""
    lengths = _targets(documents)
    losses, order = np.zeros(len(lengths)), np.argsort(-lengths, kind="stable")
    rows = max(1, _BATCH_TOKENS // mode.length)
    with torch.inference_mode():
        for some in np.split(order[lengths[order] > 0], range(rows, int((lengths > 0).sum()), rows)):
            carried, unfinished = CarriedMemory(), some
            while len(unfinished):
                left = lengths[unfinished] - carried.position
                staying = np.flatnonzero(left > 0)
                if len(staying) < len(unfinished):
                    unfinished, left = unfinished[staying], left[staying]
                    carried.memory = select(carried.memory, torch.from_numpy(staying).to(model.device))
                if len(unfinished):
                    starts = documents.starts[unfinished] + carried.position
                    piece = TokenRows(documents.tokens, starts, np.minimum(left, mode.length) + 1)
                    np.add.at(losses, *_token_losses(model, piece, unfinished, carried))
                    advance(int((piece.lengths - 1).sum()))
    return losses


def _token_losses(
    model: LoadedModel, rows: TokenRows, owners: Indices, carried: CarriedMemory | None, known: Indices | int = 0
) -> tuple[Indices, Losses]:
    """The document and the loss of each token of some rows, without the first `known` of each row."""
    every, lengths = np.arange(len(owners)), np.asarray(rows.lengths) - 1
    padding = padding_mask("padding", lengths).get("padding")
    ids = rows.padded(every, drop=1, fill=model.tokenizer.pad).to(model.device)
    targets = rows.padded(every, skip=1, fill=0)
    columns = np.arange(targets.shape[1])
    new = (columns >= np.asarray(known).reshape(-1, 1)) & (columns < lengths[:, None])
    wanted = torch.from_numpy(new)
    padding = None if padding is None else padding.to(model.device)
    states = model.network.hidden_states(ids, padding=padding, carried=carried)
    values = log_probabilities(model.network, states[wanted.to(model.device)], targets[wanted].to(model.device))
    return owners[np.nonzero(new)[0]], -values.double().cpu().numpy()


def _in_windows(model: LoadedModel, documents: TokenRows, window: SlidingWindow, advance: Progress) -> Losses:
    """Read windows over documents, from short to long."""
    rows, owners, known = window.cut(documents)
    losses = np.zeros(len(documents.lengths))
    with torch.inference_mode():
        for some in BatchSampler(np.asarray(rows.lengths)[:, None] - 1, _BATCH_TOKENS, seed=0).in_order():
            piece = TokenRows(rows.tokens, rows.starts[some], rows.lengths[some])
            of, lost = _token_losses(model, piece, owners[some], None, known[some])
            np.add.at(losses, of, lost)
            advance(len(lost))
    return losses
