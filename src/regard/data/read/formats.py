"""File formats of a corpus: text by line, paragraph or file, .csv, .tsv, .jsonl, tables, gzip, zstd, folders, stdin."""

from __future__ import annotations

import atexit
import csv
import hashlib
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from regard import messages
from regard.data.read.cache import Cache, Columns, cache_error, digest_of
from regard.data.read.columnar import BINARY_TABLES, COMPRESSED, is_decoded, saved_dataset
from regard.data.read.tables import Table, read_table, refuse_document
from regard.data.read.texts import (
    CHANGED,
    Bounds,
    FileInPlace,
    ReadOptions,
    Scan,
    StoredTexts,
    file_errors,
    file_state,
    input_blocks,
    line_blocks,
    missing_file,
    pipe_blocks,
    read_range,
    refuse_device,
)
from regard.errors import InputError, RegardError, suggest

_MAX_FIELDS = 3
_MAX_OBJECT_BYTES = 100_000_000
_CSV_BLOCK = 1 << 20  # bytes of text that are stored at once
_TAB = ord("\t")
_FORMATS = {".csv": "csv", ".tsv": "tsv", **dict.fromkeys((".jsonl", ".ndjson", *BINARY_TABLES), "jsonl")}
_DEFAULT_FIELDS = (("text",), ("source", "target"))

Found = Iterator[tuple[tuple[Bounds, ...], bytes | None]]
"""Block by block, the bounds of the texts of each side; and their bytes, when they are not the file's own."""


def open_sides(path: str, options: ReadOptions, cache: Cache) -> tuple[StoredTexts, ...]:
    """The texts of a file or folder, or of standard input ("-"): one side, or the two of a .tsv or of JSON lines.

    Of three fields the first two are the source, separated by a tab.
    """
    if options.fields is not None and not 1 <= len(options.fields) <= _MAX_FIELDS:
        raise InputError(
            f"{len(options.fields)} fields were named (text.fields). Name a text, a text and its target, "
            "or two texts and their target."
        )
    files = _list_files(_saved(path, cache))
    form = _format_of(files, path) or options.documents
    table_form = read_table(files[0]) if form in ("tsv", "csv") else None
    note = ""
    if table_form is not None:
        form = "csv" if table_form.quoted else "tsv"
        options, note = _with_header(options, table_form, path)
    elif options.fields is not None and form != "jsonl":
        raise InputError(f"{path} is plain text, which has no columns (text.fields). Leave fields out.")
    options = replace(options, documents="line") if form in ("tsv", "csv", "jsonl") else options
    reader = partial(_read_csv, delimiter=table_form.delimiter) if table_form and form == "csv" else _READERS[form]
    before = _file_states(files)
    digests = [_file_digest(file) for file in files]
    key = [digests, [file.suffix for file in files], form, asdict(options)]
    key += [table_form.delimiter] if table_form and form == "csv" else []
    in_place = len(files) == 1 and not _rewritten(form, options) and not is_decoded(files[0])
    table = cache.table("text", key, lambda columns: _index(files, form, reader, options, columns, copied=not in_place))
    if _file_states(files) != before:
        raise messages.UNREADABLE(path=path, why=CHANGED)
    fetch: Callable[[int, int], bytes]
    if in_place:
        fetch = FileInPlace(files[0], before[0], digests[0])
    else:
        text = table.columns["text"]
        on_disk = isinstance(text, np.memmap) and text.filename
        fetch = _range_reader(Path(on_disk)) if on_disk else lambda start, stop: text[start:stop].tobytes()
    facts = {**table.metadata, "note": note, "whole_files": form == "file"}
    return tuple(
        StoredTexts(fetch, table.columns[name], {**facts, "digest": digest_of([key, name])})
        for name in ("source", "target")
        if name in table.columns
    )


def format_and_first_file(path: str) -> tuple[str, Path]:
    """The format of a file or folder ("csv", "tsv", "jsonl", or "" for plain text), and its first file."""
    files = _list_files(Path(path))
    return _format_of(files, path), files[0]


def _with_header(options: ReadOptions, table: Table, path: str) -> tuple[ReadOptions, str]:
    """The options with the columns of a table of one or two columns that has a header, and a note about the header."""
    names, fields = table.names, options.fields
    if fields is not None:
        if names and not _has_header(fields):
            return options, messages.HEADER_READ(path=path, names=", ".join(names), example=json.dumps(names))
        return options, ""
    if table.width > 2:
        wanted, example = f"a pair has 2: {table.shown()}", json.dumps(table.columns[:2], ensure_ascii=False)
        raise messages.COLUMNS(path=path, line=1, count=table.width, wanted=wanted, example=example)
    if names is None or not all(names) or _numbers(names):
        return options, ""
    numbers = json.dumps([str(number) for number in range(1, len(names) + 1)])
    return replace(options, fields=names), messages.HEADER(path=path, names=", ".join(names), example=numbers)


