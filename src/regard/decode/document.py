"""Documents, translated sentence by sentence with any translate function; a translation that was killed is resumed.

Sentences that occur twice are translated once. Those that are finished are kept in a journal beside the output, one
batch per line, so that the next run continues after the last whole batch. Batches depend on the document alone, so a
resumed translation is the same as an unbroken one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from regard.data.documents import ENDINGS, Kind, Mark, Segment, kind_of, read_document
from regard.data.documents.segments import join, protect, strip
from regard.data.sentences import split_sentences
from regard.decode.document_terms import DocumentTerms
from regard.decode.tags import (
    Weigh,
    diagonal,
    differences,
    find_atoms,
    find_numbers,
    insert_atoms,
    place_marks,
    repair_numbers,
    without_atoms,
)
from regard.decode.terms import Constraints
from regard.errors import InputError
from regard.progress import QUIET, Progress
from regard.store.files import disk_errors, read_bounded

Translate = Callable[[list[str], Sequence[Constraints]], list[str]]
"""Texts, and what their translations must be like -> the translations."""

JOURNAL = ".part"  # suffix of the journal of an output file
_JOURNAL = re.compile(rb"[0-9a-f]{0,15}\Z|[0-9a-f]{16}( |\Z)")  # how each begins, torn or whole
_MAX_BYTES = 1 << 30
_FIRST_BATCH, _BATCH = 16, 512  # sentences; small ones first, so that little is lost early
_NO_TERMS = DocumentTerms()


@dataclass(frozen=True)
class MarkedSentence:
    """A sentence to look at: what its translation does not have exactly as often as the source."""

    source: str
    translation: str
    differences: tuple[str, ...]


@dataclass(frozen=True)
class TranslatedSegments:
    """The translations of the segments of a document, and the sentences that a person should look at."""

    segments: list[Segment]
    sentences: int
    marked: tuple[MarkedSentence, ...]


@dataclass(frozen=True)
class TranslatedDocument:
    """A translated document as it is written, how many different sentences it has, and those to look at."""

    content: bytes
    sentences: int
    marked: tuple[MarkedSentence, ...]

    @property
    def text(self) -> str:
        """The document as text; a .docx has none."""
        return self.content.decode("utf-8")


@dataclass(frozen=True)
class OpenDocument:
    """A document that was read: its segments, and how it is written with their translations."""

    segments: list[Segment]
    render: Callable[[Sequence[Segment]], bytes]
    digest: str

    def sentences(self, split: Callable[[str], list[str]]) -> int:
        """How many different sentences it has."""
        return len({one for segment in self.segments for _, one, _ in sentences_of(segment, split) if one.has_words})


def open_document(document: str | Path, kind: Kind | None = None) -> OpenDocument:
    """Read a file, by its ending; or a text, if its kind is given."""
    if not isinstance(document, str | os.PathLike):
        got = "None" if document is None else type(document).__name__
        raise InputError(
            f"translate_document takes a file or a text, got {got}. Give a path, or a string and its kind."
        )
    if kind is not None and isinstance(document, str):
        return _open_text(document, kind)
    path = Path(document)
    is_docx = path.suffix.lower() == ".docx"
    found = kind or kind_of(path)
    if found is None and not is_docx:
        known = ", ".join(f".{ending}" for ending in (*ENDINGS, "docx"))
        raise InputError(f"{path} is no kind of document that is known. Known endings: {known}.")
    if not path.is_file():
        raise InputError(f"no such file: {path}. Name a document.")
    content = read_bounded(path, _MAX_BYTES)
    if is_docx:
        return _open_docx(content, path)
    assert found is not None
    try:
        return _open_text(content.decode("utf-8"), found)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 at byte {error.start:,}. Convert it, as with iconv.") from None


def _open_text(text: str, kind: Kind) -> OpenDocument:
    read = read_document(text, kind)
    return OpenDocument(read.segments, lambda found: read.render(found).encode("utf-8"), digest_of([kind, text]))


def _open_docx(content: bytes, path: Path) -> OpenDocument:
    from regard.data.documents.docx import read_docx

    read = read_docx(content, str(path))
    return OpenDocument(read.segments, read.render, hashlib.sha256(content).hexdigest())


def digest_of(value: Any) -> str:
    """A digest of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


