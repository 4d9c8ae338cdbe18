"""The forms a corpus comes in: lines, paragraphs, whole files, columns between tabs, JSON lines, folders of these."""

from __future__ import annotations

import hashlib
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

from regard import catalogue
from regard.errors import InputError
from regard.text.cache import Cache, Columns, digest_of
from regard.text.columns import MOST_FIELDS, Found, named, objects, spools, tabs
from regard.text.files import Reading, Scan, blocks, chunks, file_digest, missing, reader
from regard.text.texts import Stored

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
        raise catalogue.UNREADABLE(path=path, why="it was changed while it was read")
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
                raise catalogue.UNREADABLE(path=file, why=what)
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
        raise catalogue.EMPTY_TEXT(path=path)
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
