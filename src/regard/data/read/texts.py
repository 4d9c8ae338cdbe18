"""Sequences of texts: read from a file when asked for, several as one, changed on the way, or simply held."""

from __future__ import annotations

import codecs
import hashlib
import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from regard.data.read.cache import digest_of, forget

Bounds = NDArray[np.int64]

_BLOCK = 1 << 20
_RUN = 100_000
_PART = 100_000
_PART_END = re.compile(r"(?<=\S)(?=[ \n])")
CONTROLS = dict.fromkeys(code for code in range(32) if chr(code) not in "\t\n\r")


class Texts(Sequence[str]):
    """A sequence of texts that are not all held."""

    def at(self, place: int) -> str:
        """The text at a place, counted from the front."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self.at(range(len(self))[index])


class Stored(Texts):
    """Texts that stay where they are: each is read when it is asked for."""

    def __init__(self, fetch: Callable[[int, int], bytes], bounds: Bounds, facts: Mapping[str, Any]) -> None:
        self._fetch, self.bounds = fetch, bounds
        self.digest: str = facts["digest"]
        self.bad = frozenset[int](facts["bad"])  # texts that are not UTF-8, left out by wish
        self.counts: list[int] = facts["counts"]  # texts of each file
        self.stripped: int = facts["stripped"]  # lines that control characters were taken from
        self.header: int = facts.get("header", 0)  # lines before the first text of each file
        self._strip: bool = facts["strip"]
        self._windows = [range(*run) for run in facts["windows"]]  # texts whose lines end in \r\n

    def __len__(self) -> int:
        return len(self.bounds)

    def at(self, place: int) -> str:
        start, stop = self.bounds[place].tolist()
        return self._text(self._fetch(start, stop), place)

    def __iter__(self) -> Iterator[str]:
        for start, rows in self._runs():
            yield from self._texts(start, rows)

    def pieces(self) -> Iterator[tuple[int, str]]:
        """Every text in parts of bounded size, each with its text's number."""
        for start, rows in self._runs():
            begin, end = int(rows[0, 0]), int(rows[-1, 1])
            if end - begin > _BLOCK and start not in self.bad:  # one long text, alone
                yield from ((start, part) for part in cut_text(self._blocks(start, begin, end)))
                continue
            for number, text in enumerate(self._texts(start, rows), start):
                if len(text) <= _PART:
                    yield number, text
                else:
                    yield from ((number, part) for part in cut_text(text))

    def _runs(self) -> Iterator[tuple[int, Bounds]]:
        """Runs of neighbouring texts that are read at once, each with the number of its first."""
        for start in range(0, len(self), _RUN):
            for rows in _near(np.array(self.bounds[start : start + _RUN])):
                yield start, rows
                start += len(rows)
            forget(self.bounds)

    def _texts(self, start: int, rows: Bounds) -> Iterator[str]:
        """The texts of a run."""
        first = int(rows[0, 0])
        block = self._fetch(first, int(rows[-1, 1]))
        for place, (begin, end) in enumerate((rows - first).tolist(), start):
            yield self._text(block[begin:end], place)

    def _blocks(self, number: int, begin: int, end: int) -> Iterator[str]:
        """A text block by block, cut where a character ends and no line end is torn."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        kept = ""
        for place in range(begin, end, _BLOCK):
            last = place + _BLOCK >= end
            text = kept + decoder.decode(self._fetch(place, min(end, place + _BLOCK)), last)
            kept = "\r" if text.endswith("\r") and not last else ""
            yield self._clean(text[: len(text) - len(kept)], number)

    def _text(self, content: bytes, place: int) -> str:
        return "" if place in self.bad else self._clean(content.decode(), place)

    def _clean(self, text: str, place: int) -> str:
        if self._windows:
            run = bisect_right(self._windows, place, key=lambda run: run.start) - 1
            if run >= 0 and place in self._windows[run]:
                text = text.replace("\r\n", "\n").removesuffix("\r")
        return text.translate(CONTROLS) if self._strip else text


class Chained(Texts):
    """The texts of several sequences, one after the other."""

    def __init__(self, members: Sequence[Sequence[str]]) -> None:
        self.members = members
        self._ends = list(itertools.accumulate(map(len, members)))

    def __len__(self) -> int:
        return self._ends[-1]

    def at(self, place: int) -> str:
        member = bisect_right(self._ends, place)
        return self.members[member][place - self._ends[member] + len(self.members[member])]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self.members)


class Changed(Texts):
    """Texts that are changed one by one when they are asked for; `said` tells one change from another."""

    def __init__(self, inner: Sequence[str], change: Callable[[str], str], said: str) -> None:
        self.inner, self.change, self.said = inner, change, said

    def __len__(self) -> int:
        return len(self.inner)

    def at(self, place: int) -> str:
        return self.change(self.inner[place])

    def __iter__(self) -> Iterator[str]:
        return map(self.change, self.inner)


def prefixed(texts: Sequence[str], prefix: str) -> Sequence[str]:
    """Each text with something before it; one of nothing but space stays as it is."""
    if not prefix:
        return texts
    return Changed(texts, lambda text: prefix + text if text.strip() else text, f"{prefix} before")


def halves(texts: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What stands before the first tab of each text, and what stands behind it."""
    first = Changed(texts, lambda text: text.partition("\t")[0], "before the first tab")
    return first, Changed(texts, lambda text: text.partition("\t")[2], "behind the first tab")