def _index(
    files: list[Path], form: str, reader: Callable[[Scan, Iterable[bytes], list[int]], Found], options: ReadOptions,
    columns: Columns, *, copied: bool,
) -> Mapping[str, Any]:  # fmt: skip
    """Check files and store the bounds of their texts; copy the text itself where it cannot be read in place."""
    bad_utf8: list[int] = []
    crlf: list[tuple[int, int]] = []
    counts: list[int] = []
    texts = offset = stripped = width = 0
    rewritten, header = _rewritten(form, options), int(form in ("tsv", "csv") and _has_header(options.fields))
    columns.append("source", np.zeros((0, 2), dtype=np.int64))
    if copied:
        columns.append("text", np.zeros(0, dtype=np.uint8))
    for file in files:
        scan, first, written = Scan(file, options, _MAX_OBJECT_BYTES if form == "jsonl" else None), texts, 0
        bad_here: list[int] = []
        blocks = line_blocks(file, scan.limit)
        if copied and not rewritten:
            blocks = _copy(blocks, columns)
        for sides, content in reader(scan, blocks, bad_here):
            if len(sides) != (width or len(sides)):
                what = "it has a text where the files before it have pairs, or pairs where they have a text"
                raise messages.UNREADABLE(path=file, why=what)
            width = len(sides)
            for name, bounds in zip(("source", "target"), sides):
                columns.append(name, bounds + offset)
            if content is not None:
                columns.append("text", np.frombuffer(content, dtype=np.uint8))
                written += len(content)
            texts += len(sides[0])
        scan.finish()
        bad_utf8 += [first + index for index in bad_here]
        stripped += scan.stripped
        counts.append(texts - first)
        if scan.crlf and form not in ("jsonl", "csv"):
            crlf.append((first, first + min(texts - first, scan.lines - header)))
        offset += written if rewritten else scan.offset
    return {
        "bad_utf8": bad_utf8, "stripped": stripped, "strip": options.control == "strip", "crlf": crlf,
        "counts": counts, "header": header,
    }  # fmt: skip


def _copy(blocks: Iterable[bytes], columns: Columns) -> Iterator[bytes]:
    for block in blocks:
        columns.append("text", np.frombuffer(block, dtype=np.uint8))
        yield block


def _read_lines(scan: Scan, blocks: Iterable[bytes], bad_utf8: list[int]) -> Found:
    for block in blocks:
        yield (scan.read(block),), None
    bad_utf8 += scan.bad_utf8


def _read_file(scan: Scan, blocks: Iterable[bytes], bad_utf8: list[int]) -> Found:
    """A whole file as one text."""
    start = None
    for block in blocks:
        bounds = scan.read(block)
        start = int(bounds[0, 0]) if start is None else start
    if start is not None and start < scan.offset:
        yield (np.array([[start, scan.offset]]),), None
        bad_utf8 += [0] if scan.bad_utf8 else []


def _read_paragraphs(scan: Scan, blocks: Iterable[bytes], bad_utf8: list[int]) -> Found:
    """Runs of lines between blank lines."""
    begin, end, index, line, is_bad = -1, -1, 0, 0, False
    for block in blocks:
        offset = scan.offset
        found: list[tuple[int, int]] = []
        bad_before = len(scan.bad_utf8)
        bounds = scan.read(block)
        bad_lines = set(scan.bad_utf8[bad_before:])
        for start, stop in bounds.tolist():
            if block[start - offset : stop - offset].strip():
                begin, end = (start if begin < 0 else begin), stop
                is_bad = is_bad or line in bad_lines
            elif begin >= 0:
                found.append((begin, end))
                bad_utf8 += [index] if is_bad else []
                index, begin, is_bad = index + 1, -1, False
            line += 1
        yield (np.array(found, dtype=np.int64).reshape(-1, 2),), None
    if begin >= 0:
        bad_utf8 += [index] if is_bad else []
        yield (np.array([[begin, end]]),), None