class Journal:
    """The finished sentences of a document, on disk while it is translated; without a path, in memory."""

    def __init__(self, file: IO[bytes] | None = None, found: Mapping[str, Segment] | None = None) -> None:
        self.file, self.found = file, dict(found or {})

    def add(self, sentences: Sequence[Segment], translations: Sequence[Segment]) -> None:
        """Keep a batch; on disk it is whole or not there at all."""
        new = {_digest(sentence): translation for sentence, translation in zip(sentences, translations)}
        self.found |= new
        if self.file is not None:
            self.file.write(_line([[digest, one.text, [*map(list, one.marks)]] for digest, one in new.items()]))
            self.file.flush()
            os.fsync(self.file.fileno())


@contextmanager
def open_journal(out: Path, key: str) -> Iterator[Journal]:
    """The journal beside an output file; one of another document, model or options (`key`) is begun anew.

    It is removed when all is done, and kept when an error or a signal ends the translation.
    """
    path = out.with_name(out.name + JOURNAL)
    with disk_errors(path, 0), open(path, "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{out} is being written by another process (--out). Choose another file.") from None
        file.seek(0)
        content = file.read()
        if not _JOURNAL.match(content):
            raise InputError(f"{path} is no journal of a translation (--out). Move it, or choose another file.")
        kept, found = _read_journal(content, key)
        file.truncate(kept)
        if not kept:
            file.write(_line({"regard": "journal of a translation", "key": key}))
            file.flush()
        yield Journal(file, found)
        path.unlink(missing_ok=True)


def _read_journal(content: bytes, key: str) -> tuple[int, dict[str, Segment]]:
    """How many bytes of a journal are whole lines of this key, and the translations in them."""
    found: dict[str, Segment] = {}
    kept = 0
    for number, line in enumerate(content.splitlines(keepends=True)):
        value = _value(line)
        if value is None or (number == 0 and (not isinstance(value, dict) or value.get("key") != key)):
            break
        if number:
            found |= {digest: Segment(text, tuple(Mark(*mark) for mark in marks)) for digest, text, marks in value}
        kept += len(line)
    return kept, found


def _line(value: Any) -> bytes:
    """A line of a journal: a checksum, and JSON."""
    written = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
    return hashlib.sha256(written).hexdigest()[:16].encode() + b" " + written + b"\n"


def _value(line: bytes) -> Any:
    """What a line of a journal holds; None for one that is not whole."""
    checksum, _, written = line.rstrip(b"\n").partition(b" ")
    whole = line.endswith(b"\n") and hashlib.sha256(written).hexdigest()[:16].encode() == checksum
    return json.loads(written) if whole else None


def _digest(sentence: Segment) -> str:
    return hashlib.sha256(json.dumps([sentence.text, sentence.marks]).encode()).hexdigest()[:32]


def translate_segments(
    segments: Sequence[Segment],
    translate: Translate,
    weigh: Weigh | None = None,
    *,
    split: Callable[[str], list[str]] = split_sentences,
    terms: DocumentTerms = _NO_TERMS,
    journal: Journal | None = None,
    progress: Progress = QUIET,
) -> TranslatedSegments:
    """Translate segments sentence by sentence, with their marks.

    `weigh` gives the attention of a pair of texts; without it, marks keep their relative place. `split` cuts a text
    into sentences, which `terms` steer. Progress counts sentences that differ.
    """
    journal = journal or Journal()
    cut = [sentences_of(segment, split) for segment in segments]
    wanted = list(dict.fromkeys(one for some in cut for _, one, _ in some if one.has_words))
    for batch in _batches(wanted):
        if not all(_digest(sentence) in journal.found for sentence in batch):
            journal.add(batch, translate_sentences(batch, translate, weigh, terms))
        progress(len(batch))
    found = {sentence: journal.found[_digest(sentence)] for sentence in wanted}
    whole = [
        join(piece for before, one, after in some for piece in (Segment(before), found.get(one, one), Segment(after)))
        for some in cut
    ]
    marked = tuple(
        MarkedSentence(one.text, found[one].text, said)
        for one in wanted
        if (said := (*differences(*terms.apart(one, found[one])), *terms.unmet(one, found[one])))
    )
    unchanged = [all(found.get(one, one) == one for _, one, _ in some) for some in cut]
    kept = [old if same else new for old, new, same in zip(segments, whole, unchanged)]
    return TranslatedSegments(kept, len(wanted), marked)


