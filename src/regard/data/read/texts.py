"""Texts in files: read block by block, decompressed and checked; and lazy sequences of texts, read on access."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import itertools
import os
import re
import select
import shlex
import stat
import sys
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO, Literal, overload

import numpy as np
from numpy.typing import NDArray

from regard import messages
from regard.data.read.cache import digest_of, release_pages
from regard.data.read.columnar import BINARY_TABLES, table_blocks, zstd_blocks
from regard.errors import RegardError

Documents = Literal["file", "line", "paragraph"]

Bounds = NDArray[np.int64]
"""Start and stop offset of each text, in bytes."""

STANDARD_INPUT = "standard input"
MAX_LINE_BYTES = 1_000_000
_BLOCK = 1 << 20
_MAX_WAIT = 10.0  # seconds until somebody opens a pipe to write to it
CHANGED = "it was changed while it was read"
_DEVICE = "it is a device, not a file"
_RUN = 100_000
_PART = 100_000
_PART_END = re.compile(r"(?<=\S)(?=[ \n])")
_CONTROLS = dict.fromkeys(code for code in range(32) if chr(code) not in "\t\n\r")
_IS_CONTROL = np.array([code in _CONTROLS for code in range(256)])


@dataclass(frozen=True)
class ReadOptions:
    """How files are cut into texts, and what happens to bytes that are not text."""

    documents: Documents = "file"
    bad_utf8: Literal["refuse", "skip"] = "refuse"  # skip: a text with such a byte is left out
    control: Literal["refuse", "strip"] = "refuse"  # strip: remove control characters; refuse: only NUL is refused
    fields: tuple[str, ...] | None = None  # names in JSON lines or in the header of a .tsv, or numbers of columns


def read_blocks(path: Path) -> Iterator[bytes]:
    """The blocks of a file, decompressed if its name ends in .gz or .zst; a binary table as JSON lines."""
    if path.suffix in BINARY_TABLES:
        yield from table_blocks(path)
        return
    if path.suffix == ".zst":
        yield from zstd_blocks(path, _BLOCK)
        return
    with file_errors(path), open(path, "rb") as raw:
        zipped = path.suffix == ".gz"
        file: BinaryIO = gzip.open(raw) if zipped else raw  # type: ignore[assignment]  # noqa: SIM115
        try:
            start = b"" if zipped else raw.read(4)  # a pipe cannot be read twice
            refuse_utf16_and_gzip(path, start)
            while block := start + file.read(max(0, _BLOCK - len(start))):
                yield block
                start = b""
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise messages.NOT_GZIP(path=path, why=error) from None


def input_blocks() -> Iterator[bytes]:
    """The blocks of standard input, as they come."""
    with file_errors(Path(STANDARD_INPUT)):
        if not sys.stdin.readable():
            raise messages.UNREADABLE(path=STANDARD_INPUT, why="it is closed")
        with suppress(io.UnsupportedOperation):
            state = os.fstat(sys.stdin.fileno())
            endless = stat.S_ISCHR(state.st_mode) and not os.path.samestat(state, os.stat(os.devnull))
            if endless and not sys.stdin.isatty():
                raise messages.UNREADABLE(path=STANDARD_INPUT, why=_DEVICE)
        while block := sys.stdin.buffer.read1(_BLOCK):  # type: ignore[union-attr]
            yield block


def pipe_blocks(path: Path) -> Iterator[bytes]:
    """The blocks of a named pipe, or of `<(a command)`; an error if nobody writes to it."""
    with file_errors(path):
        pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not select.select([pipe], [], [], _MAX_WAIT)[0]:
                with suppress(BlockingIOError):  # somebody has it open, and has written nothing yet
                    if not (first := os.read(pipe, _BLOCK)):
                        raise messages.UNREADABLE(path=path, why="nobody writes to this pipe")
                    yield first
            os.set_blocking(pipe, True)
            while block := os.read(pipe, _BLOCK):
                yield block
        finally:
            os.close(pipe)


def refuse_device(path: Path) -> None:
    """Refuse a device, whose bytes may never end."""
    if path.is_char_device() or path.is_block_device():
        raise messages.UNREADABLE(path=path, why=_DEVICE)


def line_blocks(path: Path, limit: int | None = None) -> Iterator[bytes]:
    """The blocks of a file, cut at line ends; only a line above the size limit is cut inside."""
    kept: list[bytes] = []
    size = 0
    for block in read_blocks(path):
        end = block.rfind(b"\n") + 1
        if not end and size + len(block) <= (limit or MAX_LINE_BYTES) + _BLOCK:
            kept.append(block)
            size += len(block)
            continue
        if not end:  # cut behind the last whole character
            end = codecs.utf_8_decode(block, "ignore", False)[1]
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
        ends = np.flatnonzero(codes == ord("\n"))
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
        with suppress(UnicodeDecodeError):
            block.decode()
            return
        for number, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist()), self.lines):
            try:
                block[start:stop].decode()
            except UnicodeDecodeError as error:
                if self.options.bad_utf8 == "refuse":
                    before = error.start + (self._open if start == 0 else 0)
                    raise utf8_error(self.path, number + 1, block[start + error.start], before) from None
                self.bad_utf8.append(number)


def utf8_error(path: str | Path, line: int, value: int, before: int) -> RegardError:
    """The error for a byte that is not UTF-8, with `before` bytes before it in its line."""
    likely, encoding = ("Latin-1", "latin1") if value >= 0xA0 else ("Windows-1252", "cp1252")
    return messages.BAD_UTF8(
        path=path, line=line, byte=before + 1, value=value, likely=likely, encoding=encoding, quoted=shell_quoted(path)
    )


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
    for block in line_blocks(Path(path)):
        scan.read(block)
        content.append(block)
    scan.finish()
    text = b"".join(content).decode().removeprefix("\ufeff")
    return text.replace("\r\n", "\n") if scan.crlf else text


def shell_quoted(path: str | Path) -> str:
    """A path quoted for a shell; standard input has no path, so it becomes FILE."""
    return "FILE" if path == STANDARD_INPUT else shlex.quote(str(path))


def missing_file(path: Path) -> RegardError:
    """The error for a file that does not exist, with the most similar name that does."""
    present = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, present, n=1)
    hint = f' Did you mean "{path.parent / near[0]}"?' if near else ""
    return messages.NO_FILE(path=path, here=Path.cwd(), hint=hint)


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
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
    """Refuse a file whose first four bytes show UTF-16, UTF-32 or gzip."""
    for mark in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        if start.startswith(mark):
            encoding, shown = f"UTF-{8 * len(mark)}", mark.hex(" ").upper()
            raise messages.UTF16(path=path, encoding=encoding, mark=shown, quoted=shell_quoted(path))
    if start.startswith(b"\x1f\x8b"):
        raise messages.GZIP(path=path, quoted=shell_quoted(path))


def file_state(file: Path | int) -> tuple[int, int]:
    """Size and modification time of a file, or of an open one."""
    found = os.stat(file)
    return found.st_size, found.st_mtime_ns


def read_range(file: BinaryIO, start: int, stop: int) -> bytes:
    """The bytes of a file from one offset to another; several threads may read at once."""
    found = [b""]
    while start < stop and (block := os.pread(file.fileno(), min(stop - start, 1 << 30), start)):
        found.append(block)
        start += len(block)
    return b"".join(found)


class FileInPlace:
    """A file whose texts are read where they are. Lines may be added to it, but what it held must stay.

    `state` and `digest` are those of the file when its texts were found.
    """

    def __init__(self, path: Path, state: tuple[int, int], digest: str) -> None:
        self.path, self.state, self.size, self.digest = path, state, state[0], digest
        with file_errors(path):
            self.file = open(path, "rb", buffering=0)  # noqa: SIM115 (closed with the object that holds it)

    def __call__(self, start: int, stop: int) -> bytes:
        found, now = read_range(self.file, start, stop), file_state(self.file.fileno())
        if now != self.state:
            self._require_same()
            self.state = now
        return found

    def _require_same(self) -> None:
        digest = hashlib.sha256()
        for start in range(0, self.size, _BLOCK):
            digest.update(read_range(self.file, start, min(self.size, start + _BLOCK)))
        if digest.hexdigest() != self.digest:
            raise messages.UNREADABLE(path=self.path, why=CHANGED)


class Texts(Sequence[str]):
    """A sequence of texts that need not be in memory."""

    def at(self, index: int) -> str:
        """The text at an index that is not negative."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        return self.at(range(len(self))[index])


