"""Regex safety of a tokenizer.json: only patterns that cannot backtrack catastrophically are run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import tokenizers
from tokenizers import models

from regard import messages

_MAX_GROWTH = 10_000  # of a text's length by all replacements together
_MAX_WORD = 1000  # characters of a word that WordPiece segments, in quadratic time

# A safe pattern is an alternation of branches. A branch is a sequence of characters, a few of them optional, and one
# group of fixed words; only its end may repeat, so a match can fail only before anything repeats, and no character is
# read twice.
_CLASS = r"\[\^?(?:\\[pP]\{\^?\w+\}|\\[^\dpP]|[^\[\]\\&])+\]"
_ONE = rf"(?:{_CLASS}|\\[pP]\{{\^?\w+\}}|\\[^\dpPkgGKRXbBAzZ]|[^\\()\[\]{{}}|*+?^$])"
_FIXED = rf"(?:{_ONE}(?![?*+{{]))*"
_WORDS = rf"\(\?i?:{_ONE}+(?:\|{_ONE}+)*\)\??"
_REPEATED = rf"{_ONE}(?:[*+]|\{{\d{{1,2}}(?:,\d*)?\}})(?:{_ONE}\*)*"
# These backtrack by one character, or over spaces that the next branch takes.
_SPACES = r"\\s(?:\+|\{\d{1,2},\d*\})\(\?!\\S\)|\\s\*\[\\r\\n\]\+"
_BRANCH = rf"(?:{_SPACES}|\^?{_FIXED}(?:{_ONE}\?{_FIXED}){{0,4}}(?:{_WORDS}{_FIXED})?(?:{_REPEATED}|\$)?)"
_SAFE = re.compile(rf"{_BRANCH}(?:\|{_BRANCH})*")


def require_safe(tokenizer: tokenizers.Tokenizer) -> None:
    """Refuse a tokenizer that some text would keep busy for hours."""
    steps = tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder
    parts = [_to_dict(step) for step in steps if step is not None]
    for pattern in (pattern for part in parts for pattern in _values_of("Regex", part)):
        if len(pattern) > 1000 or not _SAFE.fullmatch(pattern):
            raise messages.BAD_TOKENIZER(why=f"its pattern {pattern[:60]!r} could hang on some text, and is not run")
    growth = math.prod(1 + len(text) for part in parts for text in _values_of("content", part))
    if growth > _MAX_GROWTH:
        raise messages.BAD_TOKENIZER(why=f"its replacements could make a text {growth:.1g} times as long")
    model = tokenizer.model
    if isinstance(model, models.WordPiece) and model.max_input_chars_per_word > _MAX_WORD:
        raise messages.BAD_TOKENIZER(
            why=f"max_input_chars_per_word is {model.max_input_chars_per_word:,}, the most that is run is {_MAX_WORD:,}"
        )


def _to_dict(part: Any) -> Any:
    """A part of a tokenizer as in its JSON."""
    return json.loads(part.__getstate__())


def _values_of(name: str, plain: Any) -> Iterator[str]:
    """The strings under a key, at any depth."""
    if isinstance(plain, dict) and isinstance(plain.get(name), str):
        yield plain[name]
    for value in plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ():
        yield from _values_of(name, value)
