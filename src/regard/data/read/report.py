"""What a corpus is like, counted before anything is learnt from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard import messages
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus, Shift, find_shift
from regard.data.read.texts import pieces, sizes_of, stripped_lines
from regard.data.samples import Samples

_BINS = 12
_BLOCK = 100_000
_BAR = 30
_SIDES = ("source", "target")


@dataclass(frozen=True)
class Spread:
    """How long the texts of a side are, in tokens: `counts[i]` of them from edges[i] to edges[i + 1] - 1."""

    tokens: int
    longest: int
    edges: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class DataReport:
    """A corpus in numbers; the texts kept and those left out add up to all texts."""

    names: tuple[str, ...]
    texts: int
    kept: int
    left_out: dict[str, int]
    stripped: int  # lines that control characters were taken from
    duplicates: int  # texts that occurred before
    overlap: tuple[int, int] | None  # validation texts that are also learnt from, of how many
    sides: tuple[Spread, ...]
    shift: Shift | None
    parts: tuple[tuple[str, int, float], ...]  # of several corpora: name, texts, weight

    def warnings(self, *, valid: str = "the validation text", listed: str = "") -> list[str]:
        """What a person should know before training."""
        said = []
        if self.left_out:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.items())
            count = self.texts - self.kept
            said.append(
                messages.LEFT_OUT(path=self.names[0], count=count, lines=self.texts, reasons=reasons, listed=listed)
            )
        if self.overlap is not None and self.overlap[0]:
            said.append(messages.OVERLAP(count=self.overlap[0], lines=self.overlap[1], path=valid))
        if self.shift is not None:
            facts = {name: value for name, value in asdict(self.shift).items() if name != "last"}
            said.append(messages.SHIFTED(path=self.names[0], **facts))
        return said

    def text(self) -> str:
        """All of it for a terminal or a file."""
        lines = [f"{'text':36}{', '.join(self.names)}", f"{'texts':36}{self.texts:>12,}"]
        lines += [f"{'  left out, ' + reason:36}{count:>12,}" for reason, count in self.left_out.items()]
        lines.append(f"{'  learnt from':36}{self.kept:>12,}")
        lines.append(f"{'duplicates':36}{self.duplicates:>12,}")
        if self.stripped:
            lines.append(f"{'control characters removed':36}{self.stripped:>12,}")
        if self.overlap is not None:
            lines.append(f"{'validation also in training':36}{self.overlap[0]:>12,} of {self.overlap[1]:,}")
        lines += [f"{'  ' + name:36}{count:>12,} x {weight:g}" for name, count, weight in self.parts]
        for name, side in zip(_SIDES if len(self.sides) > 1 else ("text",), self.sides):
            lines += ["", f"{name}: {side.tokens:,} tokens, the longest text {side.longest:,}"]
            most = max(side.counts, default=1)
            for start, stop, count in zip(side.edges, side.edges[1:], side.counts):
                bar = "#" * round(_BAR * count / max(1, most))
                lines.append(f"{f'{start:,} to {stop - 1:,}':>20} {bar:{_BAR}} {count:,}")
        return "\n".join(lines) + "\n"


def report_on(
    corpus: Corpus, samples: Samples, valid: Corpus | None, cache: Cache = Cache(), *, aligned: bool = True  # noqa: B008
) -> DataReport:  # fmt: skip
    """Count a corpus; what takes long is counted once and kept."""
    key = [corpus.digest, None if valid is None else valid.digest, aligned] if cache.root else None
    found = cache.table("report", key, lambda columns: _count(corpus, valid, aligned)).facts
    overlap, shift = found["overlap"], found["shift"]
    return DataReport(
        names=corpus.names,
        texts=len(corpus),
        kept=len(corpus) - len(samples.left_out.index),
        left_out=samples.left_out.counts(),
        stripped=sum(stripped_lines(side) for side in corpus.sides),
        duplicates=found["duplicates"],
        overlap=None if overlap is None else (overlap[0], overlap[1]),
        sides=tuple(map(_spread, samples.text_lengths)),
        shift=None if shift is None else Shift(**shift),
        parts=tuple((part.names[0], part.texts, part.weight) for part in corpus.parts) if len(corpus.parts) > 1 else (),
    )


def _count(corpus: Corpus, valid: Corpus | None, aligned: bool) -> Mapping[str, Any]:
    hashes = _hashes(corpus)
    hashes.sort()
    duplicates = int((hashes[1:] == hashes[:-1]).sum())
    overlap = None
    if valid is not None:
        wanted = _hashes(valid)
        places = np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)
        overlap = [int((hashes[places] == wanted).sum()), len(valid)]
    shift = None
    if aligned and corpus.targets is not None:
        shift = find_shift(sizes_of(corpus.sources), sizes_of(corpus.targets))
    return {"duplicates": duplicates, "overlap": overlap, "shift": None if shift is None else asdict(shift)}


def _hashes(corpus: Corpus) -> NDArray[np.int64]:
    """A number for each text or pair; equal ones have the same, and others, as good as surely, another."""
    return np.fromiter(map(hash, zip(*map(_side_hashes, corpus.sides))), dtype=np.int64, count=len(corpus))


def _side_hashes(texts: Sequence[str]) -> Iterator[int]:
    """A number for each text, never holding more than a part of one."""
    current, found = -1, 0
    for number, part in pieces(texts):
        if number != current and current >= 0:
            yield found
        found = hash(part) if number != current else hash((found, part))
        current = number
    if current >= 0:
        yield found


def _spread(lengths: NDArray[Any]) -> Spread:
    sample = _without_frame(lengths[:: max(1, len(lengths) // _BLOCK)])
    longest = total = 0
    for block in _blocks(lengths):
        longest, total = max(longest, int(block.max())), total + int(block.sum())
    usual = int(np.percentile(sample, 99)) + 1 if len(sample) else 1
    width = max(1, -(-usual // _BINS))
    edges = [*range(0, usual + width, width)]
    edges.append(max(longest, edges[-1]) + 1)
    counts = sum(
        (np.histogram(block, bins=edges)[0] for block in _blocks(lengths)), np.zeros(len(edges) - 1, int)
    ).tolist()
    if not counts[-1]:
        counts, edges = counts[:-1], edges[:-1]
    return Spread(total, longest, tuple(edges), tuple(counts))


def _blocks(lengths: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
    """The tokens of texts without begin and end, some texts at a time."""
    for start in range(0, len(lengths), _BLOCK):
        yield _without_frame(lengths[start : start + _BLOCK])


def _without_frame(lengths: NDArray[Any]) -> NDArray[np.int64]:
    return np.maximum(np.asarray(lengths, dtype=np.int64) - 2, 0)
