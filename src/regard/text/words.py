"""The words of a text, which alignments count: what stands between spaces, or characters where nothing does."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence

Span = tuple[int, int]
"""From where to where in a text, counted in characters."""

# Scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, Chinese characters, kana and their signs.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u31a0-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)


def cut_words(text: str) -> list[Span]:
    """Where each word stands: as `text.split()` has it; without any space, an unspaced script's characters are words.

    A text with a space in it is always cut at its spaces, so that no number is read wrongly by who cuts there.
    """
    found = [match.span() for match in re.finditer(r"\S+", text)]
    return _characters(text, *found[0]) if len(found) == 1 else found


def word_numbers(text: str, tokens: Sequence[Span]) -> list[int]:
    """The word that each token of a text begins in, by its first visible character; -1 where it shows none."""
    starts = [start for start, _ in cut_words(text)]
    numbers = []
    for start, end in tokens:
        shown = text[start:end]
        space = len(shown) - len(shown.lstrip())
        numbers.append(bisect_right(starts, start + space) - 1 if space < len(shown) else -1)
    return numbers


def _characters(text: str, start: int, end: int) -> list[Span]:
    """A word cut around the characters of unspaced scripts, each with the marks on it."""
    places = [start]
    for place in range(start + 1, end):
        if unicodedata.category(text[place])[0] != "M" and _UNSPACED.search(text, place - 1, place + 1):
            places.append(place)
    return list(zip(places, [*places[1:], end]))