def members_of(texts: Sequence[str]) -> Sequence[Sequence[str]]:
    """The sequences that a sequence of texts is made of."""
    return texts.members if isinstance(texts, Chained) else [texts]


def bad_texts(texts: Sequence[str]) -> set[int]:
    """The numbers of texts that are not UTF-8."""
    if isinstance(texts, Changed):
        return bad_texts(texts.inner)
    if not isinstance(texts, Chained):
        return set(texts.bad) if isinstance(texts, Stored) else set()
    firsts = itertools.accumulate(map(len, texts.members), initial=0)
    return {first + number for first, member in zip(firsts, texts.members) for number in bad_texts(member)}


def stripped_lines(texts: Sequence[str]) -> int:
    """How many lines control characters were taken from."""
    if isinstance(texts, Changed):
        return stripped_lines(texts.inner)
    if isinstance(texts, Chained):
        return sum(map(stripped_lines, texts.members))
    return texts.stripped if isinstance(texts, Stored) else 0


def side_digest(texts: Sequence[str]) -> str:
    """SHA-256 of texts, each piece preceded by its length; of files, made from theirs."""
    if isinstance(texts, Stored):
        return texts.digest
    if isinstance(texts, Chained):
        return digest_of([side_digest(member) for member in texts.members])
    if isinstance(texts, Changed):
        return digest_of([texts.said, side_digest(texts.inner)])
    digest = hashlib.sha256(b"%d texts\n" % len(texts))
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d\n" % len(encoded) + encoded)
    return digest.hexdigest()


def pieces(texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Every text in parts of bounded size, each with its text's number."""
    first = 0
    for member in members_of(texts):
        if isinstance(member, Stored):
            found = member.pieces()
        else:
            found = ((number, part) for number, text in enumerate(member) for part in cut_text(text))
        for number, part in found:
            yield first + number, part
        first += len(member)


def sizes_of(texts: Sequence[str], start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
    """How long texts are, in bytes, before they are changed: all of them, or those from `start` to `stop`."""
    stop = len(texts) if stop is None else stop
    if isinstance(texts, Changed):
        return sizes_of(texts.inner, start, stop)
    if isinstance(texts, Stored):
        bounds = texts.bounds[start:stop]
        return np.asarray(bounds[:, 1] - bounds[:, 0])
    if not isinstance(texts, Chained):
        return np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts[start:stop]], np.int64)
    found, first = [np.zeros(0, dtype=np.int64)], 0
    for member in texts.members:
        found.append(sizes_of(member, max(0, start - first), max(0, min(len(member), stop - first))))
        first += len(member)
    return np.concatenate(found)


def cut_text(text: str | Iterable[str]) -> Iterator[str]:
    """A long text in parts, cut before a space, where tokens end anyway: the library needs 150 times a part's size."""
    kept = ""
    for block in [text] if isinstance(text, str) else text:
        kept, start = kept + block, 0
        while (end := _PART_END.search(kept, start + _PART)) is not None:
            yield kept[start : end.start()]
            start = end.start()
        kept = kept[start:]
    yield kept


def _near(bounds: Bounds) -> Iterator[Bounds]:
    """Runs of neighbouring texts that are read at once: of bounded size, unless one alone is larger."""
    start = 0
    while start < len(bounds):
        limit = bounds[start, 0] + _BLOCK
        stop = max(start + 1, int(np.searchsorted(bounds[:, 1], limit, side="right")))
        yield bounds[start:stop]
        start = stop
