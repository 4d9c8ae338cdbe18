"""The terms of a document: each sentence must use the glossary where it has a source term, and none may use some terms.

Terms are looked for in the prose, not inside placeholders, addresses and code, which stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from regard.data.documents import Segment
from regard.decode.terms import Constraints, Glossary, contains, occurrences

_NO_GLOSSARY = Glossary(())
_BLANK = "\ufffc"  # the object replacement character: no word, no digit and no space


@dataclass(frozen=True)
class DocumentTerms:
    """A glossary, and terms that no sentence may contain; by default neither."""

    glossary: Glossary = _NO_GLOSSARY
    must_not: tuple[str, ...] = ()

    def constraints(self, sentence: Segment) -> Constraints:
        """What the translation of a sentence must be like."""
        return self.glossary.constraints(_prose(sentence), Constraints((), (), self.must_not))

    def unmet(self, source: Segment, translation: Segment) -> tuple[str, ...]:
        """What a translation does not have, or has, against the terms."""
        text, wanted = _prose(translation), self.constraints(source)
        lacks = [
            f'the term "{term}" is lacking'
            for terms, prefix in ((wanted.must, False), (wanted.must_begin, True))
            for term in terms
            if not contains(text, term, prefix=prefix)
        ]
        return (*lacks, *(f'the term "{term}" is not allowed' for term in self.must_not if contains(text, term)))

    def apart(self, source: Segment, translation: Segment) -> tuple[Segment, Segment]:
        """Both with the terms of the glossary blanked, whose numbers are right as the glossary writes them."""
        prefix = self.glossary.prefix
        for target, here in sorted(self.glossary.found_in(_prose(source)), key=lambda one: -len(one[0])):
            there = occurrences(_prose(translation), target, prefix=prefix)[: len(here)]
            source, translation = _blanked(source, here), _blanked(translation, there)
        return source, translation


def _prose(segment: Segment) -> str:
    """The text without that of the atoms, as long as ever."""
    return _blanked(segment, [(mark.at, mark.at + mark.length) for mark in segment.marks if mark.length]).text


def _blanked(segment: Segment, spans: Iterable[tuple[int, int]]) -> Segment:
    """The segment with these parts of its text replaced by as many characters that mean nothing."""
    text = segment.text
    for start, end in spans:
        text = text[:start] + re.sub(r"\S", _BLANK, text[start:end]) + text[end:]
    return replace(segment, text=text)
