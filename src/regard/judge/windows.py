"""What a language model makes of documents longer than it reads at once: a window slides over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from regard.api import LoadedModel
from regard.decode.score import log_probabilities
from regard.errors import InputError
from regard.text.batch import Plan
from regard.text.corpus import Corpus
from regard.text.encode import Rows
from regard.text.frame import padding_of, spread
from regard.text.order import Indices
from regard.text.problem import NextToken

_BATCH_TOKENS = 8192
_WINDOW = 512  # of a language model that could read any length


@dataclass(frozen=True)
class Window:
    """How many tokens are read at once, and how many of them are new.

    Every token is said once, with at least `length - stride` tokens before it, or all that its document has.
    """

    length: int
    stride: int

    @classmethod
    def of(cls, model: LoadedModel, length: int | None = None, stride: int | None = None) -> Window:
        """The window of a model: as much as it reads, and half of that anew, when nobody says otherwise."""
        longest = model.network.longest
        if length is not None and (length < 1 or (longest is not None and length > longest)):
            reads = "any number" if longest is None else f"1 to {longest:,}"
            raise InputError(f"a window of {length:,} tokens cannot be (--window). This model reads {reads} at once.")
        length = longest or _WINDOW if length is None else length
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


def document_losses(model: LoadedModel, corpus: Corpus) -> tuple[NDArray[np.float64], int]:
    """The summed cross entropy of each document, read as `evaluate` does, and how many tokens they have."""
    window = Window.of(model)
    return read_documents(model, NextToken(window.length).samples(corpus, (model.tokenizer, None)).stream, window)


def read_documents(
    model: LoadedModel, documents: Rows, window: Window, *, progress: Callable[[int], None] = lambda done: None
) -> tuple[NDArray[np.float64], int]:
    """The summed cross entropy of each document, and how many tokens they have."""
    rows, owners, known = window.cut(documents)
    losses, tokens = np.zeros(len(documents.lengths)), 0
    left = np.bincount(owners, minlength=len(losses))
    progress(int((left == 0).sum()))
    with torch.inference_mode():
        for some in Plan(np.asarray(rows.lengths)[:, None] - 1, _BATCH_TOKENS, seed=0).in_order():
            lengths = rows.lengths[some] - 1
            padding = padding_of("padding", lengths).get("padding")
            ids = rows.padded(some, drop=1, fill=model.tokenizer.pad).to(model.device)
            targets = rows.padded(some, skip=1, fill=0)
            columns = np.arange(targets.shape[1])
            new = (columns >= known[some][:, None]) & (columns < lengths[:, None])
            asked = torch.from_numpy(new)
            states = model.network.states(ids, padding=None if padding is None else padding.to(model.device))
            values = log_probabilities(
                model.network, states[asked.to(model.device)], targets[asked].to(model.device)
            ).double().cpu().numpy()  # fmt: skip
            np.add.at(losses, owners[some][np.nonzero(new)[0]], -values)
            tokens += len(values)
            np.subtract.at(left, owners[some], 1)
            progress(int((left[np.unique(owners[some])] == 0).sum()))
    return losses, tokens
