"""Data report: size, lengths, duplicates, overlap with validation and misalignment of a corpus, before training."""

from __future__ import annotations

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


@dataclass(frozen=True)
class LengthHistogram:
    """Histogram of text lengths in tokens: `counts[i]` texts have from edges[i] to edges[i + 1] - 1 tokens."""

    tokens: int
    max_length: int
    edges: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class DataReport:
    """A corpus in numbers; texts = kept + left out."""

    names: tuple[str, ...]
    texts: int
    kept: int
    left_out: dict[str, int]
    stripped: int  # lines from which control characters are removed
    duplicates: int  # texts that repeat an earlier one
    overlap: tuple[int, int] | None  # validation texts that are in the training text, and all validation texts
    sides: tuple[LengthHistogram, ...]
    shift: Shift | None
    subcorpora: tuple[tuple[str, int, float], ...]  # if several: name, texts, weight

    def warnings(self, *, valid: str = "the validation text", listed: str = "") -> list[str]:
        """Warnings about the corpus."""
        found = []
        if self.left_out:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.items())
            count = self.texts - self.kept
            found.append(
                messages.LEFT_OUT(path=self.names[0], count=count, lines=self.texts, reasons=reasons, listed=listed)
            )
        if self.overlap is not None and self.overlap[0]:
            found.append(messages.OVERLAP(count=self.overlap[0], lines=self.overlap[1], path=valid))
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
        if self.overlap is not None:
            lines.append(f"{'validation also in training':36}{self.overlap[0]:>12,} of {self.overlap[1]:,}")
        lines += [f"{'  ' + name:36}{count:>12,} x {weight:g}" for name, count, weight in self.subcorpora]
        for name, side in zip(_SIDES if len(self.sides) > 1 else ("text",), self.sides):
            lines += ["", f"{name}: {side.tokens:,} tokens, the longest text {side.max_length:,}"]
            most = max(side.counts, default=1)
            for start, stop, count in zip(side.edges, side.edges[1:], side.counts):
                bar = "#" * round(_BAR * count / max(1, most))
                lines.append(f"{f'{start:,} to {stop - 1:,}':>20} {bar:{_BAR}} {count:,}")
        return "\n".join(lines) + "\n"


def report_on(
    corpus: Corpus, samples: Samples, valid: Corpus | None, cache: Cache = Cache(), *, aligned: bool = True  # noqa: B008
) -> DataReport:  # fmt: skip
    """The report on a corpus; the slow counts are cached."""
    key = [corpus.digest, None if valid is None else valid.digest, aligned] if cache.root else None
    found = cache.table("report", key, lambda columns: _count(corpus, valid, aligned)).metadata
    overlap, shift = found["overlap"], found["shift"]
    parts = corpus.subcorpora if len(corpus.subcorpora) > 1 else ()
    return DataReport(
        names=corpus.names,
        texts=len(corpus),
        kept=len(corpus) - len(samples.left_out.index),
        left_out=samples.left_out.counts(),
        stripped=sum(stripped_lines(side) for side in corpus.sides),
        duplicates=found["duplicates"],
        overlap=None if overlap is None else (overlap[0], overlap[1]),
        sides=tuple(map(_histogram, samples.text_lengths)),
        shift=None if shift is None else Shift(**shift),
        subcorpora=tuple((part.names[0], part.texts, part.weight) for part in parts),
    )


def _count(corpus: Corpus, valid: Corpus | None, aligned: bool) -> Mapping[str, Any]:
    hashes = _hashes(corpus)
    hashes.sort()
    duplicates = int((hashes[1:] == hashes[:-1]).sum())
    overlap = None
    if valid is not None:
        wanted = _hashes(valid)
        nearest = np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)
        overlap = [int((hashes[nearest] == wanted).sum()), len(valid)]
    shift = None
    if aligned and corpus.targets is not None:
        shift = find_shift(byte_lengths(corpus.sources), byte_lengths(corpus.targets))
    return {"duplicates": duplicates, "overlap": overlap, "shift": None if shift is None else asdict(shift)}


def _hashes(corpus: Corpus) -> NDArray[np.int64]:
    """A 64-bit hash of each text or pair."""
    return np.fromiter(map(hash, zip(*map(_side_hashes, corpus.sides))), dtype=np.int64, count=len(corpus))


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
