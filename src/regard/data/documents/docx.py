"""Word documents (.docx) by python-docx: each paragraph is a segment, its runs of another format are marks.

Text takes the format of the longest run of its paragraph, except between the marks of the other runs. What is no text,
such as an image or a footnote sign, is an atom. All other parts of the file stay as they are.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from regard.data.documents.segments import Mark, Segment, strip
from regard.errors import DamagedFile, InputError

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
_TEXT = {f"{_W}t", f"{_W}tab", f"{_W}br", f"{_W}cr", f"{_W}noBreakHyphen"}
_SIGNS = {f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "\u2011"}
_MAX_WRITTEN, _MAX_UNPACKED = 128 << 20, 1 << 30  # bytes of its texts and formats, and with its images
_FORMAT = {f"{_W}rPr", f"{_W}lastRenderedPageBreak"}


@dataclass
class _Paragraph:
    """A paragraph, its segment, and the runs and links that its marks stand for."""

    element: Any
    segment: Segment
    base: Any  # the run whose format plain text has
    elements: dict[str, Any] = field(default_factory=dict)  # what each mark stands for, by what is written of it
    white_space: tuple[str, str] = ("", "")


@dataclass
class DocxDocument:
    """A Word document: its paragraphs, and the package that holds them."""

    content: bytes
    package: Any
    paragraphs: list[_Paragraph]

    @property
    def segments(self) -> list[Segment]:
        """What is translated, in order."""
        return [paragraph.segment for paragraph in self.paragraphs]

    def render(self, translations: Sequence[Segment]) -> bytes:
        """The file with its paragraphs replaced by their translations; the same bytes, if none differs."""
        changed = [pair for pair in zip(self.paragraphs, translations) if pair[0].segment != pair[1]]
        if not changed:
            return self.content
        for paragraph, translation in changed:
            _write(paragraph, translation)
        written = io.BytesIO()
        self.package.save(written)
        return written.getvalue()


def read_docx(content: bytes, where: str = "the document") -> DocxDocument:
    """The paragraphs of a Word document: of its body, tables, headers and footers."""
    try:
        import docx
    except ImportError:
        raise InputError(
            f"{where} needs the package python-docx. Install it with: pip install 'regard[documents]'."
        ) from None
    try:
        _require_size(content)
        package = docx.Document(io.BytesIO(content))
        roots = [package.element.body]
        for section in package.sections:
            roots += [part._element for part in (section.header, section.footer) if not part.is_linked_to_previous]
    except Exception as error:  # python-docx, lxml and zipfile raise many classes for a damaged file
        raise DamagedFile(f"{where} is no Word document: {str(error)[:100]}. Save it again as .docx.") from error
    found = (_read(element) for root in roots for element in root.iter(f"{_W}p"))
    return DocxDocument(content, package, [paragraph for paragraph in found if paragraph is not None])


def _require_size(content: bytes) -> None:
    """Refuse a file that unpacks to far more than any document; no more than a part says of itself is unpacked."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = archive.infolist()
    written = sum(part.file_size for part in parts if part.filename.endswith((".xml", ".rels")))
    if written > _MAX_WRITTEN or sum(part.file_size for part in parts) > _MAX_UNPACKED:
        raise ValueError("it unpacks to more than any document has")


def _read(element: Any) -> _Paragraph | None:
    """A paragraph that has words; None for another, and for one with fields or revisions, which stay as they are."""
    runs = [child for child, _ in _runs(element)]
    if not runs or any(child.tag not in _KNOWN for child in element):
        return None
    base = max(runs, key=lambda run: len(_text(run)))
    pieces, marks, elements, length = list[str](), list[Mark](), dict[str, Any](), 0

    def add(written: str, item: Any, kind: Any, pair: int = -1) -> None:
        elements[written] = item
        marks.append(Mark(length, written, kind, pair))

    link, number = None, 0
    for run, parent in _runs(element):
        if link is not None and parent is not link[0]:
            add(f"/{link[1]}", None, "close", link[1])
            link = None
        number += 1
        if parent is not element and link is None:
            link = parent, number
            add(f"link {number}", parent, "open", number)
            number += 1
        if any(child.tag not in _TEXT and child.tag not in _FORMAT for child in run):
            add(f"{number}", run, "atom")
            continue
        text, plain = _text(run), _same_format(run, base)
        if not plain:
            add(f"run {number}", run, "open", number)
        pieces.append(text)
        length += len(text)
        if not plain:
            add(f"/{number}", None, "close", number)
    if link is not None:
        add(f"/{link[1]}", None, "close", link[1])
    before, segment, after = strip(Segment("".join(pieces), tuple(marks)))
    return _Paragraph(element, segment, base, elements, (before, after)) if segment.has_words else None


_KNOWN = {f"{_W}{name}" for name in ("pPr", "r", "hyperlink", "bookmarkStart", "bookmarkEnd", "proofErr")}


def _runs(element: Any) -> Iterator[tuple[Any, Any]]:
    """The runs of a paragraph and of its links, each with its parent."""
    for child in element:
        if child.tag == f"{_W}r":
            yield child, element
        elif child.tag == f"{_W}hyperlink":
            yield from ((run, child) for run in child if run.tag == f"{_W}r")


def _text(run: Any) -> str:
    return "".join(child.text or "" if child.tag == f"{_W}t" else _SIGNS.get(child.tag, "") for child in run)


def _same_format(run: Any, base: Any) -> bool:
    from lxml import etree  # type: ignore[import-untyped]

    formats = [one.find(f"{_W}rPr") for one in (run, base)]
    written = [b"" if one is None or not len(one) else etree.tostring(one) for one in formats]
    return run is base or written[0] == written[1]


def _write(paragraph: _Paragraph, translation: Segment) -> None:
    """Replace the runs of a paragraph by those of its translation."""
    element = paragraph.element
    for child in [child for child in element if child.tag in (f"{_W}r", f"{_W}hyperlink", f"{_W}proofErr")]:
        element.remove(child)
    parents, formats, done = [element], [paragraph.base], 0
    before, after = paragraph.white_space

    def add(text: str) -> None:
        if text:
            parents[-1].append(_run(formats[-1], text))

    add(before)
    for mark in translation.marks:
        add(translation.text[done : mark.at])
        done = mark.at + mark.length
        item: Any = paragraph.elements.get(mark.written)
        if mark.length:
            add(mark.written)
        elif mark.kind == "atom":
            parents[-1].append(item)
        elif mark.kind == "open" and item.tag == f"{_W}hyperlink":
            link = deepcopy(item)
            for child in [*link]:
                link.remove(child)
            parents[-1].append(link)
            parents.append(link)
        elif mark.kind == "open":
            formats.append(item)
        elif mark.written.startswith("/") and f"link {mark.written[1:]}" in paragraph.elements:
            parents.pop()
        else:
            formats.pop()
    add(translation.text[done:] + after)


def _run(like: Any, text: str) -> Any:
    """A run with the format of another and this text."""
    run = deepcopy(like)
    for child in [child for child in run if child.tag != f"{_W}rPr"]:
        run.remove(child)
    written = run.makeelement(f"{_W}t", {_SPACE: "preserve"})
    written.text = text
    run.append(written)
    return run
