"""Texts between tabs and in JSON lines: columns by number or by name, of which two or three make a text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from regard import catalogue
from regard.errors import InputError, suggest
from regard.text.files import Reading, Scan
from regard.text.texts import Bounds

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
            raise catalogue.COLUMNS(path=scan.path, line=line + 1 + int(wrong[0]), count=count)
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
        raise catalogue.NOT_JSON(path=path, line=number, why=f"not JSON ({error})") from None
    if isinstance(value, dict) and isinstance(value.get("translation"), dict):
        value = value["translation"]  # as published corpora of pairs have it: {"translation": {"de": ..., "en": ...}}
        fields = fields or tuple(value)[:2]
    if not isinstance(value, dict):
        raise catalogue.NOT_JSON(path=path, line=number, why="not an object")
    chosen = fields or next((names for names in _SIDES if value.keys() >= set(names)), ("text",))
    if numbers and len(chosen) > 1 and isinstance(value.get(chosen[-1]), (int, float)):
        value[chosen[-1]] = json.dumps(value[chosen[-1]])
    for name in chosen:
        if not isinstance(value.get(name), str):
            raise catalogue.NOT_JSON(path=path, line=number, why=f'no text under "{name}"')
    try:
        return [value[name].encode() for name in chosen], chosen
    except UnicodeEncodeError as error:
        why = f"an unpaired surrogate (U+{ord(error.object[error.start]):04X}) is no text"
        raise catalogue.NOT_JSON(path=path, line=number, why=why) from None


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