class StoredTexts(Texts):
    """Texts in a file; each is read when it is accessed."""

    def __init__(self, fetch: Callable[[int, int], bytes], bounds: Bounds, metadata: Mapping[str, Any]) -> None:
        self._fetch, self.bounds, self._metadata = fetch, bounds, metadata
        self.digest: str = metadata["digest"]
        self.bad_utf8 = frozenset[int](metadata["bad_utf8"])  # indices of texts left out because of it
        self.counts: list[int] = metadata["counts"]  # texts per file
        self.stripped: int = metadata["stripped"]  # lines from which control characters are removed
        self.header: int = metadata["header"]  # lines before the first text of each file
        self.note: str = metadata.get("note", "")  # a warning about how the files are read
        self.whole_files: bool = metadata.get("whole_files", False)  # a text is a whole file
        self._strip: bool = metadata["strip"]
        self._crlf = [range(*run) for run in metadata["crlf"]]  # indices of texts whose lines end in \r\n

    def __len__(self) -> int:
        return len(self.bounds)

    def part(self, indices: NDArray[np.int64], bounds: Bounds, name: str) -> StoredTexts:
        """The texts with these indices, each within these bounds; `name` identifies the part in digests."""
        ends = np.searchsorted(indices, np.cumsum([0, *self.counts]))
        return StoredTexts(self._fetch, bounds, {
            **self._metadata,
            "digest": digest_of([name, self.digest]),
            "bad_utf8": np.flatnonzero(np.isin(indices, list(self.bad_utf8))).tolist() if self.bad_utf8 else [],
            "crlf": [np.searchsorted(indices, [run.start, run.stop]).tolist() for run in self._crlf],
            "counts": np.diff(ends).tolist(),
        })  # fmt: skip

    def raw(self, start: int, stop: int) -> bytes:
        """The bytes between two offsets."""
        return self._fetch(start, stop)

    def at(self, index: int) -> str:
        start, stop = self.bounds[index].tolist()
        return self._decode(self._fetch(start, stop), index)

    def __iter__(self) -> Iterator[str]:
        for first, bounds in self._runs():
            yield from self._read_run(first, bounds)

    def parts(self) -> Iterator[tuple[int, str]]:
        """All texts in parts of bounded size, each with the index of its text."""
        for first, bounds in self._runs():
            start, stop = int(bounds[0, 0]), int(bounds[-1, 1])
            if stop - start > _BLOCK and first not in self.bad_utf8:  # a run of one long text
                yield from ((first, part) for part in cut_text(self._read_long(first, start, stop)))
                continue
            for index, text in enumerate(self._read_run(first, bounds), first):
                if len(text) <= _PART:
                    yield index, text
                else:
                    yield from ((index, part) for part in cut_text(text))

    def _runs(self) -> Iterator[tuple[int, Bounds]]:
        """Runs of neighbouring texts that are read at once, each with the index of its first text."""
        for first in range(0, len(self), _RUN):
            for bounds in _runs_of_bounded_size(np.array(self.bounds[first : first + _RUN])):
                yield first, bounds
                first += len(bounds)
            release_pages(self.bounds)

    def _read_run(self, first: int, bounds: Bounds) -> Iterator[str]:
        offset = int(bounds[0, 0])
        block = self._fetch(offset, int(bounds[-1, 1]))
        for index, (start, stop) in enumerate((bounds - offset).tolist(), first):
            yield self._decode(block[start:stop], index)

    def _read_long(self, index: int, start: int, stop: int) -> Iterator[str]:
        r"""The blocks of a long text; no character and no \r\n is cut."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        kept = ""
        for offset in range(start, stop, _BLOCK):
            last = offset + _BLOCK >= stop
            text = kept + decoder.decode(self._fetch(offset, min(stop, offset + _BLOCK)), last)
            kept = "\r" if text.endswith("\r") and not last else ""
            yield self._clean(text[: len(text) - len(kept)], index)

    def _decode(self, content: bytes, index: int) -> str:
        return "" if index in self.bad_utf8 else self._clean(content.decode(), index)

    def _clean(self, text: str, index: int) -> str:
        if self._crlf:
            run = bisect_right(self._crlf, index, key=lambda run: run.start) - 1
            if run >= 0 and index in self._crlf[run]:
                text = text.replace("\r\n", "\n").removesuffix("\r")
        return text.translate(_CONTROLS) if self._strip else text


class ChainedTexts(Texts):
    """The texts of several sequences, concatenated."""

    def __init__(self, members: Sequence[Sequence[str]]) -> None:
        self.members = members
        self._ends = list(itertools.accumulate(map(len, members)))

    def __len__(self) -> int:
        return self._ends[-1]

    def at(self, index: int) -> str:
        member = bisect_right(self._ends, index)
        return self.members[member][index - self._ends[member] + len(self.members[member])]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self.members)


class MappedTexts(Texts):
    """Texts to each of which a function is applied on access; `name` identifies the function in digests."""

    def __init__(self, inner: Sequence[str], function: Callable[[str], str], name: str) -> None:
        self.inner, self.function, self.name = inner, function, name

    def __len__(self) -> int:
        return len(self.inner)

    def at(self, index: int) -> str:
        return self.function(self.inner[index])

    def __iter__(self) -> Iterator[str]:
        return map(self.function, self.inner)


def prefixed(texts: Sequence[str], prefix: str) -> Sequence[str]:
    """Each text with a prefix; a blank text stays as it is."""
    if not prefix:
        return texts
    return MappedTexts(texts, lambda text: prefix + text if text.strip() else text, f"{prefix} before")


def split_pairs(texts: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Texts split at their first tab: the first text of each pair, and the second."""
    first = MappedTexts(texts, lambda text: text.partition("\t")[0], "before the first tab")
    return first, MappedTexts(texts, lambda text: text.partition("\t")[2], "behind the first tab")


