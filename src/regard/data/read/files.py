"""Reading text files: block by block, decompressed, and checked for UTF-8, control characters and line length."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import os
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from regard import messages
from regard.data.read.texts import CONTROLS, Bounds
from regard.errors import InputError

Documents = Literal["file", "line", "paragraph"]

STANDARD_INPUT = "standard input"
MAX_LINE_BYTES = 1_000_000
_BLOCK = 1 << 20
_IS_CONTROL = np.array([code in CONTROLS for code in range(256)])
_NEWLINE = ord("\n")


@dataclass(frozen=True)
class ReadOptions:
    """How files are cut into texts, and what happens to bytes that are not text."""

    documents: Documents = "file"
    bad_utf8: Literal["refuse", "skip"] = "refuse"  # skip: a text with such a byte is left out
    control: Literal["refuse", "strip"] = "refuse"  # strip: remove control characters; refuse: only NUL is refused
    fields: tuple[str, ...] | None = None  # names in JSON lines or in the header of a .tsv, or numbers of columns


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with _file_errors(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def range_reader(path: Path) -> Callable[[int, int], bytes]:
    """A function that reads the bytes of a file from one offset to another; several threads may call it at once."""
    with _file_errors(path):
        descriptor = os.open(path, os.O_RDONLY)
    file = os.fdopen(descriptor, "rb", buffering=0)  # closed with the function that holds it

    def read(start: int, stop: int) -> bytes:
        found = [b""]
        while start < stop and (block := os.pread(file.fileno(), min(stop - start, 1 << 30), start)):
            found.append(block)
            start += len(block)
        return b"".join(found)

    return read


def read_blocks(path: Path) -> Iterator[bytes]:
    """The blocks of a file, decompressed if its name ends in .gz."""
    with _file_errors(path), open(path, "rb") as raw:
        start = raw.read(2)
        zipped = path.suffix == ".gz"
        if not zipped:
            refuse_utf16_and_gzip(path, start)
        raw.seek(0)
        file: BinaryIO = gzip.open(raw) if zipped else raw  # type: ignore[assignment]  # noqa: SIM115
        try:
            while block := file.read(_BLOCK):
                yield block
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise messages.NOT_GZIP(path=path, why=error) from None


def line_blocks(blocks: Iterable[bytes], limit: int | None = None) -> Iterator[bytes]:
    """Blocks that end at line ends; only a line above the size limit is cut inside."""
    kept: list[bytes] = []
    size = 0
    for block in blocks:
        end = block.rfind(b"\n") + 1
        if not end and size + len(block) <= (limit or MAX_LINE_BYTES) + _BLOCK:
            kept.append(block)
            size += len(block)
            continue
        end = end or _last_character_end(block)
        yield b"".join([*kept, block[:end]])
        kept, size = [block[end:]], len(block) - end
    if size:
        yield b"".join(kept)


class Scan:
    """Checks the lines of a file block by block, and finds their byte offsets."""

    def __init__(self, path: str | Path, options: ReadOptions, limit: int | None = None) -> None:
        self.path, self.options, self.limit = path, options, limit or MAX_LINE_BYTES
        self.lines = 0  # finished lines
        self.crlf_lines = 0  # finished lines that end in \r\n
        self.offset = 0  # bytes scanned
        self.stripped = 0  # lines from which control characters are removed
        self.bad_utf8: list[int] = []
        self.first_nul: int | None = None
        self.nul_lines = 0
        self._open = 0  # bytes of the unfinished line

    def read(self, block: bytes) -> Bounds:
        """The start and stop offset of each line of the next block, without line ends."""
        codes = np.frombuffer(block, dtype=np.uint8)
        ends = np.flatnonzero(codes == _NEWLINE)
        stops = ends if block.endswith(b"\n") else np.append(ends, len(block))
        starts = np.append(0, stops[:-1] + 1)
        self._check_length(starts, stops)
        self._check_control(codes, stops)
        self._check_utf8(block, starts, stops)
        mark = 3 if not self.offset and block.startswith(codecs.BOM_UTF8) else 0
        bounds = np.stack([starts, stops], axis=1).astype(np.int64) + self.offset
        bounds[:1, 0] += mark
        self.crlf_lines += block.count(b"\r\n")
        self.lines += len(ends)
        self._open = 0 if block.endswith(b"\n") else len(block) - int(starts[-1]) + (0 if len(ends) else self._open)
        self.offset += len(block)
        return bounds

    @property
    def crlf(self) -> bool:
        r"""Whether every finished line ends in \r\n."""
        return 0 < self.lines == self.crlf_lines

    def finish(self) -> None:
        """Raise the error that needs a count over the whole file."""
        if self.first_nul is not None:
            raise messages.NUL(
                path=self.path, line=self.first_nul, count=self.nul_lines, quoted=shell_quoted(self.path)
            )

    def _check_length(self, starts: Bounds, stops: Bounds) -> None:
        if self.options.documents == "file":
            return
        long = np.flatnonzero(stops - starts > self.limit)
        if len(long) or self._open + int(stops[0]) > self.limit:
            line = self.lines + 1 + (int(long[0]) if len(long) else 0)
            raise messages.GIANT_LINE(path=self.path, line=line, limit=self.limit)

    def _check_control(self, codes: NDArray[np.uint8], stops: Bounds) -> None:
        if self.options.control == "strip":
            offsets = np.flatnonzero(_IS_CONTROL[codes])
            self.stripped += len(np.unique(np.searchsorted(stops, offsets)))
            return
        offsets = np.flatnonzero(codes == 0)
        if len(offsets):
            lines = np.unique(np.searchsorted(stops, offsets))
            self.first_nul = self.first_nul or self.lines + 1 + int(lines[0])
            self.nul_lines += len(lines)

    def _check_utf8(self, block: bytes, starts: Bounds, stops: Bounds) -> None:
        try:
            block.decode()
            return
        except UnicodeDecodeError:
            pass
        for number, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist())):
            try:
                block[start:stop].decode()
            except UnicodeDecodeError as error:
                if self.options.bad_utf8 == "refuse":
                    before = self._open if number == 0 else 0
                    raise utf8_error(
                        self.path, self.lines + 1 + number, block[start + error.start], before + error.start
                    ) from None
                self.bad_utf8.append(self.lines + number)


def utf8_error(path: str | Path, line: int, value: int, before: int) -> InputError:
    """The error for a byte that is not UTF-8, with `before` bytes before it in its line."""
    likely, encoding = ("Latin-1", "latin1") if value >= 0xA0 else ("Windows-1252", "cp1252")
    error = messages.BAD_UTF8(
        path=path, line=line, byte=before + 1, value=value, likely=likely, encoding=encoding, quoted=shell_quoted(path)
    )
    assert isinstance(error, InputError)
    return error


def decode_line(line: bytes, path: str | Path, number: int) -> str:
    """The text of a line; `path` and `number` locate it in the error when it is not UTF-8 or holds a NUL."""
    if b"\0" in line:
        raise messages.NUL(path=path, line=number, count=1, quoted=shell_quoted(path))
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise utf8_error(path, number, line[error.start], error.start) from None


def read_text(path: str | Path) -> str:
    r"""A UTF-8 file as one text, line ends included (as \n where every line ends in \r\n)."""
    scan = Scan(path, ReadOptions())
    content = []
    for block in line_blocks(read_blocks(Path(path))):
        scan.read(block)
        content.append(block)
    scan.finish()
    text = b"".join(content).decode().removeprefix("\ufeff")
    return text.replace("\r\n", "\n") if scan.crlf else text


def shell_quoted(path: str | Path) -> str:
    """A path quoted for a shell; standard input has no path, so it becomes FILE."""
    return "FILE" if path == STANDARD_INPUT else shlex.quote(str(path))


def missing_file(path: Path) -> InputError:
    """The error for a file that does not exist, with the most similar name that does."""
    present = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, present, n=1)
    hint = f' Did you mean "{path.parent / near[0]}"?' if near else ""
    error = messages.NO_FILE(path=path, here=Path.cwd(), hint=hint)
    assert isinstance(error, InputError)
    return error


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of a file that cannot be read into our message."""
    try:
        yield
    except FileNotFoundError:
        raise missing_file(path) from None
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise
        raise messages.UNREADABLE(path=path, why=error.strerror or error) from None


def refuse_utf16_and_gzip(path: str | Path, start: bytes) -> None:
    """Refuse a file whose first two bytes show UTF-16 or gzip."""
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise messages.UTF16(path=path, mark=start.hex(" ").upper(), quoted=shell_quoted(path))
    if start == b"\x1f\x8b":
        raise messages.GZIP(path=path, quoted=shell_quoted(path))


def _last_character_end(block: bytes) -> int:
    """The end of the last whole UTF-8 character of a block without line ends."""
    for back in range(1, min(4, len(block)) + 1):
        byte = block[-back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(block) - back if length > back else len(block)
    return len(block)
