"""Text as it comes: files whose lines we count as `wc -l` does, and the corpora that ship with the package."""

from __future__ import annotations

import codecs
import hashlib
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from regard.errors import InputError, suggest

if TYPE_CHECKING:
    from regard.text.split import Split

Documents = Literal["file", "line", "paragraph"]

_LONGEST_LINE = 1_000_000
_RANGES_SHOWN = 6
_PART = 100_000
_PART_END = re.compile(r"(?<=\S)(?=[ \n])")
_FOREIGN = {
    codecs.BOM_UTF16_LE: "looks like UTF-16 (BOM FF FE). Convert: iconv -f utf-16 -t utf-8 {path}.",
    codecs.BOM_UTF16_BE: "looks like UTF-16 (BOM FE FF). Convert: iconv -f utf-16 -t utf-8 {path}.",
    b"\x1f\x8b": "is gzip (1F 8B). Decompress it: gzip -dc < {path} > plain.txt.",
}


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents, or pairs in which source i and target i belong together."""

    sources: Sequence[str]
    targets: Sequence[str] | None
    names: tuple[str, ...]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sources)

    def where(self, indices: Iterable[int]) -> str:
        """[11, 14, 19, 20, 21] -> "data/train.de:12, 15, 20-22": lines counted from 1, shortened when many."""
        numbers = sorted({int(index) + 1 for index in indices})
        runs = [
            [number for _, number in run]
            for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
        ]
        shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:_RANGES_SHOWN]]
        rest = sum(len(run) for run in runs[_RANGES_SHOWN:])
        return f"{self.names[0]}:{', '.join(shown)}" + (f" and {rest:,} more" if rest else "")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all the text, each piece preceded by its length so that no two corpora look alike."""
        digest = hashlib.sha256()
        for side in (self.sources, self.targets or ()):
            digest.update(b"%d texts\n" % len(side))
            for text in side:
                encoded = text.encode()
                digest.update(b"%d\n" % len(encoded) + encoded)
        return digest.hexdigest()


def read_lines(path: str | Path) -> list[str]:
    r"""The lines of a UTF-8 file, cut at \n only.

    A byte order mark at the start is removed, and so is the \r of a file in which every line ends in \r\n; any other
    \r stays. A last line without \n counts; after a final \n no line begins.
    """
    return [line.removesuffix("\n") for line in _decoded_lines(Path(path), longest=_LONGEST_LINE)]


def read_text(path: str | Path) -> str:
    r"""A UTF-8 file as one text, line ends included (as \n where every line ends in \r\n)."""
    return "".join(_decoded_lines(Path(path), longest=None))


def pair_paths(pattern: str) -> tuple[Path, Path] | None:
    """data/train.{de,en} -> data/train.de and data/train.en; None for any other name."""
    match = re.fullmatch(r"([^{}]*)\{([^{},]+),([^{},]+)\}([^{}]*)", pattern)
    if match is None:
        return None
    before, first, second, after = match.groups()
    return Path(before + first + after), Path(before + second + after)


def read_corpus(pattern: str, *, documents: Documents = "file") -> Corpus:
    """The pairs of data/train.{de,en}, or the documents of one file: all of it, its lines or its paragraphs."""
    pair = pair_paths(pattern)
    if pair is not None:
        return read_pairs(*pair)
    if documents == "file":
        text = read_text(pattern)
        texts = [text] if text else []
    else:
        texts = read_lines(pattern)
        texts = _paragraphs(texts) if documents == "paragraph" else texts
    _refuse_empty(pattern, texts)
    return Corpus(texts, None, (pattern,))


def embedded_corpus(name: str, split: Split) -> Corpus:
    """A corpus that needs no download: "dates" (pairs) or "python" (one document a file)."""
    if name == "dates":
        from regard.text.dates import date_lines

        lines = date_lines(split)
        groups = {"language": [line.language for line in lines], "dates": [str(line.dates) for line in lines]}
        return Corpus([line.source for line in lines], [line.target for line in lines], (name,), groups)
    if name == "python":
        from regard.text.python import python_documents

        return Corpus([text for _, text in python_documents(split)], None, (name,))
    raise InputError(f'no embedded corpus is called "{name}" (text.corpus). {suggest(name, ["dates", "python"])}')


