"""Segments of a document: the text that a model reads, and the inline markup that stands in it.

A translation of a segment is a segment too: another text, the same marks in other places. Everything outside segments
survives unchanged, and a segment whose translation is the segment itself keeps its own spelling.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from regard.errors import InputError

ALPHANUMERIC = re.compile(r"[^\W_]")


class Mark(NamedTuple):
    """Markup in front of character `at`: an opening or closing tag, or an atom, which stands for `length` characters.

    Tags with the same `pair` belong together. An atom is written in place of the text it stands for: code, a
    {{placeholder}}, an address, or an image, which stands for no text.
    """

    at: int
    written: str
    kind: Literal["open", "close", "atom"] = "atom"
    pair: int = -1
    length: int = 0


@dataclass(frozen=True)
class Segment:
    """A text for a model, and its marks, in the order in which they are written."""

    text: str
    marks: tuple[Mark, ...] = ()

    @property
    def has_words(self) -> bool:
        """Whether a letter or digit stands outside the atoms."""
        done = 0
        for mark in self.marks:
            if ALPHANUMERIC.search(self.text, done, mark.at):
                return True
            done = mark.at + mark.length
        return ALPHANUMERIC.search(self.text, done) is not None

    def write(self, escape: Callable[[str], str]) -> str:
        """The text, escaped, with its marks."""
        pieces, done = [], 0
        for mark in self.marks:
            pieces += [escape(self.text[done : mark.at]), mark.written]
            done = mark.at + mark.length
        return "".join([*pieces, escape(self.text[done:])])

    def split(self, texts: Sequence[str]) -> list[Segment]:
        """The segment cut into these texts, which put together are its text; no atom is cut."""
        cuts, position = list[int](), 0
        for text in texts[:-1]:
            position += len(text)
            cuts.append(position)
        kept = [cut for cut in cuts if not any(mark.at < cut < mark.at + mark.length for mark in self.marks)]
        marks, first, start, parts = self.marks, 0, 0, list[Segment]()
        for end in [*kept, len(self.text)]:
            last = len(marks) if end == len(self.text) else _marks_before(marks, first, end)
            own = (mark._replace(at=mark.at - start) for mark in marks[first:last])
            parts.append(Segment(self.text[start:end], tuple(own)))
            first, start = last, end
        return parts


def _marks_before(marks: Sequence[Mark], first: int, cut: int) -> int:
    """The index of the first mark after a cut; at the cut, closing tags of what was opened before it come first."""
    last = first
    while last < len(marks) and marks[last].at < cut:
        last += 1
    opened, here = set[int](), last
    for index in range(last, len(marks)):
        mark = marks[index]
        if mark.at > cut or mark.length:
            break
        if mark.kind == "open":
            opened.add(mark.pair)
        elif mark.kind == "close" and mark.pair not in opened:
            here = index + 1
    return here


def join(segments: Iterable[Segment]) -> Segment:
    """Segments put together."""
    texts, marks, start = list[str](), list[Mark](), 0
    for segment in segments:
        texts.append(segment.text)
        marks += [mark._replace(at=mark.at + start) for mark in segment.marks]
        start += len(segment.text)
    return Segment("".join(texts), tuple(marks))


def strip(segment: Segment) -> tuple[str, Segment, str]:
    """The white space before a segment, the segment without it, and the white space after it; an atom stays whole."""
    text, atoms = segment.text, [mark for mark in segment.marks if mark.length]
    if not text.strip() and not atoms:
        return "", segment, ""
    start = min([len(text) - len(text.lstrip()), *(mark.at for mark in atoms[:1])])
    end = max([len(text.rstrip()), *(mark.at + mark.length for mark in atoms[-1:])])
    marks = tuple(mark._replace(at=min(max(0, mark.at - start), end - start)) for mark in segment.marks)
    return text[:start], Segment(text[start:end], marks), text[end:]


# Placeholders, addresses: what a translation must hold as it is.
_PROTECTED = re.compile(
    r"""\{\{[^{}\n]{1,200}\}\}|\$\{[^{}\n]{1,200}\}|\{[A-Za-z_][\w.]{0,60}\}|%\([A-Za-z_]\w{0,60}\)[sdf]|%(?:\d{1,2}\$)?[sd]\b
    |(?:https?|ftp)://[^\s<>"'(){}]{1,2000}(?<![.,;:!?])|\bwww\.[^\s<>"'(){}]{1,2000}(?<![.,;:!?])
    |\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}\b""",
    re.VERBOSE,
)


def protect(segment: Segment) -> Segment:
    """The segment with an atom for each placeholder, web address and e-mail address that no mark cuts."""
    marks, places = segment.marks, [mark.at for mark in segment.marks]
    merged, done = list[Mark](), 0
    for match in _PROTECTED.finditer(segment.text):
        start, end = match.span()
        after = bisect_right(places, start)
        merged += marks[done:after]
        done = after
        covered = bool(merged) and merged[-1].at + merged[-1].length > start
        if not covered and (after == len(marks) or marks[after].at >= end):
            merged.append(Mark(start, match.group(), length=end - start))
    return Segment(segment.text, (*merged, *marks[done:]))


@dataclass(frozen=True)
class Part:
    """A part of a document as it is written, and what a model reads, if it is a segment.

    A translation has as many `lines` as the segment: subtitles are broken, paragraphs are not.
    """

    written: str
    segment: Segment | None = None
    lines: int = 1
    line_break: str = "\n"


@dataclass(frozen=True)
class Document:
    """A document as a list of parts; `escape` writes a text as the document's format needs it."""

    parts: tuple[Part, ...]
    escape: Callable[[str], str]

    @property
    def segments(self) -> list[Segment]:
        """What is translated, in order."""
        return [part.segment for part in self.parts if part.segment is not None]

    def render(self, translations: Sequence[Segment]) -> str:
        """The document with its segments replaced by their translations."""
        expected = len(self.segments)
        if len(translations) != expected:
            raise InputError(f"{expected:,} segments and {len(translations):,} translations: give one per segment.")
        given = iter(translations)
        return "".join(
            part.written if part.segment is None or (new := next(given)) == part.segment else self._write(part, new)
            for part in self.parts
        )

    def _write(self, part: Part, translation: Segment) -> str:
        return break_lines(translation, part.lines, part.line_break).write(self.escape)


def break_lines(segment: Segment, lines: int, line_break: str) -> Segment:
    """The segment with line breaks in place of some spaces, so that its lines have about the same length."""
    marks = list(segment.marks)
    inside = {place for mark in marks for place in range(mark.at, mark.at + mark.length)} if lines > 1 else set()
    spaces = [match.start() for match in re.finditer(" ", segment.text)] if lines > 1 else []
    spaces = [space for space in spaces if space not in inside]
    for number in range(1, lines):
        ideal = number * len(segment.text) / lines
        if spaces:
            best = min(spaces, key=lambda space: abs(space - ideal))
            place = bisect_right([mark.at for mark in marks], best)
            marks.insert(place, Mark(best, line_break, length=1))
            spaces = [space for space in spaces if space > best]
    return Segment(segment.text, tuple(marks))


Span = tuple[int, int, Segment]
"""Start and end of a segment in a document, and what a model reads."""


def cut(text: str, segments: Iterable[Span]) -> tuple[Part, ...]:
    """A text cut into its segments and what stands between them."""
    parts, done = [], 0
    for start, end, segment in segments:
        parts += [Part(text[done:start]), Part(text[start:end], segment)]
        done = end
    return tuple(part for part in (*parts, Part(text[done:])) if part.written)
