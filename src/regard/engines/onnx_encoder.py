"""Encoders converted to ONNX: vectors and labels of texts by onnxruntime, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.data.tokenize.encode import Reads, Template, token_rows
from regard.data.tokenize.tokenizer import word_ids, word_offsets
from regard.decode.requests import check_length
from regard.engines.onnx_folder import ENCODER, Head, open_graph, read_onnx, run_graph
from regard.errors import InputError
from regard.store.manifest import require_unchanged
from regard.store.tokenizers import read_tokenizers

Array = NDArray[Any]
Vectors = NDArray[np.float32]
Text = str | tuple[str, str]
Pool = Literal["mean", "first", "last", "max"]
POOLS: tuple[Pool, ...] = ("mean", "first", "last", "max")

_TOKENS, _ROWS = 2048, 128  # of a batch, padding included
_NO_TAG = "_"


class OnnxEncoder:
    """An encoder in a folder that `regard convert MODEL FOLDER --to onnx` wrote."""

    def __init__(self, folder: Path, *, threads: int = 0) -> None:
        self.model = read_onnx(folder)
        if self.model.head is None:
            raise InputError(f"{folder} holds no encoder of texts; it was made to {self.model.shape} tokens. Step it: "
                             "docs/onnx.md.")  # fmt: skip
        require_unchanged(folder)
        self.head: Head = self.model.head
        self.tokenizer = read_tokenizers(folder)[0]
        self._session = open_graph(folder / ENCODER, threads)
        self._template = Template.of(self.tokenizer, self.model.reads)

    @property
    def reads(self) -> Reads:
        """What it reads: a text as a whole."""
        return self.model.reads

    @property
    def max_positions(self) -> int | None:
        """How many tokens it can read at once; None when there is no bound."""
        return self.model.max_positions

    def embed(
        self, texts: Sequence[str], *, pool: Pool | None = None, normalised: bool = False,
        max_length: int | None = None,
    ) -> Vectors:  # fmt: skip
        """One vector per text, by `pool`; by default what the model outputs, if vectors, else the mean of tokens."""
        if pool is not None and pool not in POOLS:
            raise InputError(f'"{pool}" is not known (--pool). Use {", ".join(POOLS)}.')
        own = pool is None and self.head.output == "vectors"
        found: dict[int, Vectors] = {}
        for indices, outputs, real in self._outputs(texts, max_length):
            vectors = outputs["vectors"] if own else _pooled(outputs["states"], real, pool or "mean")
            found |= zip(indices, vectors)
        width = self.head.vector_width if own else self.head.state_width
        stacked = np.array([found[index] for index in range(len(texts))], dtype=np.float32)
        if normalised:
            stacked = stacked / np.maximum(np.linalg.norm(stacked, axis=-1, keepdims=True), 1e-12)
        return stacked.reshape(len(texts), width).astype(np.float32)

    def probabilities(self, texts: Sequence[Text]) -> list[dict[str, float]]:
        """The probability of each label, for each text or pair of texts."""
        labels, output = self._labels()
        found: dict[int, dict[str, float]] = {}
        for indices, outputs, _ in self._outputs(texts):
            logits = outputs[output]
            if self.head.several:
                rows = 1 / (1 + np.exp(-logits))
            else:
                rows = np.exp(logits - logits.max(-1, keepdims=True))
                rows /= rows.sum(-1, keepdims=True)
            found |= {index: dict(zip(labels, row.tolist())) for index, row in zip(indices, rows)}
        return [found[index] for index in range(len(texts))]

    def classify(self, texts: Sequence[Text]) -> list[str]:
        """The most likely label of each text or pair of texts."""
        return [max(row, key=row.__getitem__) for row in self.probabilities(texts)]

    def numbers(self, texts: Sequence[Text]) -> list[float]:
        """The number predicted for each text (regression)."""
        if not self.head.number:
            raise InputError(f"this model predicts no number; it outputs {self.head.output}.")
        found: dict[int, float] = {}
        for indices, outputs, _ in self._outputs(texts):
            found |= zip(indices, outputs["numbers"][:, 0].tolist())
        return [found[index] for index in range(len(texts))]

    def tags(self, texts: Sequence[str]) -> list[list[tuple[str, str]]]:
        """The words of each text, each with its tag: the label predicted at its first token."""
        labels, output = self._labels(tokenwise=True)
        predicted: dict[int, Array] = {}
        for indices, outputs, _ in self._outputs(texts):
            predicted |= zip(indices, outputs[output].argmax(-1))
        start, found = len(self._template.prefix), []
        for index, text in enumerate(texts):
            owners = word_ids(text, self.tokenizer.encode_with_offsets(text).offsets)
            first = {word: token for token, word in reversed(list(enumerate(owners)))}
            words = [text[begin:end] for begin, end in word_offsets(text)]
            tags = [labels[predicted[index][start + first[n]]] if n in first else _NO_TAG for n in range(len(words))]
            found.append(list(zip(words, tags)))
        return found

    def _labels(self, *, tokenwise: bool = False) -> tuple[tuple[str, ...], str]:
        """The labels, and the name of the output that holds their logits."""
        output = "auxiliary" if self.head.auxiliary else self.head.output
        if not self.head.labels or tokenwise != (self.head.tokenwise and not self.head.auxiliary):
            raise InputError(f"this model predicts no {'tags' if tokenwise else 'labels'}; it outputs {output}.")
        return self.head.labels, output

    def _outputs(
        self, texts: Sequence[Text], max_length: int | None = None
    ) -> Iterator[tuple[list[int], dict[str, Array], Array]]:
        """Batches of texts of similar length: their indices, the graph's outputs, and BT: where there is a token."""
        paired = {not isinstance(text, str) for text in texts}
        if len(paired) > 1:
            raise InputError("some are texts and some are pairs of texts. Give one or the other.")
        parts = [[text] if isinstance(text, str) else list(text) for text in texts]
        segments = [self.tokenizer.encode_batch([part[n] for part in parts]) for n in range(2 if True in paired else 1)]
        special = self._template.num_special_tokens(len(segments))
        if max_length is not None:
            segments = [[ids[: max(0, max_length - special)] for ids in rows] for rows in segments]
        lengths = [max(1, special + sum(map(len, rows))) for rows in zip(*segments)]
        for index, length in enumerate(lengths):
            check_length(self, length, f"text {index + 1:,}")
        for indices in _batches(lengths):
            feed = self._feed([[rows[index] for index in indices] for rows in segments], [parts[i][0] for i in indices])
            given = {name: feed[name] for name in self.model.encoder or ()}
            yield indices, run_graph(self._session, ENCODER, given), feed["padding"]

    def _feed(self, segments: list[list[list[int]]], texts: list[str]) -> dict[str, Array]:
        """The graph's inputs for a batch."""
        if not self._template.num_special_tokens(len(segments)):  # no row is empty
            segments = [[ids or [self.tokenizer.bos] for ids in segments[0]], *segments[1:]]
        filled = self._template.fill([token_rows(rows) for rows in segments])
        kinds = filled.segments if self.head.segments > 1 else np.zeros_like(filled.segments)
        real = np.arange(filled.ids.shape[1]) < filled.lengths[:, None]
        ids, real = self._by_characters(filled.ids, real, texts) if self.head.characters else (filled.ids, real)
        return {"ids": ids, "padding": real, "segments": kinds}

    def _by_characters(self, ids: Array, real: Array, texts: list[str]) -> tuple[Array, Array]:
        """The characters of each token BTC, or of each word where there is no vocabulary of words."""
        from regard.data.tokenize.characters import text_characters, token_characters  # which import torch

        if self.head.any_word:
            words, real = text_characters([*map(self.tokenizer.words, texts)], self.head.characters)
            return words.astype(np.int64), real
        return np.asarray(token_characters(self.tokenizer, characters=self.head.characters))[ids].astype(np.int64), real


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of texts, longest first, in batches of bounded size."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and (len(batch) >= _ROWS or (len(batch) + 1) * lengths[batch[0]] > _TOKENS):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _pooled(states: Array, real: Array, pool: Pool) -> Array:
    """BTD -> BD, over the tokens but padding."""
    if pool == "first":
        return np.asarray(states[:, 0])
    if pool == "last":
        return np.asarray(states[np.arange(len(states)), np.maximum(real.sum(1), 1) - 1])
    if pool == "max":
        return np.asarray(np.where(real[..., None], states, -np.inf).max(1))
    return np.asarray(np.where(real[..., None], states, 0).sum(1) / np.maximum(real.sum(1, keepdims=True), 1))