def cut_text(text: str) -> Iterator[str]:
    """A long text in parts, cut before a space, where tokens end anyway: the library needs 150 times a part's size."""
    start = 0
    while (end := _PART_END.search(text, start + _PART)) is not None:
        yield text[start : end.start()]
        start = end.start()
    yield text[start:]


def read_pairs(source: Path, target: Path) -> Corpus:
    """Two files of equally many lines."""
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise InputError(
            f"{source} has {len(sources):,} lines, {target} {len(targets):,}: they must match. "
            "Line i of one is the translation of line i of the other; find the line that is missing or split."
        )
    _refuse_empty(source, sources)
    return Corpus(sources, targets, (str(source), str(target)))


def _paragraphs(lines: list[str]) -> list[str]:
    """Runs of lines between blank ones, each as one text."""
    runs = itertools.groupby(lines, key=lambda line: bool(line.strip()))
    return ["\n".join(run) for filled, run in runs if filled]


def _refuse_empty(path: str | Path, texts: list[str]) -> None:
    if not texts:
        raise InputError(f"{path} has 0 lines. Name a file that holds text.")


def _decoded_lines(path: Path, *, longest: int | None) -> list[str]:
    r"""The lines of a file with their \n, decoded; a line of more than `longest` bytes is refused unread."""
    limit = -1 if longest is None else longest + 1
    lines = []
    try:
        with path.open("rb") as file:
            _refuse_foreign(path, file.read(2))
            file.seek(0)
            for number, line in enumerate(iter(lambda: file.readline(limit), b""), 1):
                if longest is not None and len(line) > longest:
                    raise InputError(
                        f"{path} line {number:,} is longer than {longest:,} bytes. Is it a file without line breaks? "
                        "Split it into lines."
                    )
                lines.append(decode_line(line, path, number))
    except FileNotFoundError:
        raise InputError(_missing(path)) from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. Name a readable file.") from None
    return _without_marks(lines)


def _without_marks(lines: list[str]) -> list[str]:
    r"""Lines without the byte order mark of the first, and with \n for \r\n if all of them end so."""
    lines[:1] = [line.removeprefix("\ufeff") for line in lines[:1]]
    ended = lines if not lines or lines[-1].endswith("\n") else lines[:-1]
    if ended and all(line.endswith("\r\n") for line in ended):
        return [line.removesuffix("\r\n") + "\n" for line in ended] + lines[len(ended) :]
    return lines


def decode_line(line: bytes, path: str | Path, number: int) -> str:
    """The text of a line; `path` and `number` say where it stands when it is not UTF-8 or holds a NUL."""
    if b"\0" in line:
        raise InputError(
            f"{path} line {number:,}: NUL byte. Remove it: tr -d '\\000' < {shlex.quote(str(path))} > clean.txt."
        )
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        byte = line[error.start]
        likely, encoding = ("Latin-1", "latin1") if byte >= 0xA0 else ("Windows-1252", "cp1252")
        raise InputError(
            f"{path} line {number:,}, byte {error.start + 1:,}: 0x{byte:02X} is not UTF-8 (looks like {likely}). "
            f"Convert: iconv -f {encoding} -t utf-8 {shlex.quote(str(path))}."
        ) from None


def _refuse_foreign(path: Path, start: bytes) -> None:
    if start in _FOREIGN:
        raise InputError(f"{path} {_FOREIGN[start].format(path=shlex.quote(str(path)))}")


def _missing(path: Path) -> str:
    """What to say of a file that is not there, with the nearest name that is."""
    present = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, present, n=1)
    hint = f' Did you mean "{path.parent / near[0]}"?' if near else ""
    return f"no such file: {path}. Current directory is {Path.cwd()}.{hint}"
