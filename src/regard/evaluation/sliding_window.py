"""What a language model makes of documents longer than it reads at once: a window slides over them.

A model that remembers no more of a long text than of a short one reads each document once, piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from regard.api import LoadedModel
from regard.data.batching import Plan
from regard.data.draws import Indices
from regard.data.read.corpus import Corpus
from regard.data.tasks.language_model import LanguageModel
from regard.data.tokenize.encode import Rows, padding_of, spread
from regard.decode.generate import Progress
from regard.decode.score import log_probabilities
from regard.errors import InputError
from regard.layers.contract import Past, select
from regard.store.loading import LEARNT_LENGTH

_BATCH_TOKENS = 8192
_WINDOW = 512  # of a language model that could read any length
_PIECE = 256  # tokens of a document that is read whole


@dataclass(frozen=True)
class Window:
    """How many tokens are read at once, and how many of them are new.

    Every token is said once, with at least `length - stride` tokens before it, or all that its document has.
    """

    length: int
    stride: int

    @classmethod
    def of(cls, model: LoadedModel, length: int | None = None, stride: int | None = None) -> Window:
        """The window of a model: what it has learnt to read at once, else what it can, and half of that anew."""
        longest, learnt = model.network.max_positions, model.config.get(LEARNT_LENGTH)
        length = min(filter(None, (learnt, longest)), default=_WINDOW) if length is None else length
        if length < 1 or (longest is not None and length > longest):
            reads = "any number" if longest is None else f"1 to {longest:,}"
            raise InputError(f"a window of {length:,} tokens cannot be (--window). This model reads {reads} at once.")
        stride = max(1, length // 2) if stride is None else stride
        if not 1 <= stride <= length:
            raise InputError(f"a stride of {stride:,} tokens cannot be (--stride). Use 1 to {length:,}, the window.")
        return cls(length, stride)

    def cut(self, documents: Rows) -> tuple[Rows, Indices, Indices]:
        """Windows over documents from begin to end, each one token longer than is read.

        With them, the document of each, and how many of its first targets were said in the window before it.
        """
        targets = np.maximum(np.asarray(documents.lengths, dtype=np.int64) - 1, 0)
        counts = np.where(targets > 0, 1 + np.maximum(0, -(-(targets - self.length) // self.stride)), 0)
        owners, numbers = spread(counts)
        starts = numbers * self.stride
        lengths = np.minimum(self.length, targets[owners] - starts) + 1
        known = np.where(numbers > 0, self.length - self.stride, 0)
        return Rows(documents.flat, documents.starts[owners] + starts, lengths), owners, known


@dataclass(frozen=True)
class Whole:
    """Documents are read from begin to end, so many tokens at a time; what is remembered goes on."""

    length: int = _PIECE


def way(model: LoadedModel, length: int | None = None, stride: int | None = None) -> Window | Whole:
    """How a model reads documents when nobody says otherwise."""
    if length is None and stride is None and model.description.constant_memory:
        return Whole()
    return Window.of(model, length, stride)


def document_losses(model: LoadedModel, corpus: Corpus) -> tuple[NDArray[np.float64], int]:
    """The summed cross entropy of each document, read as `evaluate` does, and how many tokens they have."""
    documents = LanguageModel().samples(corpus, (model.tokenizer, None)).stream
    return read_documents(model, documents, way(model))


def read_documents(
    model: LoadedModel, documents: Rows, how: Window | Whole, *, progress: Progress = lambda done: None
) -> tuple[NDArray[np.float64], int]:
    """The summed cross entropy of each document, and how many tokens they have.

    `progress` is told of tokens, in documents: a long one is done little by little.
    """
    count, tokens = len(documents.lengths), int(np.maximum(np.asarray(documents.lengths, dtype=np.int64) - 1, 0).sum())

    def told(new: int) -> None:
        progress(count * new / tokens)

    read = _whole(model, documents, how, told) if isinstance(how, Whole) else _slid(model, documents, how, told)
    if not tokens:
        progress(count)
    return read


def _whole(
    model: LoadedModel, documents: Rows, how: Whole, told: Callable[[int], None]
) -> tuple[NDArray[np.float64], int]:
    """Documents side by side, the longest first; one that has ended leaves the others to go on."""
    lengths = np.maximum(np.asarray(documents.lengths, dtype=np.int64) - 1, 0)
    losses, order = np.zeros(len(lengths)), np.argsort(-lengths, kind="stable")
    rows = max(1, _BATCH_TOKENS // how.length)
    with torch.inference_mode():
        for some in np.split(order[lengths[order] > 0], range(rows, int((lengths > 0).sum()), rows)):
            past, going = Past(), some
            while len(going):
                left = lengths[going] - past.read
                staying = np.flatnonzero(left > 0)
                if len(staying) < len(going):
                    going, left = going[staying], left[staying]
                    past.memory = select(past.memory, torch.from_numpy(staying).to(model.device))
                if len(going):
                    piece = Rows(
                        documents.flat, documents.starts[going] + past.read, np.minimum(left, how.length) + 1
                    )  # fmt: skip
                    np.add.at(losses, *_said(model, piece, going, past))
                    told(int((piece.lengths - 1).sum()))
    return losses, int(lengths.sum())


def _said(
    model: LoadedModel, rows: Rows, owners: Indices, past: Past | None, known: Indices | int = 0
) -> tuple[Indices, NDArray[np.float64]]:
    """Whose each token of some rows is, and its loss; the first `known` of a row were said before."""
    every, lengths = np.arange(len(owners)), np.asarray(rows.lengths) - 1
    padding = padding_of("padding", lengths).get("padding")
    ids = rows.padded(every, drop=1, fill=model.tokenizer.pad).to(model.device)
    targets = rows.padded(every, skip=1, fill=0)
    columns = np.arange(targets.shape[1])
    new = (columns >= np.asarray(known).reshape(-1, 1)) & (columns < lengths[:, None])
    asked = torch.from_numpy(new)
    states = model.network.hidden_states(ids, padding=None if padding is None else padding.to(model.device), past=past)
    values = log_probabilities(model.network, states[asked.to(model.device)], targets[asked].to(model.device))
    return owners[np.nonzero(new)[0]], -values.double().cpu().numpy()


def _slid(
    model: LoadedModel, documents: Rows, window: Window, told: Callable[[int], None]
) -> tuple[NDArray[np.float64], int]:
    """Windows over documents, from short to long."""
    rows, owners, known = window.cut(documents)
    losses, tokens = np.zeros(len(documents.lengths)), 0
    with torch.inference_mode():
        for some in Plan(np.asarray(rows.lengths)[:, None] - 1, _BATCH_TOKENS, seed=0).in_order():
            piece = Rows(rows.flat, rows.starts[some], rows.lengths[some])
            of, lost = _said(model, piece, owners[some], None, known[some])
            np.add.at(losses, of, lost)
            tokens += len(lost)
            told(len(lost))
    return losses, tokens
