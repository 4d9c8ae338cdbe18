"""Data report: size, lengths, duplicates, overlap with held-out text and misalignment of a corpus, before training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard import messages
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus, Shift, find_shift
from regard.data.read.texts import byte_lengths, stripped_lines, text_parts
from regard.data.samples import Samples

_BINS = 12
_BLOCK = 100_000
_BAR = 30
_SIDES = ("source", "target")
_LONG_LINE = 40  # characters, below which lines repeat by chance
_USUAL_LINES = 0.2  # of the long lines; more means that a text stands in the training text

Hashes = NDArray[np.int64]


@dataclass(frozen=True)
class LengthHistogram:
    """Histogram of text lengths in tokens: `counts[i]` texts have from edges[i] to edges[i + 1] - 1 tokens."""

    tokens: int
    max_length: int
    edges: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Overlap:
    """How much of a held-out text also stands in the training text."""

    split: str  # "valid" or "test"
    name: str
    texts: int
    same: int  # texts or pairs that are in the training text
    same_source: int  # pairs whose source is, with another target
    lines: int  # long lines, if the texts have several
    same_lines: int  # of these, how many are lines of the training text
    words: int = 0  # of the text
    unknown_words: int = 0  # words that are not in the training text (out-of-vocabulary)

    @property
    def what(self) -> str:
        return "validation" if self.split == "valid" else self.split

    def rows(self) -> list[tuple[str, int, int]]:
        """What is counted, how many, of how many."""
        found = [(f"{self.what} also in training", self.same, self.texts)]
        found += [(f"{self.what}, only the source", self.same_source, self.texts)] if self.same_source else []
        found += [(f"{self.what}, words not in training", self.unknown_words, self.words)] if self.words else []
        return found + ([(f"{self.what}, long lines", self.same_lines, self.lines)] if self.same_lines else [])

    def warnings(self) -> list[str]:
        facts = {"what": self.what, "path": self.name}
        found = [messages.OVERLAP(count=self.same, lines=self.texts, **facts)] if self.same else []
        if self.same_source:
            found.append(messages.OVERLAP_SOURCE(count=self.same_source, lines=self.texts, **facts))
        if not self.same and self.same_lines > _USUAL_LINES * self.lines:
            found.append(messages.OVERLAP_LINES(count=self.same_lines, lines=self.lines, **facts))
        return found


@dataclass(frozen=True)
class DataReport:
    """A corpus in numbers; texts = kept + left out."""

    names: tuple[str, ...]
    texts: int
    kept: int
    left_out: dict[str, int]
    stripped: int  # lines from which control characters are removed
    duplicates: int  # texts that repeat an earlier one
    overlaps: tuple[Overlap, ...]  # of the validation text and of the test text
    sides: tuple[LengthHistogram, ...]
    shift: Shift | None
    subcorpora: tuple[tuple[str, int, float], ...]  # if several: name, texts, weight
    notes: tuple[str, ...] = ()  # warnings about how the files were read

    def warnings(self, *, listed: str = "") -> list[str]:
        """Warnings about the corpus."""
        found = list(self.notes)
        if self.left_out:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.items())
            count = self.texts - self.kept
            found.append(
                messages.LEFT_OUT(path=self.names[0], count=count, lines=self.texts, reasons=reasons, listed=listed)
            )
        found += [warning for overlap in self.overlaps for warning in overlap.warnings()]
        if self.shift is not None:
            shift = {name: value for name, value in asdict(self.shift).items() if name != "last"}
            found.append(messages.SHIFTED(path=self.names[0], **shift))
        return found

    def text(self) -> str:
        """The report as plain text."""
        lines = [f"{'text':36}{', '.join(self.names)}", f"{'texts':36}{self.texts:>12,}"]
        lines += [f"{'  left out, ' + reason:36}{count:>12,}" for reason, count in self.left_out.items()]
        lines += [f"{'  used':36}{self.kept:>12,}", f"{'duplicates':36}{self.duplicates:>12,}"]
        if self.stripped:
            lines.append(f"{'control characters removed':36}{self.stripped:>12,}")
        for overlap in self.overlaps:
            lines += [f"{what:36}{count:>12,} of {all_of:,}" for what, count, all_of in overlap.rows()]
        lines += [f"{'  ' + name:36}{count:>12,} x {weight:g}" for name, count, weight in self.subcorpora]
        for name, side in zip(_SIDES if len(self.sides) > 1 else ("text",), self.sides):
            lines += ["", f"{name}: {side.tokens:,} tokens, the longest text {side.max_length:,}"]
            most = max(side.counts, default=1)
            for start, stop, count in zip(side.edges, side.edges[1:], side.counts):
                bar = "#" * round(_BAR * count / max(1, most))
                lines.append(f"{f'{start:,} to {stop - 1:,}':>20} {bar:{_BAR}} {count:,}")
        return "\n".join(lines) + "\n"


def report_on(
    corpus: Corpus, samples: Samples, held_out: Mapping[str, Corpus], cache: Cache = Cache(), *, aligned: bool = True  # noqa: B008
) -> DataReport:  # fmt: skip
    """The report on a corpus, with the held-out texts by split; the slow counts are cached."""
    digests = [[split, held.names[0], held.digest] for split, held in held_out.items()]
    key = [corpus.digest, digests, aligned, "words"] if cache.root else None
    found = cache.table("report", key, lambda columns: _count(corpus, held_out, aligned)).metadata
    shift = found["shift"]
    parts = corpus.subcorpora if len(corpus.subcorpora) > 1 else ()
    return DataReport(
        names=corpus.names,
        texts=len(corpus),
        kept=len(corpus) - len(samples.left_out.index),
        left_out=samples.left_out.counts(),
        stripped=sum(stripped_lines(side) for side in corpus.sides),
        duplicates=found["duplicates"],
        overlaps=tuple(Overlap(**overlap) for overlap in found["overlaps"]),
        sides=tuple(map(_histogram, samples.text_lengths)),
        shift=None if shift is None else Shift(**shift),
        subcorpora=tuple((part.names[0], part.texts, part.weight) for part in parts),
        notes=tuple(dict.fromkeys(part.note for part in corpus.subcorpora if part.note)),
    )


def _count(corpus: Corpus, held_out: Mapping[str, Corpus], aligned: bool) -> Mapping[str, Any]:
    hashes = np.sort(_hashes(corpus.sides))
    duplicates = int((hashes[1:] == hashes[:-1]).sum())
    overlaps = [asdict(_overlap(corpus, hashes, split, held)) for split, held in held_out.items()]
    shift = None
    if aligned and corpus.targets is not None:
        shift = find_shift(byte_lengths(corpus.sources), byte_lengths(corpus.targets))
    return {"duplicates": duplicates, "overlaps": overlaps, "shift": None if shift is None else asdict(shift)}


def _overlap(corpus: Corpus, hashes: Hashes, split: str, held: Corpus) -> Overlap:
    """How much of a held-out text is in a corpus, whose texts have these sorted hashes."""
    same = _found_in(hashes, _hashes(held.sides))
    same_source, lines, same_lines = 0, 0, 0
    if held.targets is not None:
        sources = np.sort(_hashes((corpus.sources,)))
        same_source = int((_found_in(sources, _hashes((held.sources,))) & ~same).sum())
    elif (wanted := np.fromiter(_long_lines(held.sources), dtype=np.int64)).size:
        lines, known = len(wanted), set(wanted.tolist())
        seen = {line for line in _long_lines(corpus.sources) if line in known}
        same_lines = int(np.isin(wanted, list(seen)).sum())
    words, unknown = _unknown_words(corpus, held)
    return Overlap(split, held.names[0], len(held), int(same.sum()), same_source, lines, same_lines, words, unknown)


def _unknown_words(corpus: Corpus, held: Corpus) -> tuple[int, int]:
    """The words of a held-out text, and how many of them (out-of-vocabulary) the same side of the corpus lacks."""
    words = unknown = 0
    for side, other in zip(held.sides, corpus.sides):
        counts = Counter(word for _, part in text_parts(side) for word in part.split())
        left = set(counts)
        for _, part in text_parts(other):
            left.difference_update(part.split())
            if not left:
                break
        words, unknown = words + counts.total(), unknown + sum(counts[word] for word in left)
    return words, unknown


def _found_in(hashes: Hashes, wanted: Hashes) -> NDArray[np.bool_]:
    """Which of the wanted hashes are among these sorted ones."""
    return np.asarray(hashes[np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)] == wanted)


def _hashes(sides: Sequence[Sequence[str]]) -> Hashes:
    """A 64-bit hash of each text or pair."""
    return np.fromiter(map(hash, zip(*map(_side_hashes, sides))), dtype=np.int64, count=len(sides[0]))


def _long_lines(texts: Sequence[str]) -> Iterator[int]:
    """A hash of each long line of texts that have several lines."""
    for _, part in text_parts(texts):
        if "\n" in part:
            yield from (hash(line) for line in part.split("\n") if len(line.strip()) >= _LONG_LINE)


def _side_hashes(texts: Sequence[str]) -> Iterator[int]:
    """A hash of each text, computed part by part, so that no long text is held in memory."""
    for _, parts in groupby(text_parts(texts), key=itemgetter(0)):
        found = hash(next(parts)[1])
        for _, part in parts:  # noqa: B031 (what follows the first)
            found = hash((found, part))
        yield found


def _histogram(lengths: NDArray[Any]) -> LengthHistogram:
    sample = _without_bos_and_eos(lengths[:: max(1, len(lengths) // _BLOCK)])
    max_length = total = 0
    for block in _blocks(lengths):
        max_length, total = max(max_length, int(block.max())), total + int(block.sum())
    usual = int(np.percentile(sample, 99)) + 1 if len(sample) else 1
    width = max(1, -(-usual // _BINS))
    edges = [*range(0, usual + width, width)]
    edges.append(max(max_length, edges[-1]) + 1)
    histograms = (np.histogram(block, bins=edges)[0] for block in _blocks(lengths))
    counts = sum(histograms, np.zeros(len(edges) - 1, int)).tolist()
    if not counts[-1]:
        counts, edges = counts[:-1], edges[:-1]
    return LengthHistogram(total, max_length, tuple(edges), tuple(counts))


def _blocks(lengths: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
    """Lengths without bos and eos, block by block."""
    for start in range(0, len(lengths), _BLOCK):
        yield _without_bos_and_eos(lengths[start : start + _BLOCK])


def _without_bos_and_eos(lengths: NDArray[Any]) -> NDArray[np.int64]:
    return np.maximum(np.asarray(lengths, dtype=np.int64) - 2, 0)
