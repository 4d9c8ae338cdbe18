"""Subtitles, SubRip (.srt) and WebVTT (.vtt): the text of each cue is a segment, with its tags as marks.

The lines of a cue are one text for a model, except in a dialogue, where each line begins with a dash; a translation is
broken into as many lines. Numbers, time stamps, settings, notes, styles and blank lines are no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from regard.data.documents.segments import ALPHANUMERIC, Document, Mark, Part, Segment, strip

_TIMES = re.compile(r"[ \t]*+(?:\d+:)?\d+:\d+[.,]\d+[ \t]*-->[ \t]*(?:\d+:)?\d+:\d+[.,]\d+")
_LINE = re.compile(r"[^\r\n]*+(?:\r\n|\n|\r|\Z)")
_DIALOGUE = re.compile(r"(?:<[^<>]*>|\{[^{}]*\})*[ \t]*[-\u2013\u2014]")
_DASH = re.compile(r"[-\u2013\u2014][ \t]*")
# A tag of SubRip, WebVTT (<c.loud>, <v Bob>, <00:01.000>) or SubStation ({\an8}).
_TAG = re.compile(r"<(?P<end>/?)(?P<name>[A-Za-z]+)[^<>]*>|<\d[\d:.]*>|\{\\[^{}]*\}")


def read_subtitles(text: str) -> Document:
    """The cues of a file; a line of times begins a cue, a blank line ends it."""
    return Document(tuple(part for part in _parts(text) if part.written), str)


def _parts(text: str) -> Iterator[Part]:
    cue: list[str] = []
    in_cue = False
    for match in _LINE.finditer(text):
        line = match.group()
        if in_cue and line.strip():
            cue.append(line)
            continue
        yield from _cue_parts(cue)
        cue = []
        yield Part(line)
        in_cue = _TIMES.match(line) is not None
    yield from _cue_parts(cue)


def _cue_parts(lines: list[str]) -> Iterator[Part]:
    """The lines of a cue as one segment, or as one per line if all begin with a dash."""
    if len(lines) > 1 and all(map(_DIALOGUE.match, lines)):
        groups = [[line] for line in lines]
    else:
        groups = [lines] if lines else []
    for group in groups:
        written = "".join(group)
        bare = written.strip()
        start = written.index(bare) if bare else 0
        if len(groups) > 1 and (dash := _DASH.match(bare)):
            start, bare = start + dash.end(), bare[dash.end() :]
        segment = _read(bare)
        if not ALPHANUMERIC.search(segment.text) or not segment.has_words:
            yield Part(written)
            continue
        ending = re.search(r"\r?\n|\r", bare)
        lines_shown = bare.count("\n") or bare.count("\r")
        yield Part(written[:start])
        yield Part(bare, segment, lines_shown + 1, ending.group() if ending else "\n")
        yield Part(written[start + len(bare) :])


def _read(written: str) -> Segment:
    """The text of a cue, its lines on one, and its tags."""
    pieces, marks, opened, length, done = list[str](), list[Mark](), list[tuple[str, int]](), 0, 0
    for match in [*_TAG.finditer(written), None]:
        end = len(written) if match is None else match.start()
        piece = re.sub(r"\s+", " ", written[done:end])
        piece = piece.lstrip() if not pieces or pieces[-1].endswith(" ") else piece
        pieces += [piece] if piece else []
        length += len(piece)
        if match is None:
            break
        done, name = match.end(), (match["name"] or "").lower()
        marks.append(Mark(length, match.group()))
        if name and not match["end"]:
            opened.append((name, len(marks) - 1))
        elif opened and opened[-1][0] == name:
            number = opened.pop()[1]
            marks[number] = marks[number]._replace(kind="open", pair=number)
            marks[-1] = marks[-1]._replace(kind="close", pair=number)
    return strip(Segment("".join(pieces), tuple(marks)))[1]
