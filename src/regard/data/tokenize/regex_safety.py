"""What holds no text up: the patterns of a tokenizer.json that are run, whoever wrote them; others are refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import tokenizers
from tokenizers import models

from regard import messages

_LARGEST = 10_000  # times the length of a text that all replacements one after the other could make of it
_LONGEST_WORD = 1000  # characters of a word that WordPiece tries; its time grows with their square

# A pattern is a choice of rows. A row is characters, a few of which may be absent, and one of some words; only its
# last may repeat, so that whatever can fail does so before anything repeats, and nothing is ever read twice.
_CLASS = r"\[\^?(?:\\[pP]\{\^?\w+\}|\\[^\dpP]|[^\[\]\\&])+\]"
_ONE = rf"(?:{_CLASS}|\\[pP]\{{\^?\w+\}}|\\[^\dpPkgGKRXbBAzZ]|[^\\()\[\]{{}}|*+?^$])"
_FIXED = rf"(?:{_ONE}(?![?*+{{]))*"
_WORDS = rf"\(\?i?:{_ONE}+(?:\|{_ONE}+)*\)\??"
_REPEATED = rf"{_ONE}(?:[*+]|\{{\d{{1,2}}(?:,\d*)?\}})(?:{_ONE}\*)*"
# These go back by one character, or over spaces that the next row takes.
_SPACES = r"\\s(?:\+|\{\d{1,2},\d*\})\(\?!\\S\)|\\s\*\[\\r\\n\]\+"
_ROW = rf"(?:{_SPACES}|\^?{_FIXED}(?:{_ONE}\?{_FIXED}){{0,4}}(?:{_WORDS}{_FIXED})?(?:{_REPEATED}|\$)?)"
_STEADY = re.compile(rf"{_ROW}(?:\|{_ROW})*")


def require_steady(tokenizer: tokenizers.Tokenizer) -> None:
    """Refuse a tokenizer that some text would keep busy for hours."""
    parts = tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder
    for pattern in (pattern for part in parts if part is not None for pattern in _under("Regex", _plain(part))):
        if len(pattern) > 1000 or not _STEADY.fullmatch(pattern):
            raise messages.BAD_TOKENIZER(why=f"its pattern {pattern[:60]!r} could hang on some text, and is not run")
    growth = math.prod(1 + len(text) for part in parts if part is not None for text in _under("content", _plain(part)))
    if growth > _LARGEST:
        raise messages.BAD_TOKENIZER(why=f"its replacements could make a text {growth:.1g} times as long")
    model = tokenizer.model
    if isinstance(model, models.WordPiece) and model.max_input_chars_per_word > _LONGEST_WORD:
        raise messages.BAD_TOKENIZER(
            why=f"max_input_chars_per_word is {model.max_input_chars_per_word:,}, at most {_LONGEST_WORD:,} are tried"
        )


def _plain(part: Any) -> Any:
    """A part of a tokenizer as its JSON has it."""
    return json.loads(part.__getstate__())


def _under(name: str, plain: Any) -> Iterator[str]:
    """The texts that stand under a name, however deep."""
    if isinstance(plain, dict) and isinstance(plain.get(name), str):
        yield plain[name]
    for value in plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ():
        yield from _under(name, value)
