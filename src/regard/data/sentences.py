"""Sentence splitting by rules, with abbreviations per language; and cutting of long sentences at clauses.

Nothing is lost: the pieces of a text, put together, are the text. White space belongs to the piece before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from regard.data.abbreviations import ABBREVIATIONS, BEFORE_NUMBERS, FIRST_WORDS, MAY_END, ORDINAL_DOTS
from regard.errors import InputError

# Stops after which a space must follow, and those of scripts that write none (Chinese, Japanese, ...).
_SPACED = ".!?…؟۔।॥։።။។"
_UNSPACED = "。！？｡．"
_CLOSING = "\"'”’»›)]}」』】）〉》〕］"
_CLOSING_AFTER_LOW = "“‘"  # these close a quotation that „ opens, as in German, and else open one
_OPENING = re.compile(r"[\"'“‘„‚«»‹›(\[{「『【（〈《¿¡–—-]*+\s?")
_SPACES = re.compile(r"\s*+")
_LINE_BREAK = "[\n\r\u2028\u2029]"
_FRENCH_CLOSING = re.compile("[ \u00a0\u202f]»")
_WORD, _NEXT_WORD = re.compile(r"\S+\Z"), re.compile(r"\w*")
_NO_FIRST = frozenset(",;:)]}.!?…")  # no sentence begins with these
_LONGEST_WORD = 40  # characters looked at before a stop
_QUOTING = "とっはがをにのもでや、，,"  # after a Japanese quotation, these continue its sentence
_ENUMERATOR = re.compile(r"\(?(?:\d{1,3}(?:\.\d{1,3}){0,4}|[^\W\d_]|[ivxIVX]{1,5})\.")
_DOTTED = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")


def split_sentences(text: str, language: str | None = None) -> list[str]:
    """The sentences of a text, each with the white space after it; a line break ends a sentence too.

    `language` is a code such as "de" or "pt-BR"; without it, or for a language without rules, only what is true of most
    languages is applied.
    """
    rules = _rules(None if language is None else re.split("[-_]", language.lower())[0], "„" in text or "‚" in text)
    cuts = [0, *rules.cuts(text), len(text)]
    return [text[start:end] for start, end in pairwise(cuts) if start < end]


@dataclass(frozen=True)
class _Rules:
    """What the rules need to know about a language."""

    language: str | None
    stops: re.Pattern[str]
    abbreviations: frozenset[str]
    may_end: frozenset[str]
    before_numbers: frozenset[str]
    first_words: frozenset[str]
    ordinal_dots: bool

    def cuts(self, text: str) -> Iterator[int]:
        """The positions between two sentences, in order."""
        cased, start, done = any(map(str.isupper, text)), 0, 0  # where both cases occur, no small letter begins one
        for match in self.stops.finditer(text):
            if match.start() < done:
                continue
            end = match.end()
            if match["stop"]:
                if self.language in (None, "fr") and (closing := _FRENCH_CLOSING.match(text, end)):
                    end = closing.end() if self.language == "fr" or closing.group()[0] != " " else end
                if not self.ends_sentence(text, start, match, end, cased):
                    continue
            done = end = _end_of_spaces(text, end)
            if text[start:end].strip() and end < len(text):
                yield end
                start = end

    def ends_sentence(self, text: str, start: int, match: re.Match[str], end: int, cased: bool) -> bool:
        """Whether the stop that was matched ends the sentence that began at `start`; `end` is after closing quotes."""
        stop, after = match["stop"], text[end : end + 1]
        if stop[-1] in _UNSPACED:
            return not (match["closing"] and after and after in _QUOTING)
        if after and not after.isspace():
            return False
        following = _end_of_spaces(text, end)
        opening = _OPENING.match(text, following)
        following = opening.end() if opening else following
        first = text[following : following + 1]
        if first in _NO_FIRST or (first.islower() and cased):
            return False
        return stop != "." or bool(match["closing"]) or self.is_full_stop(text, start, match.start(), following)

    def is_full_stop(self, text: str, start: int, at: int, following: int) -> bool:
        """Whether a dot between a word and a capital letter or number is more than part of the word."""
        found = _WORD.search(text, max(start, at - _LONGEST_WORD), at)
        word = found.group().lstrip("\"'“‘„‚«»‹›([{¿¡") if found else ""
        if at - start < _LONGEST_WORD and _ENUMERATOR.fullmatch(text[start : at + 1].strip()):
            return False
        lower, upcoming = word.lower(), _next_word(text, following)
        begins = upcoming.lower() in self.first_words and upcoming[:1].isupper()
        if lower in self.may_end:
            return not upcoming[:1].isdigit()
        if lower in self.abbreviations:
            return False
        if lower in self.before_numbers and upcoming[:1].isdigit():
            return False
        if len(word) == 1 and word.isupper() and (word, self.language) not in (("I", "en"), ("I", None)):
            return begins
        if _DOTTED.fullmatch(word):
            return begins
        if self.ordinal_dots and word.isdecimal() and len(word) <= 2:
            return begins
        return True


@cache
def _rules(language: str | None, low_quotes: bool) -> _Rules:
    """The rules of a language, those without a language with the abbreviations of all; for a text with „ or without."""
    stop = re.escape(_SPACED + _UNSPACED + (";\u037e" if language == "el" else ""))  # Greek asks with a semicolon
    closing = re.escape(_CLOSING + (_CLOSING_AFTER_LOW if low_quotes else ""))
    stops = re.compile(rf"(?P<stop>[{stop}]++)(?P<closing>[{closing}]*+)|{_LINE_BREAK}")

    def words(table: dict[str, str]) -> frozenset[str]:
        chosen = table.values() if language is None else [table.get(language, "")]
        return frozenset(word for some in chosen for word in some.split())

    return _Rules(
        language, stops, words(ABBREVIATIONS), words(MAY_END), words(BEFORE_NUMBERS), words(FIRST_WORDS),
        language in ORDINAL_DOTS.split(),
    )  # fmt: skip


def _end_of_spaces(text: str, start: int) -> int:
    match = _SPACES.match(text, start)
    return match.end() if match else start


def _next_word(text: str, start: int) -> str:
    """The letters or digits from `start` on, as far as they matter."""
    match = _NEXT_WORD.match(text, start, start + _LONGEST_WORD)
    return match.group() if match else ""


# Where a long sentence is cut, best first: after semicolons and the like, after commas, after white space.
_CLAUSES = tuple(
    re.compile(pattern) for pattern in (r"[;:؛—–]++\s++|[；：]++\s*+|\s[—–]\s", r"[,،]++\s++|[，、]++\s*+", r"\s++")
)


def split_to_fit(text: str, count: Callable[[str], int], most: int, language: str | None = None) -> list[str]:
    """The sentences of a text, those that count more than `most` cut at clauses, else between words, else anywhere.

    `count` counts the tokens of a piece. A single character that counts more than `most` stays one piece.
    """
    if most < 1:
        raise InputError(f"a piece has 1 token or more, got {most} (most).")
    pieces: list[str] = []
    # A stack, last piece first, of texts and the level of the next cut to try.
    waiting = [(sentence, 0) for sentence in reversed(split_sentences(text, language))]
    while waiting:
        piece, level = waiting.pop()
        if len(piece) == 1 or count(piece) <= most:
            pieces.append(piece)
        elif level > len(_CLAUSES):
            pieces += piece
        else:
            parts = _cut_after(piece, _CLAUSES[level]) if level < len(_CLAUSES) else list(piece)
            waiting += [(packed, level + 1) for packed in reversed(_pack(parts, count, most))]
    return pieces


def _cut_after(text: str, pattern: re.Pattern[str]) -> list[str]:
    cuts = [0, *(match.end() for match in pattern.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(cuts) if start < end]


def _pack(parts: list[str], count: Callable[[str], int], most: int) -> list[str]:
    """Neighbours put together, as many as fit; a part that does not fit stays alone."""
    packed, first = [], 0
    while first < len(parts):
        fits, too_many = 1, 2
        while first + too_many <= len(parts) and count("".join(parts[first : first + too_many])) <= most:
            fits, too_many = too_many, 2 * too_many
        too_many = min(too_many, len(parts) - first + 1)
        while fits + 1 < too_many:
            middle = (fits + too_many) // 2
            if count("".join(parts[first : first + middle])) <= most:
                fits = middle
            else:
                too_many = middle
        packed.append("".join(parts[first : first + fits]))
        first += fits
    return packed
