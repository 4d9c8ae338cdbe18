"""Reading batches in tests: rows without padding, targets without IGNORE_INDEX, labelled corpora."""

from __future__ import annotations

import torch

from regard.data.batching import IGNORE_INDEX, Batch
from regard.data.read.corpus import Corpus
from regard.data.tokenize.tokenizer import PAD
from regard.data.tokenize.train import Byte

BYTE = Byte().train([])


def numbers(text: str) -> list[int]:
    """The bytes of a text as token ids."""
    return BYTE.encode(text)


def rows_of(batch: Batch, name: str, padding: str) -> list[list[int]]:
    """The rows of a batch without padding."""
    values = batch.inputs[name]
    real = batch.inputs.get(padding, torch.ones(values.shape, dtype=torch.bool))
    assert real.dtype == torch.bool
    assert values.dtype == torch.int64
    assert bool((values[~real] == PAD).all())
    assert real.any(dim=0).all(), "a column of padding alone"
    assert torch.equal(real, real.cummin(1).values), "padding is on the right"
    return [row[mask].tolist() for row, mask in zip(values, real)]


def expected_targets(batch: Batch) -> list[list[int]]:
    """The targets of each row."""
    return [row[row != IGNORE_INDEX].tolist() for row in batch.targets]


def pairs_of(pairs: list[tuple[str, str]]) -> Corpus:
    """A corpus of pairs."""
    return Corpus([source for source, _ in pairs], [target for _, target in pairs], ("t.de", "t.en"))


def labelled(lines: list[tuple[str, str]]) -> Corpus:
    """A corpus of texts and their labels."""
    return Corpus([text for text, _ in lines], [label for _, label in lines], ("t.tsv",))
