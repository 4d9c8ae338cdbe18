"""Tables of texts: how a .csv or .tsv is written, whether it has a header, and which columns hold texts and labels."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from regard import messages
from regard.data.read.columnar import BINARY_TABLES, COMPRESSED
from regard.data.read.texts import file_errors, read_blocks, shell_quoted
from regard.errors import InputError

_INSPECTED = 2000  # rows
_DELIMITERS = ",;\t|"
_MAX_NAME = 40  # characters of a column's name
_MAX_LABEL = 60  # characters of a label
_SHOWN = 24  # characters of a cell in a message

# Names of columns, in order of preference
_WORDS = """
language: ar bg bn ca cs cy da de el en es et eu fa fi fr ga gl he hi hr hu hy id is it ja ka ko la lt lv mk ms nl no pl pt ro
ru sk sl sq sr sv sw ta te th tl tr uk ur vi zh arabic bulgarian catalan chinese croatian czech danish dutch english estonian
finnish french german greek hebrew hindi hungarian indonesian italian japanese korean latin latvian lithuanian norwegian persian
polish portuguese romanian russian slovak slovenian spanish swedish turkish ukrainian vietnamese deu eng fra spa ita por nld rus
source: source src input question prompt instruction original complex
target: target tgt trg output answer completion response translation summary reference simple simplified
text: text sentence review comment content body document message tweet post utterance abstract description headline title query
label: label labels class category sentiment rating stars score intent topic polarity emotion genre gold_label is_duplicate
similarity language lang spam target type
first: sentence1 premise question1 text1 text_a sentence_a
second: sentence2 hypothesis question2 text2 text_b sentence_b
"""  # noqa: E501
_NAMES = {kind: names.split() for kind, names in re.findall(r"^(\w+): ([^:]*)(?=\n\w+:|\n\Z)", _WORDS, re.MULTILINE)}
_KNOWN = frozenset(name for names in _NAMES.values() for name in names)
_SPREADSHEET = "Save it as CSV (UTF-8) in your spreadsheet program, and name that file"
_WRITING = "Save it as plain text (UTF-8) in your word processor, and name that file"
_DOCUMENTS = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods", ".numbers"), ("a spreadsheet", _SPREADSHEET)),
    **dict.fromkeys((".docx", ".doc", ".odt", ".rtf", ".pages"), ("a word processor's document", _WRITING)),
    **dict.fromkeys((".pptx", ".ppt", ".odp", ".key"), ("a presentation", "Copy its text to a .txt file")),
    ".pdf": ("a PDF", "Extract its text: pdftotext {quoted} text.txt"),
    ".epub": ("an e-book", "Convert it to plain text, as with: pandoc {quoted} -t plain -o text.txt"),
    **dict.fromkeys((".parquet", ".arrow", ".feather"), ("a binary table", "Let its name end in .parquet or .arrow")),
    **dict.fromkeys((".zip", ".7z", ".rar", ".tar", ".tgz"), ("an archive", "Unpack it, and name the files in it")),
    **dict.fromkeys((".bz2", ".xz"), ("a compressed file", "Decompress it, or compress it with gzip")),
}
_MAGIC = {b"PK\x03\x04": ".zip", b"%PDF": ".pdf", b"PAR1": ".parquet", b"\xd0\xcf\x11\xe0": ".doc", b"{\\rt": ".rtf"}
_NAME = re.compile(r"[^\W\d_][\w \-./()]*")


@dataclass(frozen=True)
class Table:
    """The beginning of a table: how its cells are separated, the names of its columns if it has a header, some rows."""

    path: Path
    delimiter: str
    quoted: bool
    names: tuple[str, ...] | None
    rows: tuple[tuple[str, ...], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns as `fields` names them: by name, or by number from 1 on."""
        return self.names or tuple(str(number) for number in range(1, self.width + 1))

    @property
    def width(self) -> int:
        """The usual number of columns."""
        counts = Counter(map(len, self.rows))
        return len(self.names or ()) or (counts.most_common(1)[0][0] if counts else 0)

    def column(self, number: int) -> list[str]:
        return [row[number] for row in self.rows if len(row) > number]

    def shown(self) -> str:
        """The columns, each with its first cell, for a person who has to choose."""
        firsts = [next(filter(str.strip, self.column(number)), "") for number in range(self.width)]
        return ", ".join(f"{name} ({_brief(cell)})" for name, cell in zip(self.columns, firsts))


