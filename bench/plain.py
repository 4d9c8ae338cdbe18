"""CTranslate2 as people use it, in a process of its own: our tokenizer, then its `translate_batch`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2

from regard.decode.options import Options
from regard.decode.requests import GeneratedText
from regard.engines.translator import Translator
from regard.evaluation.contestant import answer_requests

SIZES = {"float32": {1: 64, 5: 64}, "int8": {1: 64, 5: 16}}
"""The batch sizes at which it was fastest among 16, 32 and 64, by precision and beam size."""


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


if __name__ == "__main__":
    answer_requests(lambda: Plain(Path(sys.argv[2]), int(sys.argv[3])))
