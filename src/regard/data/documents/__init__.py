"""Documents: plain text, Markdown, HTML and subtitles become segments; translations take their places.

Everything outside the segments survives unchanged: markup, comments, code, white space, blank lines, time stamps.
`document.render(document.segments)` is the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePath
from typing import Literal

from regard.data.documents.html import read_html
from regard.data.documents.markdown import read_markdown
from regard.data.documents.segments import Document as Document
from regard.data.documents.segments import Mark as Mark
from regard.data.documents.segments import Part as Part
from regard.data.documents.segments import Segment as Segment
from regard.data.documents.segments import cut
from regard.data.documents.subtitles import read_subtitles
from regard.errors import InputError, suggest

Kind = Literal["text", "markdown", "html", "subtitles"]

ENDINGS: dict[str, Kind] = {
    "txt": "text", "text": "text", "md": "markdown", "markdown": "markdown", "html": "html", "htm": "html",
    "xhtml": "html", "srt": "subtitles", "vtt": "subtitles",
}  # fmt: skip


def kind_of(path: PurePath) -> Kind | None:
    """The kind of document that a file holds, by its ending."""
    return ENDINGS.get(path.suffix[1:].lower())


def read_document(text: str, kind: Kind) -> Document:
    """A document of this kind."""
    if kind not in _READERS:
        raise InputError(f'no kind of document is called "{kind}". {suggest(kind, _READERS)}')
    if not text.startswith(_BOM):
        return _READERS[kind](text)
    found = _READERS[kind](text.removeprefix(_BOM))
    return Document((Part(_BOM), *found.parts), found.escape)


_BOM = "\ufeff"


def read_text(text: str) -> Document:
    """Each line is a segment, without the white space around it."""
    found = ((match.start(), match.group().rstrip()) for match in re.finditer(r"\S[^\n]*", text))
    return Document(cut(text, ((start, start + len(line), Segment(line)) for start, line in found)), str)


_READERS: dict[Kind, Callable[[str], Document]] = {
    "text": read_text, "markdown": read_markdown, "html": read_html, "subtitles": read_subtitles,
}  # fmt: skip