def _read_tsv(scan: Scan, blocks: Iterable[bytes], bad_utf8: list[int]) -> Found:
    """Columns of a .tsv: the only two, or those that `fields` names by number or by their names in the header."""
    fields = scan.options.fields
    has_header = _has_header(fields)
    columns = (0, 1) if fields is None else () if has_header else _column_numbers(fields)
    written = 0
    for block in blocks:
        offset, line = scan.offset, scan.lines
        bounds = scan.read(block)
        if fields is not None and not columns:
            (start, stop), bounds, line = (bounds[0] - offset).tolist(), bounds[1:], line + 1
            columns = _columns_in_header(block[start:stop].decode(errors="replace").split("\t"), fields, scan.path)
        tabs = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == _TAB) + offset
        first = np.searchsorted(tabs, bounds[:, 0])
        counts = np.searchsorted(tabs, bounds[:, 1]) - first
        wrong = np.flatnonzero(counts < max(columns) if fields else counts != 1)
        if len(wrong):
            count = int(counts[wrong[0]]) + 1
            raise _wrong_columns(scan.path, line + 1 + int(wrong[0]), count, columns if fields else ())
        edges = np.append(tabs, 0)
        sides = []
        for column in columns:
            starts = bounds[:, 0] if column == 0 else edges[first + column - 1] + 1
            stops = np.where(counts == column, bounds[:, 1], edges[np.minimum(first + column, len(tabs))])
            sides.append(np.stack([starts, stops], axis=1))
        if len(sides) < _MAX_FIELDS:
            yield tuple(sides), None
            continue
        cells = (np.concatenate(sides, axis=1) - offset).tolist()
        rows = [_merge_pair([block[a:b], block[c:d], block[e:f]]) for a, b, c, d, e, f in cells]
        found, content = _concatenate(rows, 2, written)
        written += len(content)
        yield found, content
    bad_utf8 += [number - has_header for number in scan.bad_utf8 if number >= has_header]


def _read_csv(scan: Scan, blocks: Iterable[bytes], bad_utf8: list[int], *, delimiter: str) -> Found:
    """Columns of a quoted table: all of its one or two, or those that `fields` names."""
    fields = scan.options.fields
    columns = _column_numbers(fields) if fields is not None and not _has_header(fields) else ()
    lines = _CheckedLines(scan, blocks)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    rows: list[list[bytes] | None] = []  # None: not UTF-8, left out
    index = written = last = size = width = 0
    try:
        for cells in reader:
            first, last = last, reader.line_num
            if not any(cells):
                continue
            width = width or len(cells)
            if not columns:
                if fields is not None:
                    columns = _columns_in_header(cells, fields, scan.path)
                    continue
                columns = tuple(range(len(cells)))
            if len(cells) <= max(columns) or (fields is None and len(cells) != width):
                raise _wrong_columns(scan.path, first + 1, len(cells), columns if fields else (), width)
            if any(cells[width:]):
                why = f'it has {len(cells)} cells, the first line {width}; a text with "{delimiter}" in it needs quotes'
                raise messages.NOT_CSV(path=scan.path, line=first + 1, why=why)
            if lines.bad.intersection(range(first, last)):
                bad_utf8.append(index)
                rows.append(None)
            else:
                rows.append(_merge_pair([cells[column].replace("\r\n", "\n").encode() for column in columns]))
            index, size = index + 1, size + sum(map(len, rows[-1] or ()))
            if size > _CSV_BLOCK:
                yield _concatenate(rows, min(len(columns), 2), written)
                rows, written, size = [], written + size, 0
    except csv.Error as error:
        raise messages.NOT_CSV(path=scan.path, line=reader.line_num, why=_csv_fault(str(error))) from None
    if rows:
        yield _concatenate(rows, min(len(columns), 2), written)


class _CheckedLines:
    """The lines of a file as text, checked on the way; `bad` are the numbers of lines that are not UTF-8."""

    def __init__(self, scan: Scan, blocks: Iterable[bytes]) -> None:
        self.scan, self.blocks, self.bad = scan, blocks, set[int]()

    def __iter__(self) -> Iterator[str]:
        for block in self.blocks:
            offset, before = self.scan.offset, len(self.scan.bad_utf8)
            bounds = self.scan.read(block)
            self.bad.update(self.scan.bad_utf8[before:])
            for start, stop in (bounds - offset).tolist():
                yield block[start:stop].decode("utf-8", "replace") + "\n"


def _csv_fault(error: str) -> str:
    """What is wrong with a quoted table, in our words."""
    if "field limit" in error:
        return f"a quote is opened and not closed, or a cell has more than {csv.field_size_limit():,} characters"
    if "unexpected end" in error:
        return "a quote is opened and not closed"
    if "new-line" in error:
        return "a carriage return stands outside quotes, where a line must end in a line feed"
    return "a quote inside a quoted cell must be doubled" if "expected after" in error else error


