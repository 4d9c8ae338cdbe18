"""Files become texts: checked once, block by block, and read from then on where they stand."""

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
LONGEST_LINE = 1_000_000
_BLOCK = 1 << 20
_IS_CONTROL = np.array([code in CONTROLS for code in range(256)])
_NEWLINE = ord("\n")


@dataclass(frozen=True)
class Reading:
    """How files become texts, and what is done about bytes that are no text."""

    documents: Documents = "file"
    bad_utf8: Literal["refuse", "skip"] = "refuse"  # skip: a text that holds such a byte is left out
    control: Literal["refuse", "strip"] = "refuse"  # strip: control characters are taken out; only NUL is refused
    fields: tuple[str, ...] | None = None  # names in JSON lines or a .tsv's first line, or numbers of columns


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with _refused(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reader(path: Path) -> Callable[[int, int], bytes]:
    """A function that reads a file from one place to another, whoever else reads it."""
    with _refused(path):
        descriptor = os.open(path, os.O_RDONLY)
    file = os.fdopen(descriptor, "rb", buffering=0)  # closed with the function that holds it

    def read(start: int, stop: int) -> bytes:
        found = [b""]
        while start < stop and (piece := os.pread(file.fileno(), min(stop - start, 1 << 30), start)):
            found.append(piece)
            start += len(piece)
        return b"".join(found)

    return read


def blocks(path: Path) -> Iterator[bytes]:
    """A file, decompressed if its name ends in .gz, in blocks."""
    with _refused(path), open(path, "rb") as raw:
        start = raw.read(2)
        zipped = path.suffix == ".gz"
        if not zipped:
            refuse_foreign(path, start)
        raw.seek(0)
        file: BinaryIO = gzip.open(raw) if zipped else raw  # type: ignore[assignment]  # noqa: SIM115
        try:
            while block := file.read(_BLOCK):
                yield block
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise messages.NOT_GZIP(path=path, why=error) from None


def chunks(stream: Iterable[bytes], limit: int | None = None) -> Iterator[bytes]:
    """Blocks cut anew, so that each ends where a line does; only a line longer than any may be is cut inside."""
    kept: list[bytes] = []
    size = 0
    for block in stream:
        end = block.rfind(b"\n") + 1
        if not end and size + len(block) <= (limit or LONGEST_LINE) + _BLOCK:
            kept.append(block)
            size += len(block)
            continue
        end = end or _character_end(block)
        yield b"".join([*kept, block[:end]])
        kept, size = [block[end:]], len(block) - end
    if size:
        yield b"".join(kept)


class Scan:
    """Checks the lines of a file chunk by chunk, and says where they are."""

    def __init__(self, path: str | Path, reading: Reading, limit: int | None = None) -> None:
        self.path, self.reading, self.limit = path, reading, limit or LONGEST_LINE
        self.lines = 0  # finished ones
        self.returns = 0  # of those, how many end in \r\n
        self.place = 0  # bytes done
        self.stripped = 0
        self.bad: list[int] = []
        self.nul: int | None = None
        self.nuls = 0
        self._open = 0  # bytes of the line that is not finished yet

    def read(self, chunk: bytes) -> Bounds:
        """Where the lines of the next chunk are: start and stop of each, without its line end."""
        codes = np.frombuffer(chunk, dtype=np.uint8)
        ends = np.flatnonzero(codes == _NEWLINE)
        stops = ends if chunk.endswith(b"\n") else np.append(ends, len(chunk))
        starts = np.append(0, stops[:-1] + 1)
        self._check_length(starts, stops)
        self._check_control(codes, stops)
        self._check_utf8(chunk, starts, stops)
        mark = 3 if not self.place and chunk.startswith(codecs.BOM_UTF8) else 0
        bounds = np.stack([starts, stops], axis=1).astype(np.int64) + self.place
        bounds[:1, 0] += mark
        self.returns += chunk.count(b"\r\n")
        self.lines += len(ends)
        self._open = 0 if chunk.endswith(b"\n") else len(chunk) - int(starts[-1]) + (0 if len(ends) else self._open)
        self.place += len(chunk)
        return bounds

    @property
    def windows(self) -> bool:
        r"""Whether every finished line ends in \r\n."""
        return 0 < self.lines == self.returns

    def finish(self) -> None:
        """Refuse what only the whole file shows."""
        if self.nul is not None:
            raise messages.NUL(path=self.path, line=self.nul, count=self.nuls, quoted=quoted(self.path))

    def _check_length(self, starts: Bounds, stops: Bounds) -> None:
        if self.reading.documents == "file":
            return
        long = np.flatnonzero(stops - starts > self.limit)
        if len(long) or self._open + int(stops[0]) > self.limit:
            line = self.lines + 1 + (int(long[0]) if len(long) else 0)
            raise messages.GIANT_LINE(path=self.path, line=line, limit=self.limit)

    def _check_control(self, codes: NDArray[np.uint8], stops: Bounds) -> None:
        if self.reading.control == "strip":
            places = np.flatnonzero(_IS_CONTROL[codes])
            self.stripped += len(np.unique(np.searchsorted(stops, places)))
            return
        places = np.flatnonzero(codes == 0)
        if len(places):
            hit = np.unique(np.searchsorted(stops, places))
            self.nul = self.nul or self.lines + 1 + int(hit[0])
            self.nuls += len(hit)

    def _check_utf8(self, chunk: bytes, starts: Bounds, stops: Bounds) -> None:
        try:
            chunk.decode()
            return
        except UnicodeDecodeError:
            pass
        for number, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist())):
            try:
                chunk[start:stop].decode()
            except UnicodeDecodeError as error:
                if self.reading.bad_utf8 == "refuse":
                    before = self._open if number == 0 else 0
                    raise bad_utf8(
                        self.path, self.lines + 1 + number, chunk[start + error.start], before + error.start
                    ) from None
                self.bad.append(self.lines + number)


