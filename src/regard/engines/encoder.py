"""An encoder in another engine: vectors, labels, numbers and tags of texts, without torch.

The engine computes the last hidden states; pooling and the head are ours, in numpy (`Head`). A runtime is one function
in `_STATES`: ids BT (characters BTC), the lengths of the rows, the segments of the tokens -> states BTD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.tokenize.characters import text_characters, token_characters
from regard.decode.requests import (
    LabelPrediction,
    Layer,
    NumberPrediction,
    Prediction,
    TagPrediction,
    Text,
    TokenVectors,
    Vectors,
    check_length,
    encode_classified,
    encode_cut,
    fill_template,
    input_length,
    length_batches,
    reads_any_word,
    text_template,
    token_names,
)
from regard.engines.folder import Runtime
from regard.engines.head import HEAD, Numbers, Pooling, pooled, read_head, unit
from regard.engines.model import Answers, ConvertedModel, open_ctranslate2
from regard.errors import DamagedFile, InputError, suggest
from regard.progress import QUIET, Progress

_ROWS, _TOKENS = 128, 512  # of a batch, at most: with 2,048 tokens, int8 was measured to take 1.5 times as long
_POOLS: dict[str, Pooling] = {"mean": "mean", "first": "first", "last": "last", "max": "max"}

Lengths = NDArray[np.int64]
States = Callable[[NDArray[np.int64], Lengths, NDArray[np.int64] | None], Numbers]


def _open_ctranslate2(folder: Path, workers: int) -> States:
    """An encoder in CTranslate2, with so many workers of one thread."""
    import ctranslate2

    model = open_ctranslate2("Encoder", folder, workers)

    def states(ids: NDArray[np.int64], lengths: Lengths, segments: NDArray[np.int64] | None) -> Numbers:
        arrays = ids.astype(np.int32), lengths.astype(np.int32)  # the views do not own them
        more = {} if segments is None else {"token_type_ids": segments.tolist()}
        found = model.forward_batch(*map(ctranslate2.StorageView.from_array, arrays), **more)
        return np.array(found.last_hidden_state)

    return states


def _open_onnxruntime(folder: Path, _: int) -> States:
    """An encoder in ONNX Runtime; each batch is computed in the thread that asks for it."""
    from regard.engines.onnx_folder import ENCODER, open_graph, run_graph

    session = open_graph(folder / ENCODER, threads=1)
    names = [one.name for one in session.get_inputs()]
    if not {*names} <= {"ids", "padding", "segments"} or "states" not in {one.name for one in session.get_outputs()}:
        raise DamagedFile(f"{folder / ENCODER} is no encoder that regard wrote. Convert the model again.")

    def states(ids: NDArray[np.int64], lengths: Lengths, segments: NDArray[np.int64] | None) -> Numbers:
        real = np.arange(ids.shape[1]) < lengths[:, None]
        feed = {"ids": ids, "padding": real, "segments": np.zeros_like(ids) if segments is None else segments}
        found: Numbers = run_graph(session, ENCODER, {name: feed[name] for name in names}, only="states")["states"]
        return found

    return states


_STATES: dict[Runtime, Callable[[Path, int], States]] = {
    "ctranslate2": _open_ctranslate2, "onnxruntime": _open_onnxruntime
}  # fmt: skip


class TextEncoder(ConvertedModel):
    """A converted encoder: `embed` and `classify` as a loaded model has them; what it cannot do is left to torch."""

    def __init__(
        self,
        folder: Path,
        torch: Callable[[], Answers] | None,
        *,
        defaults_from: Path | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__(folder, torch, defaults_from=defaults_from, threads=threads)
        self._states = _STATES[self.converted.runtime](folder, self.threads)
        head = self.converted.head
        self._weights = {} if head is None else read_head(folder / HEAD, head, self.converted.vector_width)
        self.classifies_pairs = head is not None and head.pairs
        self.embedding_width = self.converted.vector_width
        if head is not None and head.outputs == "vector" and head.layers:
            self.embedding_width = len(self._weights[f"{len(head.layers) - 1}.weight"])

    def embed(
        self, texts: Sequence[str], *, pool: str | None = None, layer: Layer = None, normalised: bool = False,
        tokens: bool = False, stateful: bool = False, progress: Progress | None = None,
    ) -> Vectors | list[TokenVectors]:  # fmt: skip
        """One vector per text, or with `tokens` the tokens and a vector for each, as torch computes them."""
        reason = "layer" if layer is not None else "stateful" if stateful else None
        if reason:
            return self._in_torch(reason, "embeds").embed(
                texts, pool=pool, layer=layer, normalised=normalised, tokens=tokens, stateful=stateful,
                progress=progress,
            )  # fmt: skip
        if tokens and pool is not None:
            raise InputError("vectors of tokens are not pooled (--tokens). Leave out --pool.")
        if pool is not None and pool not in _POOLS:
            raise InputError(f'"{pool}" is not known (--pool). {suggest(pool, _POOLS)}')
        encoded = encode_cut(self, self.tokenizer, texts, self.converted.max_text_length)
        if tokens:
            return self._embed_tokens(texts, encoded, normalised, progress or QUIET)
        own = pool is None and self.converted.head is not None and self.converted.head.outputs == "vector"
        found = np.zeros((len(texts), self.embedding_width if own else self.converted.vector_width), dtype=np.float32)
        read = self._head if own else partial(pooled, _POOLS[pool or "mean"])
        for indices, vectors in self._read(texts, [encoded], read, progress or QUIET):
            found[indices] = unit(vectors) if normalised else vectors
        return found

    def _embed_tokens(
        self, texts: Sequence[str], encoded: list[list[int]], normalised: bool, progress: Progress
    ) -> list[TokenVectors]:  # fmt: skip
        """The tokens of each text, special tokens included, with one vector per token."""
        names = [token_names(self, self.tokenizer, *pair) for pair in zip(encoded, texts)]
        found: list[TokenVectors] = [([], np.zeros((0, 0), dtype=np.float32))] * len(encoded)
        for indices, rows in self._read(texts, [encoded], lambda states, _: states, progress):
            for index, row in zip(indices, unit(rows) if normalised else rows):
                found[index] = names[index], row[: len(names[index])].copy()
        return found

    def classify(self, texts: Sequence[Text], *, progress: Progress | None = None) -> list[Prediction]:
        """The prediction for each text or pair of texts: a label, a number, or a tag per word."""
        head = self.converted.head
        assert head is not None  # a model without one does not have the verb
        if head.pairs and any(isinstance(text, str) for text in texts):
            raise InputError(
                "this model tells whether one text follows another (regard classify). Give pairs of texts."
            )
        if head.outputs == "tags" and any(not isinstance(text, str) for text in texts):
            raise InputError("this model tags the words of one text, not of two (regard classify). Leave out --pairs.")
        found: dict[int, Prediction] = {}
        start = len(text_template(self, self.tokenizer).prefix)
        segments = encode_classified(self.tokenizer, texts)
        for indices, outputs in self._read(texts, segments, self._head, progress or QUIET):
            if head.outputs == "number":
                rows: list[Prediction] = [NumberPrediction(float(row[0])) for row in outputs]
            elif head.outputs == "tags":
                tagged = zip(indices, outputs.argmax(-1)[:, start:].tolist())
                rows = [TagPrediction.of(self.tokenizer, str(texts[index]), head.labels, row) for index, row in tagged]
            else:
                rows = [LabelPrediction.of(head.labels, row) for row in head.probabilities(outputs).tolist()]
            found |= zip(indices, rows)
        return [found[index] for index in range(len(texts))]

    def _head(self, states: Numbers, lengths: Lengths) -> Numbers:
        assert self.converted.head is not None
        return self.converted.head.apply(states, lengths, self._weights)

    def _read(
        self, texts: Sequence[Text], segments: list[list[list[int]]],
        function: Callable[[Numbers, Lengths], Numbers], progress: Progress,
    ) -> Iterator[tuple[list[int], Numbers]]:  # fmt: skip
        """Batches of texts: their indices, and a function of the last hidden states BTD and their lengths."""
        lengths = [input_length(self, self.tokenizer, rows) for rows in zip(*segments)]
        for index, length in enumerate(lengths):
            check_length(self, length, f"text {index + 1:,}")

        def read(indices: list[int]) -> Numbers:
            filled = fill_template(self, self.tokenizer, [[rows[index] for index in indices] for rows in segments])
            kinds = filled.segments if self.converted.segments > 1 and filled.segments.any() else None
            ids, lengths = filled.ids, filled.lengths
            if self.converted.characters:
                ids, lengths = self._characters(ids, lengths, [texts[index] for index in indices])
            states = self._states(ids, lengths, kinds)
            if states.shape != (len(indices), ids.shape[1], self.converted.vector_width):
                raise DamagedFile(f"{self.folder} computes states of shape {states.shape}, not of the width that "
                                  "config.json says. Convert the model again.")  # fmt: skip
            return function(states, lengths)

        batches = list(length_batches(lengths, _TOKENS, _ROWS))
        with ThreadPoolExecutor(self.threads) as pool:
            for indices, found in zip(batches, pool.map(read, batches)):
                yield indices, found
                progress(len(indices))

    def _characters(
        self, ids: NDArray[np.int64], lengths: Lengths, texts: Sequence[Text]
    ) -> tuple[NDArray[np.int64], Lengths]:  # fmt: skip
        """BTC and the lengths of the rows: the characters of each token, or of each word of any."""
        if not reads_any_word(self.tokenizer):
            return self._table[ids], lengths
        words = [self.tokenizer.words(text if isinstance(text, str) else "\t".join(text)) for text in texts]
        rows, real = text_characters(words, self.converted.characters)
        return rows.astype(np.int64), real.sum(1)

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        """The characters of each token."""
        return np.asarray(token_characters(self.tokenizer, characters=self.converted.characters)).astype(np.int64)
