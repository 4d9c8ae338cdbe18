"""What holds no text up: the patterns of a tokenizer.json that are run, whoever wrote them; others are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import tokenizers
from tokenizers import models

from regard import catalogue

_LONGEST_WORD = 1000  # characters of a word that WordPiece tries; its time grows with their square

# A pattern is a choice of rows. A row is characters, a few of which may be absent or one of some words; only its last
# may repeat, so that whatever can fail does so before anything repeats, and nothing is ever read twice.
_CLASS = r"\[\^?(?:\\[pP]\{\^?\w+\}|\\[^\d]|[^\[\]\\&])+\]"
_ONE = rf"(?:{_CLASS}|\\[pP]\{{\^?\w+\}}|\\[^\dpPkgGKRXbBAzZ]|[^\\()\[\]{{}}|*+?^$])"
_FIXED = rf"(?:{_ONE}(?![?*+{{]))*"
_WORDS = rf"\(\?i?:{_ONE}+(?:\|{_ONE}+)*\)\??"
_REPEATED = rf"{_ONE}(?:[*+]|\{{\d{{1,2}}(?:,\d*)?\}})(?:{_ONE}\*)*"
# These go back by one character, or over spaces that the next row takes.
_SPACES = r"\\s(?:\+|\{\d{1,2},\d*\})\(\?!\\S\)|\\s\*\[\\r\\n\]\+"
_ROW = rf"(?:{_SPACES}|\^?{_FIXED}(?:(?:{_ONE}\?|{_WORDS}){_FIXED}){{0,4}}(?:{_REPEATED}|\$)?)"
_STEADY = re.compile(rf"{_ROW}(?:\|{_ROW})*")


def require_steady(tokenizer: tokenizers.Tokenizer) -> None:
    """Refuse a tokenizer that some text would keep busy for hours."""
    parts = tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder
    for pattern in (pattern for part in parts if part is not None for pattern in _patterns(_plain(part))):
        if len(pattern) > 1000 or not _STEADY.fullmatch(pattern):
            raise catalogue.BAD_TOKENIZER(why=f"its pattern {pattern[:60]!r} could hang on some text, and is not run")
    model = tokenizer.model
    if isinstance(model, models.WordPiece) and model.max_input_chars_per_word > _LONGEST_WORD:
        raise catalogue.BAD_TOKENIZER(
            why=f"max_input_chars_per_word is {model.max_input_chars_per_word:,}, at most {_LONGEST_WORD:,} are tried"
        )


def _plain(part: Any) -> Any:
    """A part of a tokenizer as its JSON has it."""
    return json.loads(part.__getstate__())


def _patterns(plain: Any) -> Iterator[str]:
    """The regular expressions in it."""
    if isinstance(plain, dict):
        found = plain.get("Regex")
        if isinstance(found, str):
            yield found
    for value in plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ():
        yield from _patterns(value)
