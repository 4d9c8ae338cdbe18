"""How a word is spelled for a model that reads characters: its bytes between two marks (Peters 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batching import Batch
from regard.data.draws import Indices, Share
from regard.data.read.cache import Cache, Columns
from regard.data.read.corpus import Corpus
from regard.data.samples import LeftOut, Samples
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError

LETTERS = 50  # of each word: its bytes, a mark on either side, and padding
CHARACTERS = 262  # that there are
_SLICE = 10_000


# After the 256 bytes, as the published model numbers them; all are written one higher, because 0 is no word at all.
_BEGIN, _END, _BEGIN_WORD, _END_WORD, _PADDING = range(256, 261)


Characters = NDArray[np.int16]


def spell(words: Sequence[str], letters: int = LETTERS) -> Characters:
    """So many words -> as many rows of letters; what a long word has too many is cut off."""
    return _written([word.encode("utf-8", "ignore")[: letters - 2] for word in words], letters)


def frame(letters: int = LETTERS) -> Characters:
    """-> 2, letters: what stands before a text, and what stands after it."""
    return _written([[_BEGIN], [_END]], letters)


def spell_texts(texts: Sequence[Sequence[str]], letters: int = LETTERS) -> tuple[Characters, NDArray[np.bool_]]:
    """Texts, each a list of words -> BTC with the frame, 0 where a text has ended, and BT: True where it has not."""
    lengths = np.array([len(words) + 2 for words in texts], dtype=np.int64)
    real = np.arange(lengths.max(initial=0)) < lengths[:, None]
    begin, end = frame(letters)
    characters = np.zeros((*real.shape, letters), dtype=np.int16)
    characters[real] = np.concatenate(
        [np.zeros((0, letters), dtype=np.int16)]
        + [part for words in texts for part in (begin[None], spell(words, letters), end[None])]
    )
    return characters, real


def spellings(tokenizer: Tokenizer, cache: Cache | None = None, letters: int = LETTERS) -> Characters:
    """-> N, letters: how each token of a vocabulary is spelled, so that `spellings[ids]` is BTC for ids BT.

    The tokens that begin and end a text are its frame, and the one that fills a batch is 0, if it does nothing else.
    """
    begin, end, pad = tokenizer.begin, tokenizer.end, tokenizer.pad

    def make(columns: Columns) -> Mapping[str, Any]:
        for start in range(0, tokenizer.vocabulary, _SLICE):
            numbers = range(start, min(start + _SLICE, tokenizer.vocabulary))
            # A word is spelled as itself, whether its token also holds the space before it or not.
            rows = spell([text.removeprefix("▁") or text for text in tokenizer.token_texts(numbers)], letters)
            for number, row in ((pad, 0), (begin, frame(letters)[0]), (end, frame(letters)[1])):
                if number in numbers:
                    rows[number - start] = row
            columns.append("characters", rows)
        return {}

    key = [tokenizer.digest, letters, begin, end, pad]
    return (cache or Cache()).table("spellings", key, make).columns["characters"]


def spelled(batch: Batch, table: Characters) -> Batch:
    """The same batch with the characters of each token, BTC, in place of its number; targets stay numbers."""
    characters = np.asarray(table)[batch.inputs["ids"].numpy()]
    return replace(batch, inputs={**batch.inputs, "ids": torch.from_numpy(characters)})


@dataclass(frozen=True, eq=False)
class SpelledSamples:
    """Samples of any problem, for a model that reads characters."""

    of: Samples
    table: Characters

    @property
    def corpus(self) -> Corpus:
        """The texts, as they are cut into tokens."""
        return self.of.corpus

    @property
    def lengths(self) -> NDArray[Any]:
        """Samples by sides: the tokens of each as they stand in a batch."""
        return self.of.lengths

    @property
    def text_lengths(self) -> tuple[NDArray[Any], ...]:
        """The tokens of every text, side by side."""
        return self.of.text_lengths

    @property
    def left_out(self) -> LeftOut:
        """The texts that are not among the samples."""
        return self.of.left_out

    @property
    def bytes(self) -> int:
        """The UTF-8 bytes of all that is to be predicted in an epoch."""
        return self.of.bytes

    @property
    def shares(self) -> tuple[Share, ...]:
        """How many samples come from each part of the corpus, and how often each comes in an epoch."""
        return self.of.shares

    @property
    def lanes(self) -> int:
        """How many texts are read abreast."""
        return self.of.lanes

    def __len__(self) -> int:
        return len(self.of)

    def batch(self, indices: Sequence[int] | Indices, draw: int | None = None) -> Batch:
        """Some of the samples, spelled."""
        return spelled(self.of.batch(indices, draw), self.table)

    def where(self, indices: Sequence[int] | Indices) -> str:
        """Where in the corpus these samples come from."""
        return self.of.where(indices)


def as_letters(samples: Samples, tokenizer: Tokenizer, letters: int, cache: Cache | None = None) -> Samples:
    """Samples with so many letters of each token in place of its number; none: as they are."""
    return SpelledSamples(samples, spellings(tokenizer, cache, letters)) if letters else samples


def _written(words: Sequence[bytes] | Sequence[Sequence[int]], letters: int) -> Characters:
    """Rows of characters between the marks of a word, padded."""
    if letters < 3:
        raise InputError(f"a word of {letters} characters has no room between its marks (letters). Use 3 or more.")
    rows = np.full((len(words), letters), _PADDING + 1, dtype=np.int16)
    rows[:, 0] = _BEGIN_WORD + 1
    for row, word in zip(rows, words):
        row[1 : len(word) + 1] = list(word)
        row[1 : len(word) + 1] += 1
        row[len(word) + 1] = _END_WORD + 1
    return rows
