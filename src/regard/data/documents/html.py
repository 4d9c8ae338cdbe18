"""HTML documents: each run of inline content is a segment, with its inline tags as marks.

Code, scripts and what is marked with translate="no" are not translated; inside a sentence they are atoms.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Literal, NamedTuple

from regard.data.documents.segments import ALPHANUMERIC, Document, Mark, Segment, Span, cut, strip

_ENTITY_SPACES = ("&nbsp;", "&#160;", "&#xa0;", "&#xA0;")
_LEADING = re.compile(rf"(?:\s|{'|'.join(_ENTITY_SPACES)})*+")
_HTML_SPACES = re.compile(r"[ \t\n\r\f]+")
# Numbers of no character, which may have more digits than Python converts.
_HUGE_REFERENCES = re.compile(r"&#(?:[0-9]{8,}+|[xX][0-9a-fA-F]{8,}+);?")


def read_html(text: str) -> Document:
    """A page; its segments are the runs of text and inline tags between the tags of blocks."""
    return Document(cut(text, _segments(text)), escape)


def escape(text: str) -> str:
    """A text as HTML, with no more entities than it needs."""
    return html.escape(text, quote=False).replace("\u00a0", "&nbsp;")


def decode(written: str) -> str:
    """Written HTML as text: character references decoded, white space as one space."""
    return _HTML_SPACES.sub(" ", html.unescape(_HUGE_REFERENCES.sub("\ufffd", written)))


class _Item(NamedTuple):
    """A piece of a run: text, an inline tag, or what is not translated ("fixed")."""

    start: int
    end: int
    kind: Literal["text", "open", "close", "fixed"]
    name: str = ""  # of a tag
    shown: str = ""  # of what is fixed: what a reader sees


def _segments(text: str) -> Iterator[Span]:
    """The segments of a page, in order."""
    elements, run, start = _Elements(), list[_Item](), 0
    for markup in read_markup(text):
        if start < markup.start:
            run.append(_text_item(text, start, markup.start, elements))
        before = elements.translated
        elements.follow(markup)
        fixed = not (before and elements.translated)
        inside = not before and not elements.translated and run and run[-1].kind == "fixed"
        if markup.name in _BOUNDARIES and not inside:
            yield from _finish(text, run)
            run = []
        elif not before and elements.translated and run and run[0].shown:
            run = []  # it began inside a block that is not translated
        elif fixed or not markup.name or not (markup.opens or markup.closes):
            run.append(_Item(markup.start, markup.end, "fixed"))
        else:
            run.append(_Item(markup.start, markup.end, "open" if markup.opens else "close", markup.name))
        start = markup.end
    if start < len(text):
        run.append(_text_item(text, start, len(text), elements))
    yield from _finish(text, run)


def _text_item(text: str, start: int, end: int, elements: _Elements) -> _Item:
    return _Item(start, end, "text") if elements.translated else _Item(start, end, "fixed", "", decode(text[start:end]))


def _merged(run: list[_Item]) -> list[_Item]:
    """The run with neighbours that are not translated as one item."""
    merged: list[_Item] = []
    for kind, some in groupby(run, lambda item: item.kind):
        items = [*some]
        if kind == "fixed":
            items = [_Item(items[0].start, items[-1].end, kind, "", "".join(item.shown for item in items))]
        merged += items
    return merged


def _finish(text: str, run: list[_Item]) -> Iterator[Span]:
    """The segment of a run, without the white space and the tags around all of its text; none, if it has no word."""
    run = _merged(run)
    shown = [index for index, item in enumerate(run) if _is_shown(text, item)]
    if not any(run[index].kind == "text" and _has_word(text, run[index]) for index in shown):
        return
    first, last, partners = shown[0], shown[-1], _partners(run)
    before, after = 0, len(run)
    while before < first and not first <= partners.get(before, -1) <= last:
        before += 1
    while after > last + 1 and not first <= partners.get(after - 1, -1) <= last:
        after -= 1
    start, end = run[before].start, run[after - 1].end
    if before == first and run[first].kind == "text":
        start = _first_shown(text, start, run[first].end)
        run[first] = run[first]._replace(start=start)
    if after == last + 1 and run[last].kind == "text":
        end = _last_shown(text, run[last].start, end)
        run[last] = run[last]._replace(end=end)
    yield start, end, _segment(text, run, partners, range(before, after))


def _segment(text: str, run: list[_Item], partners: dict[int, int], kept: range) -> Segment:
    """What a model reads of some items of a run."""
    pieces, marks, length = list[str](), list[Mark](), 0
    for index in kept:
        item, partner = run[index], partners.get(index, -1)
        written = text[item.start : item.end]
        shown = decode(written) if item.kind == "text" else item.shown
        if shown.startswith(" ") and (not pieces or pieces[-1].endswith(" ")):
            shown = shown[1:]
            if marks and marks[-1].at == length and marks[-1].kind == "atom":
                marks[-1] = marks[-1]._replace(written=f"{marks[-1].written} ")  # between an image and the next word
        if item.kind == "fixed":
            marks.append(Mark(length, written, length=len(shown)))
        elif item.kind != "text" and partner in kept:
            marks.append(Mark(length, written, item.kind, min(index, partner)))
        elif item.kind != "text":
            marks.append(Mark(length, written))
        pieces += [shown] if shown else []
        length += len(shown)
    return strip(Segment("".join(pieces), tuple(marks)))[1]


def _partners(run: list[_Item]) -> dict[int, int]:
    """The closing tag of each opening one, and the other way round; tags that overlap others have none."""
    partners, waiting = dict[int, int](), dict[str, list[int]]()
    opened: list[int] = []
    for index, item in enumerate(run):
        if item.kind == "open":
            opened.append(index)
            waiting.setdefault(item.name, []).append(index)
        elif item.kind == "close" and waiting.get(item.name):
            start = waiting[item.name].pop()
            while opened[-1] != start:
                waiting[run[opened.pop()].name].pop()
            opened.pop()
            partners |= {start: index, index: start}
    return partners


def _is_shown(text: str, item: _Item) -> bool:
    return bool(item.shown.strip()) or (item.kind == "text" and _first_shown(text, item.start, item.end) < item.end)


def _has_word(text: str, item: _Item) -> bool:
    return ALPHANUMERIC.search(decode(text[item.start : item.end])) is not None


def _first_shown(text: str, start: int, end: int) -> int:
    """The index of the first character from `start` on that is no white space."""
    leading = _LEADING.match(text, start, end)
    return leading.end() if leading else start


def _last_shown(text: str, first: int, last: int) -> int:
    """The index after the last character before `last` that is no white space."""
    while first < last:
        if text[last - 1].isspace():
            last -= 1
            continue
        entity = next((entity for entity in _ENTITY_SPACES if text.endswith(entity, first, last)), None)
        if entity is None:
            break
        last -= len(entity)
    return last


class Markup(NamedTuple):
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
_BREAKS = (  # besides blocks: what is no inline content
    "area base body br button canvas caption center col colgroup dd dialog dir dt figcaption frame frameset head "
    "hgroup html iframe legend li link map menu meta noembed noframes noscript object optgroup option param plaintext "
    "script search select source style summary tbody td template textarea tfoot th thead title tr track video audio xmp"
)
_RAW_ELEMENTS, _VOID_ELEMENTS, _UNTRANSLATED_ELEMENTS, _BLOCK_ELEMENTS = (
    frozenset(names.split()) for names in (_RAW, _VOID, _UNTRANSLATED, _BLOCKS)
)
_BOUNDARIES = frozenset(_BREAKS.split()) | _BLOCK_ELEMENTS
# What a start tag ends, if it is the innermost element: <li>one<li>two.
_ENDS = {
    "li": {"li"}, "dt": {"dt", "dd"}, "dd": {"dt", "dd"}, "option": {"option"}, "tr": {"tr", "td", "th"},
    "td": {"td", "th"}, "th": {"td", "th"},
}  # fmt: skip


def read_markup(text: str) -> Iterator[Markup]:
    """Every tag, comment and declaration of a text, in order; what is not closed reaches to the end of the text."""
    position = 0
    while (match := _MARKUP.search(text, position)) is not None:
        found = _tag(text, match) if match["name"] else _declaration(text, match)
        yield found
        position = found.end


def _declaration(text: str, match: re.Match[str]) -> Markup:
    """A comment, a doctype, a processing instruction, or an end tag without a name."""
    start, end = match.start(), None
    if match.group() == "<!--":
        # The dashes of <!--> end it too.
        end = _COMMENT_END.search(text, start + 2)
    elif text.startswith("<![CDATA[", start):
        end = _CDATA_END.search(text, start)
    else:
        end = _END.search(text, start)
    return Markup(start, len(text) if end is None else end.end())


def _tag(text: str, match: re.Match[str]) -> Markup:
    """A start tag or an end tag; with a start tag whose content is no markup, that content."""
    name, closes = match["name"].lower(), text.startswith("</", match.start())
    position, translate = match.end(), None
    while (end := _TAG_END.match(text, position)) is None:
        attribute = _ATTRIBUTE.match(text, position)
        if attribute is None or attribute["open"]:
            return Markup(match.start(), len(text), name)
        value = next((attribute[kind] for kind in ("double", "single", "bare") if attribute[kind] is not None), "")
        translate = _translate_of(attribute["name"].lower(), value.lower(), translate)
        position = attribute.end()
    stop = end.end()
    opens = not closes and name not in _VOID_ELEMENTS and not text.endswith("/>", match.start(), stop)
    if opens and name in _RAW_ELEMENTS and (name != "title" or translate is False):
        content = re.compile(rf"</{re.escape(name)}(?=[\s/>])", re.IGNORECASE).search(text, stop)
        return Markup(match.start(), len(text) if content is None else content.start(), name, True)
    return Markup(match.start(), stop, name, opens, closes, translate)


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

    def follow(self, markup: Markup) -> None:
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