def bad_utf8(path: str | Path, line: int, value: int, before: int) -> InputError:
    """What to say of a byte that is not UTF-8, with so many bytes of its line before it."""
    likely, encoding = ("Latin-1", "latin1") if value >= 0xA0 else ("Windows-1252", "cp1252")
    error = messages.BAD_UTF8(
        path=path, line=line, byte=before + 1, value=value, likely=likely, encoding=encoding, quoted=quoted(path)
    )
    assert isinstance(error, InputError)
    return error


def decode_line(line: bytes, path: str | Path, number: int) -> str:
    """The text of a line; `path` and `number` say where it stands when it is not UTF-8 or holds a NUL."""
    if b"\0" in line:
        raise messages.NUL(path=path, line=number, count=1, quoted=quoted(path))
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise bad_utf8(path, number, line[error.start], error.start) from None


def read_text(path: str | Path) -> str:
    r"""A UTF-8 file as one text, line ends included (as \n where every line ends in \r\n)."""
    scan = Scan(path, Reading())
    content = []
    for chunk in chunks(blocks(Path(path))):
        scan.read(chunk)
        content.append(chunk)
    scan.finish()
    text = b"".join(content).decode().removeprefix("\ufeff")
    return text.replace("\r\n", "\n") if scan.windows else text


def quoted(path: str | Path) -> str:
    """A path as a shell needs it; what came in through a pipe has no name."""
    return "FILE" if path == STANDARD_INPUT else shlex.quote(str(path))


def missing(path: Path) -> InputError:
    """What to say of a file that is not there, with the nearest name that is."""
    present = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, present, n=1)
    hint = f' Did you mean "{path.parent / near[0]}"?' if near else ""
    error = messages.NO_FILE(path=path, here=Path.cwd(), hint=hint)
    assert isinstance(error, InputError)
    return error


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Turn the system's word on a file that cannot be read into ours."""
    try:
        yield
    except FileNotFoundError:
        raise missing(path) from None
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise
        raise messages.UNREADABLE(path=path, why=error.strerror or error) from None


def refuse_foreign(path: str | Path, start: bytes) -> None:
    """Say what a file is that is no UTF-8 text, where its first two bytes show it."""
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise messages.UTF16(path=path, mark=start.hex(" ").upper(), quoted=quoted(path))
    if start == b"\x1f\x8b":
        raise messages.GZIP(path=path, quoted=quoted(path))


def _character_end(block: bytes) -> int:
    """Where the last whole character of a block without line ends stops."""
    for back in range(1, min(4, len(block)) + 1):
        byte = block[-back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(block) - back if length > back else len(block)
    return len(block)
