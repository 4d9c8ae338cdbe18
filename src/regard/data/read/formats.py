"""Texts between tabs and in JSON lines: columns by number or by name, of which two or three make a text."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard import messages
from regard.data.read.cache import Cache, Columns, digest_of
from regard.data.read.files import Reading, Scan, blocks, chunks, file_digest, missing, reader
from regard.data.read.texts import Bounds, Stored
from regard.errors import InputError, suggest

MOST_FIELDS = 3
_TAB = ord("\t")
_SIDES = (("text",), ("source", "target"))

Found = Iterator[tuple[tuple[Bounds, ...], bytes | None]]
"""Where the texts of each side are, piece by piece; and their bytes, when they are not the file's own."""


def tabs(scan: Scan, stream: Iterable[bytes], bad: list[int]) -> Found:
    """Columns between marks: two, or those that were by_name by number, or by what the first line calls them."""
    wanted = scan.reading.fields
    by_name = named(wanted)
    columns = (0, 1) if wanted is None else () if by_name else _numbers(wanted)
    spooled = 0
    for chunk in stream:
        place, line = scan.place, scan.lines
        bounds = scan.read(chunk)
        if wanted is not None and not columns:
            (start, stop), bounds, line = (bounds[0] - place).tolist(), bounds[1:], line + 1
            columns = _headed(chunk[start:stop], wanted, scan.path)
        marks = np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == _TAB) + place
        first = np.searchsorted(marks, bounds[:, 0])
        counts = np.searchsorted(marks, bounds[:, 1]) - first
        wrong = np.flatnonzero(counts < max(columns) if wanted else counts != 1)
        if len(wrong):
            count = int(counts[wrong[0]]) + 1
            raise messages.COLUMNS(path=scan.path, line=line + 1 + int(wrong[0]), count=count)
        edges = np.append(marks, 0)
        sides = []
        for column in columns:
            starts = bounds[:, 0] if column == 0 else edges[first + column - 1] + 1
            stops = np.where(counts == column, bounds[:, 1], edges[np.minimum(first + column, len(marks))])
            sides.append(np.stack([starts, stops], axis=1))
        if len(sides) < MOST_FIELDS:
            yield tuple(sides), None
            continue
        cut = (np.concatenate(sides, axis=1) - place).tolist()
        found, content = _spooled(
            [_joined([chunk[a:b], chunk[c:d], chunk[e:f]]) for a, b, c, d, e, f in cut], 2, spooled
        )
        spooled += len(content)
        yield found, content
    bad += [number - by_name for number in scan.bad if number >= by_name]


def objects(scan: Scan, stream: Iterable[bytes], bad: list[int]) -> Found:
    """JSON lines: {"text": ...}, or {"source": ..., "target": ...}, or the fields that were by_name."""
    fields = scan.reading.fields
    place = number = 0
    rows: list[list[bytes] | None] = []  # None: not UTF-8, and to be left out
    for chunk in stream:
        before, line, faulty = scan.place, scan.lines, len(scan.bad)
        bounds = scan.read(chunk)
        lines_bad = set(scan.bad[faulty:])
        for start, stop in bounds.tolist():
            line += 1
            content = chunk[start - before : stop - before]
            if line - 1 in lines_bad:
                bad.append(number)
                rows.append(None)
            elif content.strip():  # a blank line is no object
                row, fields = _fields(content, fields, scan.path, line, numbers=scan.reading.fields is not None)
                rows.append(_joined(row))
            else:
                continue
            number += 1
        if rows and fields is not None:
            yield _spooled(rows, min(len(fields), 2), place)
            place += sum(len(text) for row in rows if row for text in row)
            rows = []
    if rows:
        yield _spooled(rows, 1, place)


def _spooled(rows: list[list[bytes] | None], sides: int, place: int) -> tuple[tuple[Bounds, ...], bytes]:
    """Where texts are that are written one after the other from a place on, and their bytes."""
    filled = [row or [b""] * sides for row in rows]
    lengths = np.array([[len(text) for text in row] for row in filled], dtype=np.int64).reshape(-1, sides)
    ends = place + np.cumsum(lengths.ravel()).reshape(lengths.shape)
    bounds = tuple(np.stack([ends[:, i] - lengths[:, i], ends[:, i]], axis=1) for i in range(sides))
    return bounds, b"".join(text for row in filled for text in row)


def _joined(row: list[bytes]) -> list[bytes]:
    """Of three texts, the first two as one, with a tab between them and none in the first."""
    return [row[0].replace(b"\t", b" ") + b"\t" + row[1], row[2]] if len(row) == MOST_FIELDS else row