def bad_utf8_texts(texts: Sequence[str]) -> set[int]:
    """The indices of texts that are not UTF-8."""
    if isinstance(texts, MappedTexts):
        return bad_utf8_texts(texts.inner)
    if not isinstance(texts, ChainedTexts):
        return set(texts.bad_utf8) if isinstance(texts, StoredTexts) else set()
    firsts = itertools.accumulate(map(len, texts.members), initial=0)
    return {first + index for first, member in zip(firsts, texts.members) for index in bad_utf8_texts(member)}


def stripped_lines(texts: Sequence[str]) -> int:
    """The number of lines from which control characters are removed."""
    if isinstance(texts, MappedTexts):
        return stripped_lines(texts.inner)
    if isinstance(texts, ChainedTexts):
        return sum(map(stripped_lines, texts.members))
    return texts.stripped if isinstance(texts, StoredTexts) else 0


def texts_digest(texts: Sequence[str]) -> str:
    """SHA-256 of texts, each preceded by its length; that of files is computed from the digests of the files."""
    if isinstance(texts, StoredTexts):
        return texts.digest
    if isinstance(texts, ChainedTexts):
        return digest_of([texts_digest(member) for member in texts.members])
    if isinstance(texts, MappedTexts):
        return digest_of([texts.name, texts_digest(texts.inner)])
    digest = hashlib.sha256(b"%d texts\n" % len(texts))
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d\n" % len(encoded) + encoded)
    return digest.hexdigest()


