"""CTranslate2 as people use it, in a process of its own: our tokenizer, then its own batches and search."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np

from regard.decode.options import Options
from regard.decode.requests import GeneratedText, Vectors, fill_template, prompt_requests
from regard.engines.encoder import TextEncoder
from regard.engines.folder import read_converted
from regard.engines.language_model import LanguageModel
from regard.engines.translator import Translator
from regard.evaluation.contestant import answer_requests

SIZES = {"float32": {1: 64, 5: 64}, "int8": {1: 64, 5: 16}}
"""The batch sizes at which it was fastest among 16, 32 and 64, by precision and beam size."""

ROWS = 32  # of a batch of texts to embed, as sentence-transformers has


class Plain:
    """Its own batching, ranking and rule of stopping, one worker per core."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.ours = Translator(folder, None, threads=1)
        self.model = ctranslate2.Translator(str(folder), inter_threads=threads, intra_threads=1)
        self.sizes = SIZES[self.ours.converted.precision]

    def defaults(self) -> Options:
        """The model's default options, of which it takes the beam size."""
        return self.ours.defaults()

    def translations(self, texts: Sequence[str], options: Options, progress: Any) -> list[list[GeneratedText]]:
        """The best translation of each text."""
        del progress
        source, target = self.ours.tokenizers
        tokens = [[*map(str, ids), str(source.eos)] for ids in source.encode_batch(texts)]
        size = self.sizes.get(options.beam, 32)
        found = self.model.translate_batch(tokens, beam_size=options.beam, max_batch_size=size)
        rows = [tuple(map(int, one.hypotheses[0])) for one in found]
        return [[GeneratedText(target.decode(row), 0.0, 0.0, row, True)] for row in rows]


class PlainLanguageModel:
    """Its `generate_batch`, one worker per core."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.ours = LanguageModel(folder, None, threads=1)
        self.model = ctranslate2.Generator(str(folder), inter_threads=threads, intra_threads=1)

    def defaults(self) -> Options:
        """The model's default options."""
        return self.ours.defaults()

    def continuations(self, prompts: Sequence[str], options: Options, progress: Any) -> list[list[GeneratedText]]:
        """Each prompt with its greedy continuation."""
        del progress
        tokens = [request.prompt for request in prompt_requests(self.ours, self.ours.tokenizer, prompts, options)]
        found = self.model.generate_batch([[*map(str, row)] for row in tokens], max_length=options.max_tokens,
                                          include_prompt_in_result=False)  # fmt: skip
        rows = [tuple(one.sequences_ids[0]) for one in found]
        decode, most = self.ours.tokenizer.decode, options.max_tokens or 0
        return [[GeneratedText(decode((*one, *row)), 0.0, 0.0, row, len(row) < most)] for one, row in zip(tokens, rows)]


class PlainEncoder:
    """Its `forward_batch` of texts by length, one batch per worker at a time, then the mean of the tokens."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.ours = TextEncoder(folder, None, threads=1)
        self.tokenizer, self.threads = self.ours.tokenizer, threads
        self.model = ctranslate2.Encoder(str(folder), inter_threads=threads, intra_threads=1)

    def embed(self, texts: Sequence[str], progress: Any) -> Vectors:
        """One vector per text."""
        del progress
        encoded = self.tokenizer.encode_batch(texts)
        order = sorted(range(len(texts)), key=lambda index: -len(encoded[index]))
        found = np.zeros((len(texts), self.ours.embedding_width), dtype=np.float32)

        def read(indices: list[int]) -> Vectors:
            rows = fill_template(self.ours, self.tokenizer, [[encoded[index] for index in indices]])
            arrays = rows.ids.astype(np.int32), rows.lengths.astype(np.int32)
            states = self.model.forward_batch(*map(ctranslate2.StorageView.from_array, arrays)).last_hidden_state
            real = np.arange(rows.ids.shape[1]) < rows.lengths[:, None]
            means: Vectors = (np.array(states) * real[..., None]).sum(1) / rows.lengths[:, None].astype(np.float32)
            return means / np.linalg.norm(means, axis=-1, keepdims=True)

        batches = [order[start : start + ROWS] for start in range(0, len(order), ROWS)]
        with ThreadPoolExecutor(self.threads) as pool:
            for indices, vectors in zip(batches, pool.map(read, batches)):
                found[indices] = vectors
        return found


SHAPES = {"encoder-decoder": Plain, "decoder": PlainLanguageModel, "encoder": PlainEncoder}


def load(folder: Path, threads: int) -> Plain | PlainLanguageModel | PlainEncoder:
    """The converted model of a folder."""
    converted = read_converted(folder)
    assert converted is not None
    return SHAPES[converted.shape](folder, threads)


if __name__ == "__main__":
    answer_requests(lambda: load(Path(sys.argv[2]), int(sys.argv[3])))
