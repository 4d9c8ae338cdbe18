"""Terms that a text must or must not contain: whole words, found by an automaton over characters; and glossaries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard.data.read.texts import read_text
from regard.data.tokenize.surfaces import is_lone_byte, lone_bytes
from regard.data.tokenize.tokenizer import is_unspaced
from regard.decode.automaton import DEAD, CharacterAutomaton
from regard.errors import InputError

MAX_TERM = 200  # characters

_State = tuple[frozenset[tuple[int, int]], bool]
_FOUND: _State = (frozenset({(-1, 0)}), False)


@dataclass(frozen=True)
class Constraints:
    """What a generated text must be like; terms are whole words, in this very spelling."""

    must: tuple[str, ...] = ()  # terms that it contains
    must_begin: tuple[str, ...] = ()  # terms that it contains, or words that begin with them (inflections)
    must_not: tuple[str, ...] = ()  # terms that it does not contain
    regex: str | None = None  # what all of it matches

    def __post_init__(self) -> None:
        for name, terms in (("must", (*self.must, *self.must_begin)), ("must_not", self.must_not)):
            for term in terms:
                require_term(term, name)
        if self.regex is not None and self.terms:
            raise InputError("a regular expression describes the whole text (regex). Write the terms of must and "
                             "must_not into it, or leave it out.")  # fmt: skip

    @property
    def terms(self) -> tuple[str, ...]:
        """All terms."""
        return (*self.must, *self.must_begin, *self.must_not)

    @property
    def requires(self) -> bool:
        """Whether terms are required, which takes beams."""
        return bool(self.must or self.must_begin)

    @property
    def allowed(self) -> Constraints | None:
        """What is left without the required terms; None if nothing is."""
        return Constraints((), (), self.must_not, self.regex) if self.must_not or self.regex is not None else None

    def __bool__(self) -> bool:
        return bool(self.terms) or self.regex is not None


def require_term(term: object, name: str) -> None:
    """Refuse what is no term."""
    if not isinstance(term, str) or not term.strip():
        raise InputError(f"a term is a text that is not empty, got {term!r} ({name}).")
    if term != term.strip() or "\n" in term:
        raise InputError(f"the term {term!r} begins or ends with a space, or has several lines ({name}). Strip it.")
    if not term.isprintable() and any(0xD800 <= ord(character) < 0xE000 for character in term):
        raise InputError(f"the term {term!r} holds an unpaired surrogate ({name}). Give valid Unicode.")
    if len(term) > MAX_TERM:
        raise InputError(f"a term has at most {MAX_TERM} characters, got {len(term):,} ({name}).")


def is_word(character: str) -> bool:
    """Whether a character is part of a word: letters, digits, marks and the underscore."""
    return character.isalnum() or character == "_" or re.match(r"\w", character) is not None


def _bounded(character: str) -> bool:
    """Whether a term that begins or ends with this character begins or ends a word."""
    return is_word(character) and not is_unspaced(character)


def contains(text: str, term: str, *, prefix: bool = False) -> bool:
    """Whether a text contains a term as whole words, or with `prefix` as the beginning of a word."""
    return bool(occurrences(text, term, prefix=prefix))


def occurrences(text: str, term: str, *, prefix: bool = False) -> list[tuple[int, int]]:
    """Where a text contains a term: the start and end of each occurrence."""
    if term not in text:
        return []
    before = r"(?<!\w)" if _bounded(term[0]) else ""
    after = r"(?!\w)" if _bounded(term[-1]) and not prefix else ""
    return [match.span() for match in re.finditer(before + re.escape(term) + after, text)]


def term_automaton(term: str, *, prefix: bool = False, forbidden: bool = False) -> CharacterAutomaton:
    """Accepts texts that contain a term (Knuth, Morris and Pratt), or if it is `forbidden`, those that do not.

    A character may come as bytes of several tokens. Whether lone bytes are a letter is not known: they do not end a
    word where a term is required, and do end it where it is forbidden, so both stay on the safe side.
    """
    finder = _Finder(term, prefix=prefix, lone_is_word=not forbidden)
    spelled = sorted({*term, *"".join(map(lone_bytes, term))})
    numbers = {character: number for number, character in enumerate(spelled)}
    # All other characters are of two classes: those that are part of a word, and those that end it.
    symbols = [*((character, finder.in_word(character)) for character in spelled), ("", True), ("", False)]

    def class_of(character: str) -> int:
        known = numbers.get(character)
        return len(spelled) + (not finder.in_word(character)) if known is None else known

    states: dict[_State, int] = {finder.start: 0}
    waiting, rows = [finder.start], list[list[int]]()
    for state in waiting:
        row = []
        for reached in (finder.step(state, *symbol) for symbol in symbols):
            if reached not in states:
                states[reached] = len(states)
                waiting.append(reached)
            row.append(DEAD if forbidden and reached == _FOUND else states[reached])
        rows.append(row)
    accepting = np.array([finder.ends(state) != forbidden for state in states])
    return CharacterAutomaton(np.array(rows, dtype=np.int32), accepting, class_of)


class _Finder:
    """Which parts of a term the characters read so far may be: (characters read, bytes of the next one read)."""

    start: _State = (frozenset(), False)

    def __init__(self, term: str, *, prefix: bool, lone_is_word: bool) -> None:
        self.term, self.lone_is_word = term, lone_is_word
        self.begins_word = _bounded(term[0])
        self.ends_word = _bounded(term[-1]) and not prefix

    def in_word(self, character: str) -> bool:
        """Whether a character, or a lone byte, is part of a word."""
        return self.lone_is_word if is_lone_byte(character) else is_word(character)

    def step(self, state: _State, character: str, word: bool) -> _State:
        """The state after one more character, "" for one that is not of the term; `word`: whether it is of a word."""
        if state == _FOUND:
            return _FOUND
        read, after_word = state
        whole = (len(self.term), 0)
        if whole in read and not word:
            return _FOUND
        begun = read if self.begins_word and after_word else read | {(0, 0)}
        grown = {moved for at in begun if at != whole for moved in self._move(at, character)}
        if whole in grown and not self.ends_word:
            return _FOUND
        return frozenset(grown), word

    def ends(self, state: _State) -> bool:
        """Whether a text that ends here contains the term."""
        return state == _FOUND or (len(self.term), 0) in state[0]

    def _move(self, at: tuple[int, int], character: str) -> list[tuple[int, int]]:
        index, done = at
        if done == 0 and self.term[index] == character:
            return [(index + 1, 0)]
        spelled = lone_bytes(self.term[index])
        if len(spelled) > 1 and spelled[done] == character:
            return [(index + 1, 0) if done + 1 == len(spelled) else (index, done + 1)]
        return []


@dataclass(frozen=True)
class Glossary:
    """Source terms and the target terms that a translation must use for them.

    A source term without capitals is found in any case, one with capitals in this case only. With `prefix`, both may
    be the beginning of a word, as for inflections.
    """

    terms: tuple[tuple[str, str], ...]
    prefix: bool = False

    def __post_init__(self) -> None:
        for pair in self.terms:
            for term in pair:
                require_term(term, "glossary")

    @classmethod
    def read(cls, path: Path, *, prefix: bool = False) -> Glossary:
        """Read a file of lines with a source term, a tab and a target term."""
        found: dict[str, str] = {}
        for number, line in enumerate(read_text(path).split("\n"), 1):
            if not line.strip():
                continue
            source, _, target = (part.strip() for part in line.partition("\t"))
            if not source or not target or "\t" in target:
                raise InputError(f"{path} line {number:,} is no pair of terms (--glossary). Write the source term, a "
                                 "tab and the target term.")  # fmt: skip
            if found.setdefault(source, target) != target:
                raise InputError(
                    f'{path} line {number:,} gives "{source}" a second translation (--glossary). Keep one.'
                )
        if not found:
            raise InputError(f"{path} holds no pair of terms (--glossary). Write lines of a source term, a tab and a "
                             "target term, or leave it out.")  # fmt: skip
        return cls(tuple(found.items()), prefix)

    @classmethod
    def of(cls, terms: Glossary | Mapping[str, str]) -> Glossary:
        """A glossary, also of a dictionary."""
        if not isinstance(terms, (Glossary, Mapping)):
            raise InputError("a glossary is a dictionary of source terms and target terms (glossary), got a "
                             f'{type(terms).__name__}. Write {{"source term": "target term"}}.')  # fmt: skip
        return terms if isinstance(terms, Glossary) else cls(tuple(terms.items()))

    def constraints(self, source: str, given: Constraints) -> Constraints:
        """The constraints of a line: those given, and the target terms of the source terms that occur in it."""
        targets = dict.fromkeys(target for target, _ in self.found_in(source))
        if self.prefix:
            return Constraints(given.must, (*given.must_begin, *targets), given.must_not, given.regex)
        return Constraints((*given.must, *targets), given.must_begin, given.must_not, given.regex)

    def found_in(self, source: str) -> list[tuple[str, list[tuple[int, int]]]]:
        """The target terms of the source terms that occur in a text, each with the places of its source term."""
        lowered, found = source.replace("İ", "I").lower(), []  # İ alone would become two characters
        for term, target in self.terms:
            places = occurrences(lowered if term == term.lower() else source, term, prefix=self.prefix)
            if places:
                found.append((target, places))
        return found