def refuse_document(path: Path, suffix: str) -> None:
    """Refuse a spreadsheet, a PDF or another file that holds text but is none, by its name or its first bytes."""
    if suffix in BINARY_TABLES:
        return
    found = _DOCUMENTS.get(suffix.lower())
    if found is None and suffix.lower() not in COMPRESSED and path.is_file():
        with file_errors(path), open(path, "rb") as file:
            found = _DOCUMENTS.get(_MAGIC.get(file.read(4), ""))
    if found is not None:
        what, remedy = found
        raise messages.DOCUMENT(path=path, what=what, do=remedy.format(quoted=shell_quoted(path)))


def read_table(path: Path) -> Table:
    """Inspect the beginning of a .csv or .tsv. A .tsv is quoted only if its quotes can mean nothing else."""
    name = path.with_suffix("") if path.suffix in COMPRESSED else path
    block = next(iter(read_blocks(path)), b"")
    text = block.decode("utf-8", "replace").removeprefix("\ufeff")
    cut = len(block) >= 1 << 20
    text = text[: text.rfind("\n") + 1] if cut else text
    delimiter = "\t" if name.suffix.lower() == ".tsv" else _delimiter(text)
    quoted = delimiter != "\t" or _is_quoted(text, cut=cut)
    rows = _parse(text, delimiter)[0] if quoted else [line.rstrip("\r").split("\t") for line in text.split("\n")]
    found = [tuple(row) for row in rows[: _INSPECTED + 1] if any(map(str.strip, row))]
    names = _header(found, usual=delimiter != "\t")
    return Table(path, delimiter, quoted, names, tuple(found[1:] if names else found))


def tabbed_columns(path: Path) -> int:
    """The columns of a plain text whose first lines all have as many tabs; 1 where it has none."""
    counts = {line.count(b"\t") for line in islice(_first_lines(path), 100)}
    return 1 + counts.pop() if len(counts) == 1 else 1


def _delimiter(text: str) -> str:
    """The character that cuts the first rows into the same number of columns, more than one; else a comma."""
    best, most = ",", 1
    for delimiter in _DELIMITERS:
        counts = Counter(len(row) for row in _parse(text[:100_000], delimiter)[0][:100] if row)
        width, agreeing = counts.most_common(1)[0] if counts else (1, 0)
        if width > most and agreeing >= 0.9 * sum(counts.values()):
            best, most = delimiter, width
    return best


def _parse(text: str, delimiter: str) -> tuple[list[list[str]], str]:
    """The rows of a quoted table up to the first mistake, and the mistake."""
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter, strict=True):
            rows.append(row)
            if len(rows) > _INSPECTED:
                break
    except csv.Error as error:
        return rows, str(error)
    return rows, ""


def _is_quoted(text: str, *, cut: bool) -> bool:
    """Whether the quotes of a .tsv are no text: all are well-formed, and some hold a tab, or every cell has them."""
    if not re.search(r'(?:^|\t)"', text, re.MULTILINE):
        return False
    rows, mistake = _parse(text, "\t")
    if mistake and not (cut and "unexpected end" in mistake):
        return False
    if any("\t" in cell or "\n" in cell or cell.startswith('"') for row in rows for cell in row):
        return len({len(row) for row in rows if row}) == 1
    cells = [cell for line in text.splitlines()[:_INSPECTED] if line.strip() for cell in line.split("\t")]
    return all(re.fullmatch(r'".*"|[\d.,+-]*', cell) for cell in cells)


def _header(rows: Sequence[tuple[str, ...]], *, usual: bool) -> tuple[str, ...] | None:
    """The first row, if it names the columns: a known name, or above labels or numbers a name that is none of them.

    Where headers are usual, single words above sentences are one too.
    """
    names = tuple(name.strip() for name in rows[0]) if len(rows) > 1 else ()
    if not names or len({name.casefold() for name in names}) < len(names):
        return None
    if not all(len(name) <= _MAX_NAME and _NAME.fullmatch(name) for name in names if name):
        return None
    if any(_plain(name) in _KNOWN for name in names):
        return names
    below = [[row[number] for row in rows[1:] if len(row) > number] for number in range(len(names))]
    if any(cells and all(map(is_number, cells)) for cells in below):
        return names
    kinds = [is_labels(cells) and name not in {cell.strip() for cell in cells} for name, cells in zip(names, below)]
    above = usual and all(name.isidentifier() for name in names) and any(_are_sentences(cells) for cells in below)
    return names if above or (any(kinds) and len(names) > 1) else None