def sentences_of(
    segment: Segment, split: Callable[[str], list[str]], *, protected: bool = True
) -> list[tuple[str, Segment, str]]:
    """The sentences of a segment, each between its white space; pairs of tags are numbered per sentence.

    Placeholders and addresses become atoms, if they are to be `protected`.
    """
    found = []
    for part in (protect(segment) if protected else segment).split(split(segment.text)):
        before, sentence, after = strip(part)
        pairs = {pair: number for number, pair in enumerate(dict.fromkeys(mark.pair for mark in sentence.marks))}
        marks = tuple(mark._replace(pair=-1 if mark.kind == "atom" else pairs[mark.pair]) for mark in sentence.marks)
        found.append((before, Segment(sentence.text, marks), after))
    return found


def _batches(sentences: Sequence[Segment]) -> Iterator[Sequence[Segment]]:
    start, size = 0, _FIRST_BATCH
    while start < len(sentences):
        yield sentences[start : start + size]
        start, size = start + size, min(2 * size, _BATCH)


def translate_sentences(
    sentences: Sequence[Segment], translate: Translate, weigh: Weigh | None = None, terms: DocumentTerms = _NO_TERMS
) -> list[Segment]:
    """Translate sentences with their marks.

    A sentence whose atoms the translation does not hold as they are is translated again without them.
    """
    constraints = [terms.constraints(sentence) for sentence in sentences]
    sources, targets = list(sentences), translate([sentence.text for sentence in sentences], constraints)
    lost = lost_atoms(sources, targets)
    worded = [index for index, source in lost.items() if source.has_words]
    texts = [lost[index].text for index in worded]
    again = iter(translate(texts, [constraints[index] for index in worded]) if texts else [])
    for index, source in lost.items():
        sources[index], targets[index] = source, next(again) if source.has_words else source.text
    return carry_marks(sentences, sources, targets, weigh, terms)


def lost_atoms(sentences: Sequence[Segment], targets: Sequence[str]) -> dict[int, Segment]:
    """The sentences whose atoms a translation does not hold as they are, without these atoms, by their index."""
    lost = (index for index, one in enumerate(sentences) if find_atoms(one, targets[index]) is None)
    return {index: without_atoms(sentences[index]) for index in lost}


def carry_marks(
    sentences: Sequence[Segment], sources: Sequence[Segment], targets: Sequence[str], weigh: Weigh | None,
    terms: DocumentTerms = _NO_TERMS,
) -> list[Segment]:  # fmt: skip
    """The translations with the marks and numbers of their sentences; `sources` are what was translated of them."""
    targets = _with_numbers(sources, list(targets), weigh, terms)
    weighed = _weights(sources, targets, weigh, [bool(one.marks) for one in sources])
    found = []
    for index, (sentence, source, target) in enumerate(zip(sentences, sources, targets)):
        if target == source.text:
            placed = source
        elif index in weighed:
            placed = place_marks(source, target, weighed[index], find_atoms(source, target))
        else:
            placed = Segment(target)
        found.append(placed if source is sentence else insert_atoms(placed, sentence))
    return found


def _with_numbers(
    sources: Sequence[Segment], targets: list[str], weigh: Weigh | None, terms: DocumentTerms
) -> list[str]:
    """The translations with numbers that differ from the source's replaced, where the attention says which."""
    apart = [terms.apart(source, Segment(target)) for source, target in zip(sources, targets)]
    numbers = [(find_numbers(source.text), find_numbers(target.text)) for source, target in apart]
    values = [[sorted(value for *_, value in some) for some in pair] for pair in numbers]
    weighed = _weights(sources, targets, weigh, [ours != theirs and bool(ours) for ours, theirs in values])
    return [
        repair_numbers(source.text, target, weighed[index], numbers[index])
        if weigh is not None and index in weighed
        else target
        for index, (source, target) in enumerate(zip(sources, targets))
    ]


def _weights(
    sources: Sequence[Segment], targets: Sequence[str], weigh: Weigh | None, wanted: Sequence[bool]
) -> dict[int, Tensor]:
    """The attention of the pairs that are wanted and differ; the diagonal, where nothing is known."""
    some = [index for index, one in enumerate(sources) if wanted[index] and targets[index] != one.text]
    texts, others = [sources[index].text for index in some], [targets[index] for index in some]
    found = weigh(texts, others) if weigh is not None and some else [None] * len(some)
    return {
        index: diagonal(text, other) if one is None else one
        for index, one, text, other in zip(some, found, texts, others)
    }