def _fields(
    line: bytes, fields: tuple[str, ...] | None, path: str | Path, number: int, *, numbers: bool
) -> tuple[list[bytes], tuple[str, ...]]:
    """The texts of one JSON line, and the names they stand under; with `numbers`, the last of several may be one."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise messages.NOT_JSON(path=path, line=number, why=f"not JSON ({error})") from None
    if isinstance(value, dict) and isinstance(value.get("translation"), dict):
        value = value["translation"]  # as published corpora of pairs have it: {"translation": {"de": ..., "en": ...}}
        fields = fields or tuple(value)[:2]
    if not isinstance(value, dict):
        raise messages.NOT_JSON(path=path, line=number, why="not an object")
    chosen = fields or next((names for names in _SIDES if value.keys() >= set(names)), ("text",))
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


def _numbers(fields: tuple[str, ...]) -> tuple[int, ...]:
    """Columns counted from 1, as they are written, to columns counted from 0."""
    for field in fields:
        if not (field.isascii() and field.isdigit() and int(field)):
            raise InputError(
                f'"{field}" is no number of a column (text.fields). Columns count from 1, as in ["1", "2"].'
            )
    return tuple(int(field) - 1 for field in fields)


def named(fields: tuple[str, ...] | None) -> bool:
    """Whether columns are wanted by the names that a first line gives them, not by number."""
    return fields is not None and not all(field.isascii() and field.isdigit() for field in fields)


def _headed(line: bytes, fields: tuple[str, ...], path: str | Path) -> tuple[int, ...]:
    """The columns that a first line calls by these names."""
    names = [name.strip() for name in line.decode(errors="replace").split("\t")]
    for field in fields:
        if field not in names:
            raise InputError(f'{path} line 1 names no column "{field}" (text.fields). {suggest(field, names)}')
    return tuple(map(names.index, fields))


def spools(form: str, reading: Reading) -> bool:
    """Whether texts are written anew, because they do not stand in the file as they are."""
    return form == "jsonl" or (form == "tsv" and len(reading.fields or ()) == MOST_FIELDS)


_LONGEST_OBJECT = 100_000_000


def open_sides(path: str, reading: Reading, cache: Cache) -> tuple[Stored, ...]:
    """The texts of a file or folder, or of standard input ("-"): one side, or the two of a .tsv or of JSON lines.

    Of three fields the first two are the source, joined by a tab.
    """
    if reading.fields is not None and not 1 <= len(reading.fields) <= MOST_FIELDS:
        raise InputError(
            f"{len(reading.fields)} fields were named (text.fields). Name a text, a text and what belongs to it, "
            "or two texts and what belongs to them."
        )
    files = _files(_from_standard_input(cache) if path == "-" else Path(path))
    form = _form(files, path) or reading.documents
    reading = replace(reading, documents="line") if form in ("tsv", "jsonl") else reading
    before = _states(files)
    key = [[file_digest(file) for file in files], [file.suffix for file in files], form, asdict(reading)]
    own = len(files) == 1 and not spools(form, reading) and files[0].suffix != ".gz"  # read where it stands
    table = cache.table("text", key, lambda columns: _index(files, form, reading, columns, copied=not own))
    if _states(files) != before:
        raise messages.UNREADABLE(path=path, why="it was changed while it was read")
    if own:
        fetch = reader(files[0])
    else:
        text = table.columns["text"]
        fetch = reader(Path(text.filename)) if isinstance(text, np.memmap) and text.filename else _slicer(text)
    return tuple(
        Stored(fetch, table.columns[name], {**table.facts, "digest": digest_of([key, name])})
        for name in ("source", "target")
        if name in table.columns
    )


def _index(files: list[Path], form: str, reading: Reading, columns: Columns, *, copied: bool) -> Mapping[str, Any]:
    """Check files and write down where their texts are; copy the text itself where it cannot be read in place."""
    bad: list[int] = []
    windows: list[tuple[int, int]] = []
    counts: list[int] = []
    texts = place = stripped = width = 0
    spooled, header = spools(form, reading), int(form == "tsv" and named(reading.fields))
    columns.append("source", np.zeros((0, 2), dtype=np.int64))
    if copied:
        columns.append("text", np.zeros(0, dtype=np.uint8))
    for file in files:
        scan, first, written = Scan(file, reading, _LONGEST_OBJECT if form == "jsonl" else None), texts, 0
        bad_here: list[int] = []
        stream = _copied(chunks(blocks(file), scan.limit), columns, copied and not spooled)
        for sides, content in _FORMS[form](scan, stream, bad_here):
            if len(sides) != (width or len(sides)):
                what = "it has a text where the files before it have pairs, or pairs where they have a text"
                raise messages.UNREADABLE(path=file, why=what)
            width = len(sides)
            for name, bounds in zip(("source", "target"), sides):
                columns.append(name, bounds + place)
            if content is not None:
                columns.append("text", np.frombuffer(content, dtype=np.uint8))
                written += len(content)
            texts += len(sides[0])
        scan.finish()
        bad += [first + number for number in bad_here]
        stripped += scan.stripped
        counts.append(texts - first)
        if scan.windows and form != "jsonl":
            windows.append((first, first + min(texts - first, scan.lines - header)))
        place += written if spooled else scan.place
    strip = reading.control == "strip"
    return {
        "bad": bad, "stripped": stripped, "strip": strip, "windows": windows, "counts": counts, "header": header
    }  # fmt: skip


def _lines(scan: Scan, stream: Iterable[bytes], bad: list[int]) -> Found:
    for chunk in stream:
        yield (scan.read(chunk),), None
    bad += scan.bad


def _whole(scan: Scan, stream: Iterable[bytes], bad: list[int]) -> Found:
    start = None
    for chunk in stream:
        bounds = scan.read(chunk)
        start = int(bounds[0, 0]) if start is None else start
    if start is not None and start < scan.place:
        yield (np.array([[start, scan.place]]),), None
        bad += [0] if scan.bad else []


def _paragraphs(scan: Scan, stream: Iterable[bytes], bad: list[int]) -> Found:
    """Runs of lines between blank ones."""
    begin, end, number, line, spoilt = -1, -1, 0, 0, False
    for chunk in stream:
        place = scan.place
        found: list[tuple[int, int]] = []
        faulty = len(scan.bad)
        bounds = scan.read(chunk)
        lines_bad = set(scan.bad[faulty:])
        for start, stop in bounds.tolist():
            filled = bool(chunk[start - place : stop - place].strip())
            if filled:
                begin, end = (start if begin < 0 else begin), stop
                spoilt = spoilt or line in lines_bad
            elif begin >= 0:
                found.append((begin, end))
                bad += [number] if spoilt else []
                number, begin, spoilt = number + 1, -1, False
            line += 1
        yield (np.array(found, dtype=np.int64).reshape(-1, 2),), None
    if begin >= 0:
        bad += [number] if spoilt else []
        yield (np.array([[begin, end]]),), None


_FORMS = {"line": _lines, "file": _whole, "paragraph": _paragraphs, "tsv": tabs, "jsonl": objects}


def _states(files: list[Path]) -> list[tuple[int, int]]:
    """What changes when someone writes to a file."""
    return [(state.st_size, state.st_mtime_ns) for state in (file.stat() for file in files)]


def _copied(stream: Iterable[bytes], columns: Columns, copied: bool) -> Iterator[bytes]:
    for chunk in stream:
        if copied:
            columns.append("text", np.frombuffer(chunk, dtype=np.uint8))
        yield chunk


def _files(path: Path) -> list[Path]:
    """A file, or all files below a folder in order of name, but for hidden ones."""
    if not path.exists():
        raise missing(path)
    if not path.is_dir():
        return [path]
    found = sorted(
        file for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )  # fmt: skip
    if not found:
        raise messages.EMPTY_TEXT(path=path)
    return found


def _form(files: list[Path], path: str) -> str:
    """Which form files have, by their names."""
    plain = [Path(file.stem) if file.suffix == ".gz" else file for file in files]
    forms = sorted({{".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}.get(file.suffix, "") for file in plain})
    if len(forms) > 1:
        raise InputError(
            f"{path} holds files of several forms (text). Put .tsv, .jsonl and plain text into folders apart."
        )
    return forms[0]


def _from_standard_input(cache: Cache) -> Path:
    """Standard input as a file, named by its content and by the form its first line shows."""
    folder = cache.root or Path(tempfile.mkdtemp(prefix="regard-"))
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    beside = folder / f".input.{os.getpid()}.part"
    first = b""
    with open(beside, "wb") as file:
        while block := sys.stdin.buffer.read(1 << 20):
            first = first or block
            digest.update(block)
            file.write(block)
    zipped = first.startswith(b"\x1f\x8b")
    line = (zlib.decompressobj(31).decompress(first, 1 << 16) if zipped else first).partition(b"\n")[0]
    suffix = ".jsonl" if line.lstrip().startswith(b"{") else ".tsv" if line.count(b"\t") == 1 else ".txt"
    suffix += ".gz" if zipped else ""
    final = folder / f"input-{digest.hexdigest()[:40]}{suffix}"
    os.replace(beside, final)
    return final


def _slicer(text: NDArray[np.uint8]) -> Any:
    return lambda start, stop: text[start:stop].tobytes()
