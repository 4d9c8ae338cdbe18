"""Documents, plain text and HTML: their segments for a model, and the document with the translations in their place.

Everything outside the segments survives unchanged: markup, comments, code, white space, blank lines. A segment whose
translation is the segment itself keeps its own spelling, so `document.render(document.segments)` is the text.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from regard.errors import InputError, suggest

Kind = Literal["text", "html"]

Span = tuple[int, int, str]
"""Start and end of a segment in a document, and its text for a model."""


@dataclass(frozen=True)
class Part:
    """A part of a document as it is written, and its text for a model if it is a segment."""

    written: str
    segment: str | None = None


@dataclass(frozen=True)
class Document:
    """A document as a list of parts; `escape` writes a translation as the document's format needs it."""

    parts: tuple[Part, ...]
    escape: Callable[[str], str]

    @property
    def segments(self) -> list[str]:
        """The texts to translate, in order."""
        return [part.segment for part in self.parts if part.segment is not None]

    def render(self, translations: Sequence[str]) -> str:
        """The document with its segments replaced by their translations."""
        expected = len(self.segments)
        if len(translations) != expected:
            raise InputError(f"{expected:,} segments and {len(translations):,} translations: give one per segment.")
        given = iter(translations)
        return "".join(
            part.written if part.segment is None or (new := next(given)) == part.segment else self.escape(new)
            for part in self.parts
        )


def read_document(text: str, kind: Kind) -> Document:
    """A document of this kind."""
    if kind not in _READERS:
        raise InputError(f'no kind of document is called "{kind}". {suggest(kind, _READERS)}')
    return _READERS[kind](text)


def _read_text(text: str) -> Document:
    """Each line is a segment, without the white space around it."""
    found = ((match.start(), match.group().rstrip()) for match in re.finditer(r"[^\s][^\n]*", text))
    return Document(_parts(text, ((start, start + len(line), line) for start, line in found)), str)


def _read_html(text: str) -> Document:
    """Each text between two tags is a segment, unless it is code, or marked with translate="no"."""
    return Document(_parts(text, _html_segments(text)), _escape)


def _parts(text: str, segments: Iterable[Span]) -> tuple[Part, ...]:
    """A text cut into its segments and what stands between them."""
    parts, done = [], 0
    for start, end, segment in segments:
        parts += [Part(text[done:start]), Part(text[start:end], segment)]
        done = end
    return tuple(part for part in (*parts, Part(text[done:])) if part.written)


_READERS: dict[Kind, Callable[[str], Document]] = {"text": _read_text, "html": _read_html}

_ENTITY_SPACES = ("&nbsp;", "&#160;", "&#xa0;", "&#xA0;")
_LEADING = re.compile(rf"(?:\s|{'|'.join(_ENTITY_SPACES)})*+")
_HTML_SPACES = re.compile(r"[ \t\n\r\f]+")
_ALPHANUMERIC = re.compile(r"[^\W_]")
# Numbers of no character, which may have more digits than Python converts.
_HUGE_REFERENCES = re.compile(r"&#(?:[0-9]{8,}+|[xX][0-9a-fA-F]{8,}+);?")


def _html_segments(text: str) -> Iterator[Span]:
    """The segments of a page, in order."""
    elements, start = _Elements(), 0
    for markup in _markup(text):
        if elements.translated and start < markup.start:
            yield from _segment(text, start, markup.start)
        elements.follow(markup)
        start = markup.end
    if elements.translated:
        yield from _segment(text, start, len(text))


def _segment(text: str, start: int, end: int) -> Iterator[Span]:
    """The text between two tags without the white space around it; none, if it has no letter and no digit."""
    leading = _LEADING.match(text, start, end)
    first, last = leading.end() if leading else start, end
    while first < last:
        if text[last - 1].isspace():
            last -= 1
            continue
        entity = next((entity for entity in _ENTITY_SPACES if text.endswith(entity, first, last)), None)
        if entity is None:
            break
        last -= len(entity)
    decoded = _HTML_SPACES.sub(" ", html.unescape(_HUGE_REFERENCES.sub("\ufffd", text[first:last])))
    if _ALPHANUMERIC.search(decoded):
        yield first, last, decoded


def _escape(text: str) -> str:
    """A text as HTML, with no more entities than it needs."""
    return html.escape(text, quote=False).replace("\u00a0", "&nbsp;")


class _Markup(NamedTuple):
    """A tag, comment or declaration, from `start` to `end`; a whole element if its content is no markup."""

    start: int
    end: int
    name: str = ""  # of a tag, in small letters
    opens: bool = False
    closes: bool = False
    translate: bool | None = None  # what its attributes say


