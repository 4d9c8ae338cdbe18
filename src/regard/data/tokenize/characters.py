"""Characters of words, the input of a character CNN: a word's bytes between two boundary marks (ELMo, Peters 2018).

Nothing here imports torch, so that a converted model starts fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.read.cache import Cache, Columns
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError

WORD_CHARACTERS = 50  # per word: its bytes, two boundary marks, and padding
CHARACTER_VOCABULARY = 262
_SLICE = 10_000

# After the 256 bytes, numbered as in the published model; all are stored one higher, because 0 is batch padding.
_BOS, _EOS, _BEGIN_WORD, _END_WORD, _PADDING = range(256, 261)

Characters = NDArray[np.int16]


def word_characters(words: Sequence[str], characters: int = WORD_CHARACTERS) -> Characters:
    """Words -> words by characters; a long word is truncated."""
    return _character_rows([word.encode("utf-8", "ignore")[: characters - 2] for word in words], characters)


def bos_and_eos_characters(characters: int = WORD_CHARACTERS) -> Characters:
    """-> 2 by characters: the rows of bos and eos."""
    return _character_rows([[_BOS], [_EOS]], characters)


def text_characters(
    texts: Sequence[Sequence[str]], characters: int = WORD_CHARACTERS
) -> tuple[Characters, NDArray[np.bool_]]:
    """Texts as lists of words -> BTC with bos and eos, padded with 0, and the padding mask BT."""
    lengths = np.array([len(words) + 2 for words in texts], dtype=np.int64)
    real = np.arange(lengths.max(initial=0)) < lengths[:, None]
    bos, eos = bos_and_eos_characters(characters)
    found = np.zeros((*real.shape, characters), dtype=np.int16)
    found[real] = np.concatenate(
        [np.zeros((0, characters), dtype=np.int16)]
        + [part for words in texts for part in (bos[None], word_characters(words, characters), eos[None])]
    )
    return found, real


def token_characters(tokenizer: Tokenizer, cache: Cache | None = None, characters: int = WORD_CHARACTERS) -> Characters:
    """-> N by characters: a table of the characters of each token, so that table[ids] is BTC for ids BT.

    The row of pad is 0, unless pad is bos or eos as well.
    """
    bos, eos, pad = tokenizer.bos, tokenizer.eos, tokenizer.pad

    def make(columns: Columns) -> Mapping[str, Any]:
        for start in range(0, tokenizer.vocabulary, _SLICE):
            ids = range(start, min(start + _SLICE, tokenizer.vocabulary))
            # A word has the same characters whether or not its token holds the space before it.
            words = [text.removeprefix("▁") or text for text in tokenizer.token_texts(ids)]
            rows = word_characters(words, characters)
            for number, row in zip((pad, bos, eos), (0, *bos_and_eos_characters(characters))):
                if number in ids:
                    rows[number - start] = row
            columns.append("characters", rows)
        return {}

    key = [tokenizer.digest, characters, bos, eos, pad]
    return (cache or Cache()).table("characters", key, make).columns["characters"]


def _character_rows(words: Sequence[bytes] | Sequence[Sequence[int]], characters: int) -> Characters:
    """Words between boundary marks, padded."""
    if characters < 3:
        raise InputError(
            f"a word of {characters} characters has no room between its marks (model.embed.characters). Use 3 or more."
        )
    rows = np.full((len(words), characters), _PADDING + 1, dtype=np.int16)
    rows[:, 0] = _BEGIN_WORD + 1
    for row, word in zip(rows, words):
        row[1 : len(word) + 1] = list(word)
        row[1 : len(word) + 1] += 1
        row[len(word) + 1] = _END_WORD + 1
    return rows