def _wrong_columns(path: str | Path, line: int, count: int, columns: Sequence[int], width: int = 2) -> RegardError:
    """The error for a line without the wanted columns; `columns` are those that `fields` names."""
    usual = "a pair has 2" if width == 2 else f"the first line has {width}"
    wanted = f"text.fields needs {max(columns) + 1}" if columns else usual
    return messages.COLUMNS(path=path, line=line, count=count, wanted=wanted, example='["1", "2"]')


def _read_jsonl(scan: Scan, blocks: Iterable[bytes], bad_utf8: list[int]) -> Found:
    """JSON lines: {"text": ...}, or {"source": ..., "target": ...}, or the fields that `fields` names."""
    fields, numbers = scan.options.fields, scan.options.fields is not None
    written = index = 0
    rows: list[list[bytes] | None] = []  # None: not UTF-8, left out
    for block in blocks:
        offset, line, bad_before = scan.offset, scan.lines, len(scan.bad_utf8)
        bounds = scan.read(block)
        bad_lines = set(scan.bad_utf8[bad_before:])
        for start, stop in bounds.tolist():
            line += 1
            content = block[start - offset : stop - offset]
            if line - 1 in bad_lines:
                bad_utf8.append(index)
                rows.append(None)
            elif content.strip():  # a blank line is no object
                row, fields = _parse_object(content, fields, scan.path, line, numbers=numbers)
                rows.append(_merge_pair(row))
            else:
                continue
            index += 1
        if rows and fields is not None:
            yield _concatenate(rows, min(len(fields), 2), written)
            written += sum(len(text) for row in rows if row for text in row)
            rows = []
    if rows:
        yield _concatenate(rows, 1, written)


_READERS = {
    "line": _read_lines, "file": _read_file, "paragraph": _read_paragraphs, "tsv": _read_tsv, "jsonl": _read_jsonl
}  # fmt: skip


def _rewritten(form: str, options: ReadOptions) -> bool:
    """Whether the texts must be copied one by one, because the file does not hold them as they are."""
    return form in ("jsonl", "csv") or (form == "tsv" and len(options.fields or ()) == _MAX_FIELDS)


def _concatenate(rows: Sequence[list[bytes] | None], sides: int, offset: int) -> tuple[tuple[Bounds, ...], bytes]:
    """The bounds of texts that are written one after the other from an offset on, and their bytes."""
    filled = [row or [b""] * sides for row in rows]
    lengths = np.array([[len(text) for text in row] for row in filled], dtype=np.int64).reshape(-1, sides)
    ends = offset + np.cumsum(lengths.ravel()).reshape(lengths.shape)
    bounds = tuple(np.stack([ends[:, i] - lengths[:, i], ends[:, i]], axis=1) for i in range(sides))
    return bounds, b"".join(text for row in filled for text in row)


def _merge_pair(row: list[bytes]) -> list[bytes]:
    """Of three texts, the first two as one, separated by a tab; tabs inside the first become spaces."""
    return [row[0].replace(b"\t", b" ") + b"\t" + row[1], row[2]] if len(row) == _MAX_FIELDS else row


