"""Synthetic tasks, as rows: copying over a distance or a lag, order, sums of tokens, sequences to reverse; and text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from regard.data.batching import IGNORE_INDEX
from regard.data.corpora import Split
from regard.data.corpora.python_source import python_documents
from regard.data.read.corpus import Corpus
from regard.data.samples import Samples
from regard.data.tasks.language_model import LanguageModel
from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import Byte
from regard.errors import InputError
from regard.lab.learning import Rows

BOS = 0
"""The first token of a decoder's input; symbols are 1 and above."""


def draw(seed: int, *shape: int, below: int, above: int = 1) -> Tensor:
    """Random symbols from `above` to `below` - 1."""
    return torch.randint(above, below, shape, generator=torch.Generator().manual_seed(seed))


def lagged_copy(rows: int, length: int, symbols: int, lag: int, seed: int) -> Rows:
    """Every token is to be answered with the token `lag` positions before it."""
    ids = draw(seed, rows, length, below=symbols + 1)
    targets = ids.roll(lag, dims=1)
    targets[:, :lag] = IGNORE_INDEX
    return Rows({"ids": ids}, targets)


def recalled(rows: int, distance: int, symbols: int, seed: int) -> Rows:
    """The first token, one of `symbols`, is to be recalled at the last, `distance` tokens later; noise in between."""
    noise = draw(seed, rows, distance + 1, below=2 * symbols + 1, above=symbols + 1)
    noise[:, 0] = draw(seed + 1, rows, below=symbols + 1)
    noise[:, -1] = BOS
    targets = torch.full_like(noise, IGNORE_INDEX)
    targets[:, -1] = noise[:, 0]
    return Rows({"ids": noise}, targets)


def two_lags(rows: int, length: int, symbols: int, lags: tuple[int, int], seed: int) -> Rows:
    """Every token is to be answered with the ordered pair of the tokens at two lags, as one symbol."""
    ids = draw(seed, rows, length, below=symbols + 1)
    first, second = (ids.roll(lag, dims=1) - 1 for lag in lags)
    targets = 1 + first * symbols + second
    targets[:, : max(lags)] = IGNORE_INDEX
    return Rows({"ids": ids}, targets)


def modular_sum(rows: int, length: int, modulus: int, seed: int) -> Rows:
    """Every token is to be answered with the sum, modulo `modulus`, of itself and the token before it."""
    ids = draw(seed, rows, length, below=modulus + 1)
    targets = 1 + (ids + ids.roll(1, dims=1) - 2) % modulus
    targets[:, :1] = IGNORE_INDEX
    return Rows({"ids": ids}, targets)


def pairs(rows: int, lengths: Sequence[int], symbols: int, seed: int, *, backwards: bool = False) -> Rows:
    """Sources of random symbols, of the given lengths in turn; the target is the source, or the source reversed."""
    longest = max(lengths)
    sizes = torch.tensor([lengths[row % len(lengths)] for row in range(rows)])
    source = draw(seed, rows, longest, below=symbols + 1)
    column = torch.arange(longest)
    real = column < sizes[:, None]
    target = source.gather(1, (sizes[:, None] - 1 - column).clamp_min(0)) if backwards else source
    return paired(source.masked_fill(~real, BOS), target.masked_fill(~real, IGNORE_INDEX), sizes)


def running_sums(rows: int, length: int, modulus: int, seed: int) -> Rows:
    """The target is the sum of all source tokens so far, modulo `modulus`: one wrong sum makes all later ones wrong."""
    source = draw(seed, rows, length, below=modulus + 1)
    return paired(source, 1 + (source - 1).cumsum(dim=1) % modulus)


def paired(source: Tensor, target: Tensor, sizes: Tensor | None = None) -> Rows:
    """Rows of an encoder-decoder, whose decoder reads BOS and the target without its last token (teacher forcing)."""
    ids = torch.cat([torch.full((len(target), 1), BOS), target[:, :-1]], dim=1).clamp_min(BOS)
    found = {} if sizes is None else {"source_ids": sizes, "ids": sizes}
    return Rows({"source_ids": source, "ids": ids}, target, found)


def read_text(text: Path | None, split: Split, max_bytes: int) -> str:
    """Some bytes of the standard library's source, or of a text of the user's own, whose last fifth is held out."""
    if text is None:
        whole = "\n".join(document for _, document in python_documents(split)).encode()
        return whole[:max_bytes].decode(errors="ignore")
    content = text.read_bytes()
    edges = {"train": (0.0, 0.8), "valid": (0.8, 0.9), "test": (0.9, 1.0)}
    if split not in get_args(Split):
        raise InputError(f'a text has no part called "{split}".')
    first, last = (int(len(content) * edge) for edge in edges[split])
    return content[first:last][:max_bytes].decode(errors="ignore")


BYTES = Byte().train([])
"""The tokenizer of language models here: one token per byte."""


def language_model(text: str, length: int, tokenizer: Tokenizer = BYTES) -> Samples:
    """A text as rows of a language model."""
    return LanguageModel(length).samples(Corpus([text], None, ("text",)), (tokenizer, None))