_MARKUP = re.compile(r"<(?:!--|[!?]|/?(?P<name>[a-zA-Z][^\s/>\0]*+)|/)")
_ATTRIBUTE = re.compile(
    r"""[\s/]*+(?P<name>[^\s/>=][^\s/>=]*+|=[^\s/>=]*+)(?:\s*+=\s*+(?:"(?P<double>[^"]*+)"|'(?P<single>[^']*+)'|"""
    r"""(?P<open>["'])|(?P<bare>[^\s>]*+)))?+"""
)
_TAG_END = re.compile(r"[\s/]*+>")
_COMMENT_END, _CDATA_END, _END = re.compile(r"--!?>"), re.compile(r"\]\]>"), re.compile(">")

_RAW = "script style textarea xmp iframe noembed noframes plaintext title"  # their content is no markup
_VOID = "area base br col embed hr img input link meta param source track wbr"
_UNTRANSLATED = "script style code pre kbd samp var textarea xmp svg math iframe noembed noframes"
_BLOCKS = (
    "address article aside blockquote details div dl fieldset figure footer form h1 h2 h3 h4 h5 h6 header hr main nav "
    "ol p pre section table ul"
)
_RAW_ELEMENTS, _VOID_ELEMENTS, _UNTRANSLATED_ELEMENTS, _BLOCK_ELEMENTS = (
    frozenset(names.split()) for names in (_RAW, _VOID, _UNTRANSLATED, _BLOCKS)
)
# What a start tag ends, if it is the innermost element: <li>one<li>two.
_ENDS = {
    "li": {"li"}, "dt": {"dt", "dd"}, "dd": {"dt", "dd"}, "option": {"option"}, "tr": {"tr", "td", "th"},
    "td": {"td", "th"}, "th": {"td", "th"},
}  # fmt: skip


def _markup(text: str) -> Iterator[_Markup]:
    """Every tag, comment and declaration of a text, in order; what is not closed reaches to the end of the text."""
    position = 0
    while (match := _MARKUP.search(text, position)) is not None:
        found = _tag(text, match) if match["name"] else _declaration(text, match)
        yield found
        position = found.end


def _declaration(text: str, match: re.Match[str]) -> _Markup:
    """A comment, a doctype, a processing instruction, or an end tag without a name."""
    start, end = match.start(), None
    if match.group() == "<!--":
        # The dashes of <!--> end it too.
        end = _COMMENT_END.search(text, start + 2)
    elif text.startswith("<![CDATA[", start):
        end = _CDATA_END.search(text, start)
    else:
        end = _END.search(text, start)
    return _Markup(start, len(text) if end is None else end.end())


def _tag(text: str, match: re.Match[str]) -> _Markup:
    """A start tag or an end tag; with a start tag whose content is no markup, that content."""
    name, closes = match["name"].lower(), text.startswith("</", match.start())
    position, translate = match.end(), None
    while (end := _TAG_END.match(text, position)) is None:
        attribute = _ATTRIBUTE.match(text, position)
        if attribute is None or attribute["open"]:
            return _Markup(match.start(), len(text), name)
        value = next((attribute[kind] for kind in ("double", "single", "bare") if attribute[kind] is not None), "")
        translate = _translate_of(attribute["name"].lower(), value.lower(), translate)
        position = attribute.end()
    stop = end.end()
    opens = not closes and name not in _VOID_ELEMENTS and not text.endswith("/>", match.start(), stop)
    if opens and name in _RAW_ELEMENTS and (name != "title" or translate is False):
        content = re.compile(rf"</{re.escape(name)}(?=[\s/>])", re.IGNORECASE).search(text, stop)
        return _Markup(match.start(), len(text) if content is None else content.start(), name, True)
    return _Markup(match.start(), stop, name, opens, closes, translate)


def _translate_of(name: str, value: str, known: bool | None) -> bool | None:
    """What an attribute says about translation, if what is known before it says nothing."""
    if known is None and name == "translate":
        return {"no": False, "yes": True, "": True}.get(value)
    if known is None and name == "class" and "notranslate" in value.split():
        return False
    return known


class _Elements:
    """The open elements, and whether text in the innermost one is translated."""

    def __init__(self) -> None:
        self.stack: list[tuple[str, bool]] = []
        self.open: Counter[str] = Counter()

    @property
    def translated(self) -> bool:
        return not self.stack or self.stack[-1][1]

    def follow(self, markup: _Markup) -> None:
        """Open or close an element."""
        name = markup.name
        if markup.closes and self.open[name]:
            while self._pop() != name:
                pass
        elif markup.opens:
            innermost = self.stack[-1][0] if self.stack else ""
            if innermost in _ENDS.get(name, ()) or (innermost == "p" and name in _BLOCK_ELEMENTS):
                self._pop()
            inherited = self.translated if markup.translate is None else markup.translate
            self.stack.append((name, inherited and name not in _UNTRANSLATED_ELEMENTS))
            self.open[name] += 1

    def _pop(self) -> str:
        name, _ = self.stack.pop()
        self.open[name] -= 1
        return name