def text_parts(texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """All texts in parts of bounded size, each with the index of its text."""
    first = 0
    for member in texts.members if isinstance(texts, ChainedTexts) else [texts]:
        if isinstance(member, StoredTexts):
            found = member.parts()
        else:
            found = ((index, part) for index, text in enumerate(member) for part in cut_text(text))
        for index, part in found:
            yield first + index, part
        first += len(member)


def byte_lengths(texts: Sequence[str], start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
    """The UTF-8 bytes of each text from `start` to `stop`, before any function of MappedTexts is applied."""
    stop = len(texts) if stop is None else stop
    if isinstance(texts, MappedTexts):
        return byte_lengths(texts.inner, start, stop)
    if isinstance(texts, StoredTexts):
        bounds = texts.bounds[start:stop]
        return np.asarray(bounds[:, 1] - bounds[:, 0])
    if not isinstance(texts, ChainedTexts):
        return np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts[start:stop]], np.int64)
    found, first = [np.zeros(0, dtype=np.int64)], 0
    for member in texts.members:
        found.append(byte_lengths(member, max(0, start - first), max(0, min(len(member), stop - first))))
        first += len(member)
    return np.concatenate(found)


def cut_text(text: str | Iterable[str]) -> Iterator[str]:
    """A long text in parts, cut before a space, where tokens end anyway: tokenizers needs 150 times a part's size."""
    kept = ""
    for block in [text] if isinstance(text, str) else text:
        kept, start = kept + block, 0
        while (end := _PART_END.search(kept, start + _PART)) is not None:
            yield kept[start : end.start()]
            start = end.start()
        kept = kept[start:]
    yield kept


def _runs_of_bounded_size(bounds: Bounds) -> Iterator[Bounds]:
    """Runs of neighbouring texts of bounded size together; a larger text is a run of one."""
    start = 0
    while start < len(bounds):
        limit = bounds[start, 0] + _BLOCK
        stop = max(start + 1, int(np.searchsorted(bounds[:, 1], limit, side="right")))
        yield bounds[start:stop]
        start = stop
