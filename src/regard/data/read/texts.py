"""Lazy sequences of texts: read from a file on access, concatenated, or mapped by a function; a list works as well."""

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

from regard.data.read.cache import digest_of, release_pages

Bounds = NDArray[np.int64]
"""Start and stop offset of each text, in bytes."""

_BLOCK = 1 << 20
_RUN = 100_000
_PART = 100_000
_PART_END = re.compile(r"(?<=\S)(?=[ \n])")
CONTROLS = dict.fromkeys(code for code in range(32) if chr(code) not in "\t\n\r")


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
        self._fetch, self.bounds = fetch, bounds
        self.digest: str = metadata["digest"]
        self.bad_utf8 = frozenset[int](metadata["bad_utf8"])  # indices of texts left out because of it
        self.counts: list[int] = metadata["counts"]  # texts per file
        self.stripped: int = metadata["stripped"]  # lines from which control characters are removed
        self.header: int = metadata["header"]  # lines before the first text of each file
        self._strip: bool = metadata["strip"]
        self._crlf = [range(*run) for run in metadata["crlf"]]  # indices of texts whose lines end in \r\n

    def __len__(self) -> int:
        return len(self.bounds)

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
        return text.translate(CONTROLS) if self._strip else text


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