def _parse_object(
    line: bytes, fields: tuple[str, ...] | None, path: str | Path, number: int, *, numbers: bool
) -> tuple[list[bytes], tuple[str, ...]]:
    """The texts of one JSON line and the names of their fields; with `numbers`, the last field may be a number."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise messages.NOT_JSON(path=path, line=number, why=f"not JSON ({error})") from None
    if isinstance(value, dict) and isinstance(value.get("translation"), dict):
        value = value["translation"]  # as in Hugging Face datasets: {"translation": {"de": ..., "en": ...}}
        fields = fields or tuple(value)[:2]
    if not isinstance(value, dict):
        raise messages.NOT_JSON(path=path, line=number, why="not an object")
    chosen = fields or next((names for names in _DEFAULT_FIELDS if value.keys() >= set(names)), ("text",))
    if numbers and len(chosen) > 1 and isinstance(value.get(chosen[-1]), (int, float)):
        value[chosen[-1]] = json.dumps(value[chosen[-1]])
    for name in chosen:
        if not isinstance(value.get(name), str):
            raise messages.NOT_JSON(path=path, line=number, why=f'no text under "{name}"')
    try:
        return [value[name].encode() for name in chosen], chosen
    except UnicodeEncodeError as error:
        why = f"an unpaired surrogate (U+{ord(error.object[error.start]):04X}) is no text"
        raise messages.NOT_JSON(path=path, line=number, why=why) from None


def _has_header(fields: tuple[str, ...] | None) -> bool:
    """Whether fields are names, which the first line of a .tsv must list, and not numbers of columns."""
    return fields is not None and not _numbers(fields)


def _numbers(fields: tuple[str, ...]) -> bool:
    return all(field.isascii() and field.isdigit() for field in fields)


def _column_numbers(fields: tuple[str, ...]) -> tuple[int, ...]:
    """Numbers of columns, counted from 1 in the recipe and from 0 here."""
    for field in fields:
        if not int(field):
            raise InputError(
                f'"{field}" is no number of a column (text.fields). Columns count from 1, as in ["1", "2"].'
            )
    return tuple(int(field) - 1 for field in fields)


def _columns_in_header(cells: Sequence[str], fields: tuple[str, ...], path: str | Path) -> tuple[int, ...]:
    """The columns that have these names in the header of a table."""
    names = [name.strip() for name in cells]
    for field in fields:
        if field not in names:
            raise InputError(f'{path} line 1 names no column "{field}" (text.fields). {suggest(field, names)}')
    return tuple(map(names.index, fields))


def _file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with file_errors(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _range_reader(path: Path) -> Callable[[int, int], bytes]:
    """A function that reads the bytes of a table of ours from one offset to another."""
    with file_errors(path):
        return partial(read_range, open(path, "rb", buffering=0))


def _file_states(files: list[Path]) -> list[tuple[int, int]]:
    """Size and modification time of each file."""
    return [file_state(file) for file in files]


def _list_files(path: Path) -> list[Path]:
    """A file, or all files below a folder in order of name, without hidden ones."""
    if not path.exists():
        raise missing_file(path)
    if not path.is_dir():
        return [path]
    found = sorted(
        file for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )  # fmt: skip
    if not found:
        raise messages.EMPTY_TEXT(path=path)
    return saved_dataset(found)


def has_fields(path: str) -> bool:
    """Whether a file, or the files of a folder, have fields, by their names."""
    return Path(path).exists() and _format_of(_list_files(Path(path)), path) != ""


def _format_of(files: list[Path], path: str) -> str:
    """The format of files by their names: "csv", "tsv", "jsonl", or "" for plain text; a document is refused."""
    plain = [Path(file.stem) if file.suffix in COMPRESSED else file for file in files]
    for file, name in zip(files, plain):
        refuse_document(file, name.suffix)
    forms = sorted({_FORMATS.get(file.suffix.lower(), "") for file in plain})
    if len(forms) > 1:
        raise InputError(
            f"{path} holds files of several formats (text). Put each into a folder of its own: .csv, .tsv, .jsonl, "
            "plain text."
        )
    return forms[0]


def _saved(path: str, cache: Cache) -> Path:
    """The file or folder itself; standard input and pipes, which can be read only once, are saved to a file first."""
    if path == "-":
        return _saved_input(sys.stdin, cache)
    refuse_device(Path(path))
    return _save(pipe_blocks(Path(path)), cache) if Path(path).is_fifo() else Path(path)


@lru_cache(maxsize=1)
def _saved_input(stream: object, cache: Cache) -> Path:  # noqa: ARG001 (another stream is another input)
    """The file of standard input; it is read once, though several splits may come from it."""
    return _save(input_blocks(), cache)


def _decompressed(start: bytes) -> bytes:
    """The text with which compressed bytes begin; none if they are damaged, which whoever reads them all says."""
    with suppress(zlib.error):
        return zlib.decompressobj(31).decompress(start, 1 << 16)
    return b""


def _save(blocks: Iterable[bytes], cache: Cache) -> Path:
    """Save blocks to a file, named by its content and by the format of its first line."""
    folder = cache.root
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="regard-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    digest, first = hashlib.sha256(), b""
    unfinished = folder / f".input.{os.getpid()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(unfinished, "wb") as file:
            for block in blocks:
                first += block[: (1 << 16) - len(first)]
                digest.update(block)
                file.write(block)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise cache_error(folder, error) from None
    zipped = first.startswith(b"\x1f\x8b")
    line = (_decompressed(first) if zipped else first).partition(b"\n")[0]
    suffix = ".jsonl" if line.lstrip().startswith(b"{") else ".tsv" if line.count(b"\t") == 1 else ".txt"
    suffix += ".gz" if zipped else ""
    final = folder / f"input-{digest.hexdigest()[:40]}{suffix}"
    os.replace(unfinished, final)
    return final
