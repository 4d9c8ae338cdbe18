"""A folder without a tokenizer is spoken to in the numbers of its tokens."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from regard.errors import Note
from regard.text.tokenizer import Roles, Tokenizer


def numbered(folder: Path, size: int, said: Mapping[str, Any], *, start: int | None, end: int | None) -> Tokenizer:
    """A tokenizer whose words are numbers: "5 7 9" is the tokens 5, 7 and 9."""
    warnings.warn(f"{folder} has no tokenizer, so texts are the numbers of tokens, as in '5 7 9'.", Note, stacklevel=2)
    words = tokenizers.Tokenizer(WordLevel({str(number): number for number in range(size)}, unk_token="0"))
    words.pre_tokenizer = WhitespaceSplit()
    # Settings that nobody made may name tokens that the model does not have.
    first, pad = (
        number if number in range(size) else None for number in map(said.get, ("bos_token_id", "pad_token_id"))
    )
    begin = first if start is None else start
    return Tokenizer(words, roles=Roles(begin, end, end if pad is None else pad, opening=()))
