"""Markdown documents: each paragraph, heading, item and table cell is a segment, with its inline markup as marks.

Code blocks, front matter, comments, reference definitions and rules are not translated; code spans are atoms.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from regard.data.documents.segments import Document, Mark, Part, Segment, strip

_FENCE = re.compile(
    r"(?P<before>[ \t]*+(?:>[ \t]*+|(?:[-*+]|\d{1,9}[.)])[ \t]++)*+)(?P<signs>`{3,}+(?![^\n]*`)|~{3,}+)"
)
_RULE = re.compile(r"[ ]{0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|=+[ \t]*|-+[ \t]*)$")
_DEFINITION = re.compile(r"[ ]{0,3}\[[^\]^][^\]]*\]:")
_TABLE_RULE = re.compile(r"[ ]{0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_COMMENT, _COMMENT_END = re.compile(r"[ ]{0,3}<!--"), re.compile(r"-->")
_RAW = re.compile(r"[ ]{0,3}<(pre|script|style|textarea)\b", re.IGNORECASE)
_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*$")
_TAGS = re.compile(r"[ \t]*+(?:>[ \t]*+)*+(?:</?[A-Za-z][A-Za-z0-9-]*+(?:\s[^<>]*+)?>[ \t]*+)++$")
# What stands before the text of a line: quotation marks, item markers, check boxes, heading signs, footnote labels.
_PREFIX = re.compile(
    r"[ \t]*+(?:>[ \t]*+|(?:[-*+:]|\d{1,9}[.)])(?:[ \t]++|$)(?:\[[ xX]\][ \t]++)?|#{1,6}(?:[ \t]++|$)|"
    r"\[\^[^\]]+\]:[ \t]*+)*+"
)
_BEGINS_BLOCK = re.compile(r"[ \t]*+(?:>[ \t]*+)*+(?:[-*+:][ \t]|\d{1,9}[.)][ \t]|#{1,6}(?:[ \t]|$)|\[\^[^\]]+\]:)")
_QUOTES = re.compile(r"[ \t]*+(?:>[ \t]*+)*+")
_LINE = re.compile(r"[^\n]*+(?:\n|\Z)")


def read_markdown(text: str) -> Document:
    """The blocks of a text, line by line."""
    reader = _Reader()
    lines = [match.group() for match in _LINE.finditer(text) if match.group()]
    done = _front_matter(lines)
    reader.parts.append(Part("".join(lines[:done])))
    for number, line in enumerate(lines[done:], done):
        reader.read(line, lines[number + 1] if number + 1 < len(lines) else "")
    reader.end_paragraph()
    return Document(tuple(part for part in reader.parts if part.written), str)


def _front_matter(lines: list[str]) -> int:
    """How many lines at the start of a document hold settings: between two lines --- (YAML) or +++ (TOML)."""
    begins = _FRONT_MATTER.match(lines[0].rstrip("\r\n")) if lines else None
    ends = () if begins is None else (begins[1], "...") if begins[1] == "---" else (begins[1],)
    return next((number + 1 for number, line in enumerate(lines) if number and line.rstrip() in ends), 0)


@dataclass
class _Reader:
    """The parts read so far, and the paragraph that is not at its end."""

    parts: list[Part] = field(default_factory=list)
    paragraph: list[tuple[str, int]] = field(
        default_factory=list
    )  # its lines, and the length of what precedes the text
    until: re.Pattern[str] | None = None  # the line that ends a block of code
    in_table: bool = False
    in_list: bool = False
    item: int = 0  # the column at which the text of the last item begins

    def read(self, line: str, upcoming: str) -> None:
        """One more line."""
        bare = line.rstrip("\r\n")
        if self.until is not None:
            self.parts.append(Part(line))
            self.until = None if self.until.search(bare) else self.until
        elif self._begins_code(bare):
            self.end_paragraph()
            self.parts.append(Part(line))
        elif not bare.strip() or _DEFINITION.match(bare) or _TAGS.match(bare) or self._is_rule(bare):
            self.end_paragraph()
            self.parts.append(Part(line))
            self.in_table = False
        elif self.in_table or ("|" in bare and _TABLE_RULE.match(upcoming.rstrip("\r\n")) and "|" in upcoming):
            self.end_paragraph()
            self.in_table = True
            self.parts += [Part(line)] if _TABLE_RULE.match(bare) else _cells(line)
        else:
            self._read_text(line, bare)

    def _is_rule(self, bare: str) -> bool:
        return not self.in_table and _RULE.match(bare) is not None

    def _begins_code(self, bare: str) -> bool:
        """Whether a line begins, or is, code or a comment; sets the end of a block."""
        fence, raw = _FENCE.match(bare), _RAW.match(bare)
        if fence and (self.in_list or _column(fence["before"]) < 4 or fence["before"].strip()):
            signs = fence["signs"]
            self.until = re.compile(rf"^[ \t>]*{re.escape(signs)}{re.escape(signs[0])}*[ \t]*$")
        elif raw:
            end = re.compile(rf"</{raw[1]}>", re.IGNORECASE)
            self.until = None if end.search(bare) else end
        elif _COMMENT.match(bare):
            self.until = None if _COMMENT_END.search(bare) else _COMMENT_END
        else:
            # Indented code interrupts no paragraph.
            indent = _column(bare[: len(bare) - len(bare.lstrip(" \t"))])
            deep = indent >= 4 + (self.item if self.in_list else 0)
            return bool(bare.strip()) and deep and not self.paragraph and not self.in_table
        return True

    def _read_text(self, line: str, bare: str) -> None:
        """A line of a paragraph; one that begins a block, or follows a hard line break, begins another."""
        begins = _BEGINS_BLOCK.match(bare) is not None
        begins |= bool(self.paragraph) and _quotes(bare) > _quotes(self.paragraph[0][0])
        if begins or (self.paragraph and re.search(r"(?: {2,}|\\)$", self.paragraph[-1][0].rstrip("\r\n"))):
            self.end_paragraph()
        prefix = (_QUOTES if self.paragraph else _PREFIX).match(bare)
        item = re.match(r"[ \t>]*(?:[-*+]|\d{1,9}[.)])[ \t]+", bare)
        self.in_list = item is not None or (self.in_list and bare[0] in " \t")
        self.item = _column(item.group()) if item else self.item
        self.paragraph.append((line, prefix.end() if prefix else 0))
        if re.match(r"[ \t>]*#{1,6}(?:[ \t]|$)", bare):
            self.end_paragraph()

    def end_paragraph(self) -> None:
        """The paragraph, if there is one, as parts: what stands before its text, the text, what stands after it."""
        if not self.paragraph:
            return
        written, start = "".join(line for line, _ in self.paragraph), self.paragraph[0][1]
        shown = written.rstrip().removesuffix("\\").rstrip()
        end = max(start, len(re.sub(r"[ \t]+#+\Z", "", shown) if written.lstrip(" \t>").startswith("#") else shown))
        lines = [line[prefix:] for line, prefix in self.paragraph]
        cut = len(written) - end
        text = " ".join(line.strip() for line in ("".join(lines)[:-cut] if cut else "".join(lines)).split("\n"))
        segment = read_inline(text)
        if segment.has_words:
            self.parts += [Part(written[:start]), Part(written[start:end], segment), Part(written[end:])]
        else:
            self.parts.append(Part(written))
        self.paragraph = []


def _quotes(line: str) -> int:
    """How many signs of quotation begin a line."""
    found = _QUOTES.match(line)
    return found.group().count(">") if found else 0


def _column(before: str) -> int:
    """The column after what begins a line; a tab reaches to the next multiple of four."""
    return len(before.expandtabs(4))


def _cells(line: str) -> Iterator[Part]:
    """The cells of a row of a table."""
    for match in re.finditer(r"(?:\\.|`[^`]*`|[^|\\`])+|.|\n", line, re.DOTALL):
        cell = match.group()
        bare = cell.strip()
        segment = read_inline(bare)
        if not segment.has_words:
            yield Part(cell)
            continue
        start = cell.index(bare)
        yield from (Part(cell[:start]), Part(bare, segment), Part(cell[start + len(bare) :]))


class _Token(NamedTuple):
    """A piece of inline text; `shown` is what a reader sees of it. Delimiters of one `name` may be a pair."""

    written: str
    kind: str
    shown: str
    name: str = ""
    opens: bool = False
    closes: bool = False


_INLINE = re.compile(
    r"""(?P<code>(?P<ticks>`+)(?!`)(?P<inner>.+?)(?<!`)(?P=ticks)(?!`))
    |(?P<escape>\\(?P<escaped>[!-/:-@\[-`{-~]))
    |(?P<image>!\[(?:[^\[\]]|\[[^\[\]]*+\])*+\](?:\((?:[^()]|\([^()]*+\))*+\)|\[[^\[\]]*\]))
    |(?P<note>\[\^[^\[\]]+\])
    |(?P<link><(?P<address>(?:[a-z][a-z0-9+.-]{1,30}:|[\w.+-]+@)[^<>\s]*)>)
    |(?P<comment><!--.*?-->)
    |(?P<tag><(?P<close>/?)(?P<name>[A-Za-z][A-Za-z0-9-]*)(?:\s[^<>]*)?(?P<void>/?)>)
    |(?P<target>\]\((?:<[^<>]*+>|(?:[^()\s]|\([^()\s]*+\))*+)(?:\s+(?:"[^"]*+"|'[^']*+'))?\)|\]\[[^\[\]]*\])
    |(?P<bracket>[\[\]])
    |(?P<emphasis>\*{1,3}|_{1,3}|~~)
    |(?P<entity>&(?:\#\d{1,7}|\#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});)""",
    re.VERBOSE,
)
_KINDS = ("code", "escape", "image", "note", "link", "comment", "tag", "target", "bracket", "emphasis", "entity")
_SHOWN = {"code": "inner", "escape": "escaped", "link": "address"}
_VOID = frozenset(("br", "hr", "img", "input", "wbr"))


def read_inline(text: str) -> Segment:
    """What a model reads of inline Markdown, and its marks; delimiters without a partner are text."""
    tokens = [*_tokens(text)]
    partners = _partners(tokens)
    pieces, marks, length = list[str](), list[Mark](), 0
    for index, token in enumerate(tokens):
        shown, partner = token.shown, partners.get(index, -1)
        if token.kind in _SHOWN or token.kind in ("image", "note", "comment", "entity"):
            marks.append(Mark(length, token.written, length=len(shown)))
        elif partner >= 0:
            shown = ""
            marks.append(Mark(length, token.written, "open" if index < partner else "close", min(index, partner)))
        elif token.kind == "tag":
            shown = ""
            marks.append(Mark(length, token.written))
        pieces.append(shown)
        length += len(shown)
    text = "".join(pieces)
    return strip(Segment(text, tuple(_with_spaces(text, marks))))[1]


def _with_spaces(text: str, marks: list[Mark]) -> list[Mark]:
    """The marks; images at either end of a text keep the space between them and the text."""
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    images = [index for index, mark in enumerate(marks) if mark.kind == "atom" and not mark.length and start < end]
    before = [index for index in images if 0 <= marks[index].at < start]
    after = [index for index in images if marks[index].at > end]
    for index in before[-1:]:
        marks[index] = marks[index]._replace(written=f"{marks[index].written} ")
    for index in after[:1]:
        marks[index] = marks[index]._replace(written=f" {marks[index].written}")
    return marks


def _tokens(text: str) -> Iterator[_Token]:
    done = 0
    for match in _INLINE.finditer(text):
        yield _Token(text[done : match.start()], "text", text[done : match.start()])
        done, written = match.end(), match.group()
        kind = next(name for name in _KINDS if match[name] is not None)
        before, after = text[match.start() - 1 : match.start()], text[done : done + 1]
        if kind == "tag":
            opens = not match["close"] and not match["void"] and match["name"].lower() not in _VOID
            yield _Token(written, kind, "", match["name"].lower(), opens, bool(match["close"]))
        elif kind in ("target", "bracket"):
            yield _Token(written, kind, written, "[", written == "[", written != "[")
        elif kind == "emphasis":
            inside = written[0] == "_" and before.isalnum() and after.isalnum()  # snake_case
            opens, closes = bool(after.strip()) and not inside, bool(before.strip()) and not inside
            yield _Token(written, kind, written, written, opens, closes)
        else:
            shown = html.unescape(written) if kind == "entity" else match[_SHOWN[kind]] if kind in _SHOWN else ""
            yield _Token(written, kind, shown)
    yield _Token(text[done:], "text", text[done:])


def _partners(tokens: list[_Token]) -> dict[int, int]:
    """The closing delimiter of each opening one, and the other way round; no two pairs overlap."""
    partners, opened = dict[int, int](), list[int]()
    for index, token in enumerate(tokens):
        start = next((one for one in reversed(opened[-_NESTED:]) if tokens[one].name == token.name), -1)
        if token.closes and start >= 0 and start < index - 1:
            if token.written != "]":  # brackets without an address are text
                partners |= {start: index, index: start}
            while opened.pop() != start:
                pass
        elif token.opens:
            opened.append(index)
    return partners


_NESTED = 32  # delimiters that are looked at to find the partner of one