def is_language(name: str) -> bool:
    """Whether this is a language: "de", "german"."""
    return name in _NAMES["language"]


def is_number(cell: str) -> bool:
    """Whether a cell is a number."""
    return re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", cell) is not None


def is_label_name(name: str) -> bool:
    """Whether a column of this name usually holds labels."""
    return _plain(name) in _NAMES["label"] and _plain(name) not in _NAMES["target"]


def is_labels(cells: Sequence[str], *, named: bool = False) -> bool:
    """Whether these are labels: few different ones; in a column that is named so, up to half as many as cells."""
    counts = Counter(cell.strip() for cell in cells)
    few = len(cells) // 2 if named else min(max(3, len(cells) // 20), len(cells) // 2)
    return 1 < len(counts) <= few and all(0 < len(label) <= _MAX_LABEL for label in counts)


def read_objects(path: Path) -> Table | None:
    """The first JSON lines as a table of the keys that hold texts or numbers; None: {"translation": ...}.

    A key that a few lines lack is a column too: reading them names the line.
    """
    objects: list[dict[str, object]] = []
    for line in _first_lines(path):
        with suppress(ValueError, RecursionError):
            value = json.loads(line)
            if isinstance(value, dict) and isinstance(value.get("translation"), dict):
                return None
            objects += [value] if isinstance(value, dict) else []
    found = dict.fromkeys(key for value in objects for key in value)
    counts = {key: sum(isinstance(value.get(key), (str, int, float)) for value in objects) for key in found}
    usual = tuple(key for key, count in counts.items() if count > 0.9 * len(objects))
    rows = tuple(tuple(_cell(value.get(key, "")) for key in usual) for value in objects)
    return Table(path, "", False, usual, rows)


def _cell(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _first_lines(path: Path) -> Iterator[bytes]:
    block = next(iter(read_blocks(path)), b"")
    lines = block.split(b"\n")
    yield from (line for line in (lines[:-1] if len(block) >= 1 << 20 else lines)[:_INSPECTED] if line.strip())


def choose_fields(table: Table) -> tuple[str, ...]:
    """The columns of the texts and their targets, by name or by content; where it is unclear, an error shows them."""
    found = _by_name(table) or (table.columns if table.width <= 2 else _by_content(table))
    if not found and table.rows and table.width:  # a table without texts is refused when it is read
        example = ",".join(table.columns[:2])
        raise InputError(
            f"{table.path} has {table.width} columns: {table.shown()}. "
            f"Choose a text, or a text and its target or label: --fields {example}."
        )
    return found


def _by_name(table: Table) -> tuple[str, ...]:
    """The columns under well-known names."""
    known = {_plain(name): name for name in reversed(table.names or ()) if name}

    def first(kind: str) -> tuple[str, ...]:
        return next(((known[name],) for name in _NAMES[kind] if name in known), ())

    label = first("label")
    for one, other in zip(_NAMES["first"], _NAMES["second"]):
        if one in known and other in known:
            return known[one], known[other], *label
    languages = [name for name in table.names or () if _plain(name) in _NAMES["language"]]
    if len(languages) == 2:
        return tuple(languages)
    source, target, text = first("source"), first("target"), first("text")
    if len(source) == len(target) == 1:
        return source + target
    if text and label:
        return text + label
    return text if text and table.width == 1 else ()


def _by_content(table: Table) -> tuple[str, ...]:
    """The only column of texts with the only column of labels, or the only two columns of texts."""
    cells = {name: table.column(number) for number, name in enumerate(table.columns)}
    labels = [name for name, column in cells.items() if is_labels(column)]
    texts = [
        name for name, column in cells.items()
        if name not in labels and not all(map(is_number, column)) and _are_sentences(column)
    ]  # fmt: skip
    if len(texts) == 1 and len(labels) == 1:
        return texts[0], labels[0]
    return tuple(texts) if len(texts) == 2 and not labels else ()


def _are_sentences(cells: Sequence[str]) -> bool:
    """Whether cells have more than two words on average."""
    return sum(len(cell.split()) for cell in cells) > 2 * len(cells)


def _plain(name: str) -> str:
    return re.sub(r"[ \-]+", "_", name.strip().casefold())


def _brief(cell: str) -> str:
    text = " ".join(cell.split())
    return json.dumps(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...", ensure_ascii=False)
