"""Corpora: documents, or pairs of source and target, from files or embedded; and a check that pairs are aligned."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard import messages
from regard.data.corpora import Split
from regard.data.corpora.chorales import is_music, read_chorales, text_of, transposed
from regard.data.read.cache import Cache, digest_of
from regard.data.read.formats import open_sides
from regard.data.read.split import HeldOut, split_texts
from regard.data.read.texts import (
    ChainedTexts,
    ReadOptions,
    StoredTexts,
    bad_utf8_texts,
    byte_lengths,
    prefixed,
    texts_digest,
)
from regard.errors import InputError, suggest
from regard.extras import extra

_MAX_RANGES = 6  # of line numbers in a message

# Detection of shifted pairs
_LAGS = (-2, -1, 1, 2)
_MIN_CONFIDENCE = 7.0  # standard deviations; chance reaches about 5 in ten thousand lines
_MIN_CORRELATION = 0.3  # below this, lengths say nothing about pairs
_MIN_LINES = 30
_MIN_GAIN = 0.1  # by how much the correlation must rise when lines are moved
_BLOCK = 100_000
_MAX_SAMPLE = 100_000

Lengths = NDArray[np.int64]


@dataclass(frozen=True)
class Subcorpus:
    """A part of a corpus: so many texts from one source, each of which comes `weight` times per epoch."""

    names: tuple[str, ...]
    texts: int
    weight: float = 1.0
    header: int = 0  # lines before the first text
    lines: Lengths | None = field(default=None, compare=False)  # which texts of the source they are; None: all
    note: str = ""  # a warning about how it is read

    def line(self, index: int) -> int:
        """The number of a text's line, counted from 1."""
        return 1 + self.header + (index if self.lines is None else int(self.lines[index]))


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents, or pairs in which target i belongs to source i."""

    sources: Sequence[str]
    targets: Sequence[str] | None
    names: tuple[str, ...]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    subcorpora: tuple[Subcorpus, ...] = ()
    paired_sources: bool = False  # each source is two texts, separated by a tab

    def __post_init__(self) -> None:
        if not self.subcorpora:
            object.__setattr__(self, "subcorpora", (Subcorpus(self.names, len(self.sources)),))

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def sides(self) -> tuple[Sequence[str], ...]:
        """The sources, and the targets if there are any."""
        return (self.sources,) if self.targets is None else (self.sources, self.targets)

    def where(self, indices: Iterable[int]) -> str:
        """[11, 14, 19, 20, 21] -> "data/train.de:12, 15, 20-22": lines counted from 1, shortened when many."""
        ends = list(itertools.accumulate(part.texts for part in self.subcorpora))
        chosen = sorted({int(index) for index in indices})
        return "; ".join(
            _line_ranges(part.names[0], [part.line(index - (ends[number] - part.texts)) for index in run])
            for number, run in itertools.groupby(chosen, key=lambda index: bisect_right(ends, index))
            for part in [self.subcorpora[number]]
        )

    @cached_property
    def bad_utf8(self) -> frozenset[int]:
        """The indices of texts with a side that is not UTF-8; they are left out."""
        return frozenset[int]().union(*(bad_utf8_texts(side) for side in self.sides))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all texts."""
        return digest_of([texts_digest(side) for side in self.sides])


def read_lines(path: str | Path) -> list[str]:
    r"""The lines of a UTF-8 file, cut at \n only.

    A byte order mark at the start is removed, and so is the \r of a file in which every line ends in \r\n; any other
    \r stays. A last line without \n counts; after a final \n no line begins.
    """
    return list(open_sides(str(path), ReadOptions("line"), Cache())[0])


def pair_paths(pattern: str) -> tuple[Path, Path] | None:
    """data/train.{de,en} -> data/train.de and data/train.en; None for any other name."""
    match = re.fullmatch(r"([^{}]*)\{([^{},]+),([^{},]+)\}([^{}]*)", pattern)
    if match is None:
        return None
    before, first, second, after = match.groups()
    return Path(before + first + after), Path(before + second + after)


def read_corpus(
    pattern: str,
    options: ReadOptions = ReadOptions(),  # noqa: B008 (frozen)
    cache: Cache = Cache(),  # noqa: B008
    *,
    split: Split = "test",
    transpose: int = 0,
    held_out: HeldOut = HeldOut(),  # noqa: B008
) -> Corpus:
    """The pairs of data/train.{de,en}, a table or JSON lines, or the documents of a file or folder; "-" is stdin.

    A .json file holds chorales: those of a split, also transposed by up to `transpose` semitones up and down. With
    `held_out`, the texts are the split's part of a training text, which may have none.
    """
    if held_out and (is_music(pattern) or Path(pattern).is_fifo()):
        why = "has splits of its own" if is_music(pattern) else "can be read only once"
        raise InputError(f"{pattern} {why} (text.valid, text.test). Name a file instead of a share.")
    if is_music(pattern):
        return _read_music(pattern, split, transpose)
    if transpose:
        raise InputError(f"{pattern} is not a .json file of music (text.transpose). Leave out transpose.")
    pair = pair_paths(pattern)
    if pair is not None:
        whole = read_pairs(*pair, options, cache)
    else:
        sides = open_sides(pattern, options, cache)
        name = "standard input" if pattern == "-" else pattern
        _refuse_empty(name, sides[0])
        # In a folder texts are counted, not lines, so a header does not count.
        header = sides[0].header if len(sides[0].counts) == 1 else 0
        part = Subcorpus((name,), len(sides[0]), header=header, note=sides[0].note)
        paired = len(options.fields or ()) > len(sides) > 1
        targets = sides[1] if len(sides) > 1 else None
        whole = Corpus(sides[0], targets, (name,), subcorpora=(part,), paired_sources=paired)
    return _part_of(whole, split, held_out, cache) if held_out else whole


def _part_of(corpus: Corpus, split: Split, held_out: HeldOut, cache: Cache) -> Corpus:
    """The part of a corpus from files that belongs to a split."""
    stored = tuple(side for side in corpus.sides if isinstance(side, StoredTexts))
    sides, indices = split_texts(stored, split, held_out, cache)
    part = replace(corpus.subcorpora[0], texts=len(indices), lines=indices)
    return replace(corpus, sources=sides[0], targets=sides[1] if len(sides) > 1 else None, subcorpora=(part,))


def read_pairs(
    source: str | Path, target: str | Path, options: ReadOptions = ReadOptions(), cache: Cache = Cache()  # noqa: B008
) -> Corpus:  # fmt: skip
    """Two files, or folders of files, with the same number of lines."""
    by_line = replace(options, documents="line", fields=None)
    both = [open_sides(str(path), by_line, cache) for path in (source, target)]
    if any(len(sides) > 1 for sides in both):
        raise InputError(f"{source} and {target} each hold pairs (text). Name them one by one, as a list.")
    (sources,), (targets,) = both
    if len(sources) == len(targets) and len(sources.counts) > 1 and sources.counts != targets.counts:
        raise InputError(
            f"single files of {source} and {target} differ in lines, though the totals agree (text). Pair file by file."
        )
    if len(sources) != len(targets):
        shift = find_shift(byte_lengths(sources), byte_lengths(targets))
        hint = "" if shift is None else f" They seem to be shifted from line {shift.line:,} on."
        raise messages.UNEQUAL_LINES(
            source=source, sources=len(sources), target=target, targets=len(targets), hint=hint
        )
    _refuse_empty(source, sources)
    return Corpus(sources, targets, (str(source), str(target)))


def with_prefix(corpus: Corpus, prefix: str) -> Corpus:
    """The corpus with a prefix before each source."""
    return replace(corpus, sources=prefixed(corpus.sources, prefix)) if prefix else corpus


def concatenate_corpora(corpora: Sequence[tuple[Corpus, float]]) -> Corpus:
    """Several corpora as one, each with its weight."""
    members = [corpus for corpus, _ in corpora]
    targets = [corpus.targets for corpus in members if corpus.targets is not None]
    paired_sources = [corpus for corpus in members if corpus.paired_sources]
    for what, found in (("pairs", targets), ("pairs of texts", paired_sources)):
        if len(found) not in (0, len(members)):
            names = ", ".join(corpus.names[0] for corpus in members)
            raise InputError(f"some of {names} are {what}, others are not (text.train). Name corpora of one kind.")
    return Corpus(
        ChainedTexts([corpus.sources for corpus in members]),
        ChainedTexts(targets) if targets else None,
        tuple(name for corpus in members for name in corpus.names),
        subcorpora=tuple(replace(part, weight=weight) for corpus, weight in corpora for part in corpus.subcorpora),
        paired_sources=bool(paired_sources),
    )


def embedded_corpus(name: str, split: Split) -> Corpus:
    """A corpus that needs no download: "dates" (pairs), "languages" (labelled texts) or "python" (documents)."""
    if name == "dates":
        with extra("demo", "the corpus dates"):
            from regard.data.corpora.dates import date_lines

        lines = date_lines(split)
        groups = {"language": [line.language for line in lines], "dates": [str(line.dates) for line in lines]}
        return Corpus([line.source for line in lines], [line.target for line in lines], (name,), groups)
    if name == "python":
        from regard.data.corpora.python_source import python_documents

        return Corpus([text for _, text in python_documents(split)], None, (name,))
    if name == "languages":
        with extra("demo", "the corpus languages"):
            from regard.data.corpora.languages import language_lines

        labelled = language_lines(split)
        return Corpus([line.text for line in labelled], [line.language for line in labelled], (name,))
    known = ["dates", "languages", "python"]
    raise InputError(f'no embedded corpus is called "{name}" (text.corpus). {suggest(name, known)}')


def _read_music(path: str, split: Split, transpose: int) -> Corpus:
    """One text per chorale: first in the original keys, then a subcorpus for each transposition."""
    chorales = read_chorales(path, split)
    _refuse_empty(path, chorales)
    texts: list[str] = []
    subcorpora: list[Subcorpus] = []
    for shift, moved in transposed(chorales, transpose):
        if moved:
            texts += map(text_of, moved)
            subcorpora.append(Subcorpus((f"{path} {shift:+d}" if shift else path,), len(moved)))
    return Corpus(texts, None, (path,), subcorpora=tuple(subcorpora))


def _line_ranges(name: str, numbers: list[int]) -> str:
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    ranges = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:_MAX_RANGES]]
    rest = sum(len(run) for run in runs[_MAX_RANGES:])
    return f"{name}:{', '.join(ranges)}" + (f" and {rest:,} more" if rest else "")


def _refuse_empty(path: str | Path, texts: Sequence[object]) -> None:
    if not texts:
        raise messages.EMPTY_TEXT(path=path)


@dataclass(frozen=True)
class Shift:
    """Misaligned pairs: from `line` (counted from 1) to `last`, targets fit the source `lag` lines further better."""

    line: int
    last: int
    lag: int
    before: float  # correlation of lengths outside these lines
    after: float  # inside
    shifted: float  # inside, when the targets are moved


def find_shift(sources: Lengths, targets: Lengths) -> Shift | None:
    """Find where the pairs of a parallel corpus become misaligned, from the lengths of their texts.

    In aligned text long sources have long targets. For each lag a running sum counts how much better the lengths
    agree unmoved than moved by the lag; it rises while pairs are aligned, and a long fall shows that they are not.
    """
    count = min(len(sources), len(targets))
    if count < 2 * _MIN_LINES:
        return None
    falls = {lag: _longest_fall(sources[:count], targets[:count], lag) for lag in _LAGS}
    lag = max(falls, key=lambda lag: falls[lag][0])
    confidence, start, stop = falls[lag]
    outside = count - (stop - start)
    rows = _sample(0, outside)
    rows += (rows >= start) * (stop - start)
    before = _correlation(sources[rows], targets[rows])
    if confidence < _MIN_CONFIDENCE or min(stop - start, outside) < _MIN_LINES or before < _MIN_CORRELATION:
        return None
    inside, moved = _sample(start, stop), _sample(max(start, -lag), min(stop, count - lag))
    after = _correlation(sources[inside], targets[inside])
    shifted = _correlation(sources[moved + lag], targets[moved])
    if shifted < after + _MIN_GAIN:  # as in text that is sorted by length
        return None
    return Shift(start + 1, stop, lag, before, after, shifted)


def _longest_fall(sources: Lengths, targets: Lengths, lag: int) -> tuple[float, int, int]:
    """The longest fall of the running sum for a lag: its confidence, first line and stop."""
    count = len(sources)
    scales = [_mean_and_deviation(side) for side in (sources, targets)]
    total = square = peak = 0.0
    peak_line, fall, found = 0, 0.0, (0, 0)
    for first in range(0, count, _BLOCK):
        rows = np.arange(first, min(count, first + _BLOCK))
        own, other = np.log1p(sources[rows]), np.log1p(sources[np.clip(rows + lag, 0, count - 1)])
        target = (np.log1p(targets[rows]) - scales[1][0]) / scales[1][1]
        gain = np.clip(target * (own - other) / scales[0][1], -4, 4)
        square += float(gain @ gain)
        running = total + np.cumsum(gain)
        peaks = np.maximum.accumulate(np.maximum(running, peak))
        falls = peaks - running
        lowest = int(falls.argmax())
        if falls[lowest] > fall:
            fall = float(falls[lowest])
            higher = np.flatnonzero(running[: lowest + 1] == peaks[lowest])
            found = (first + int(higher[0]) + 1 if len(higher) else peak_line), first + lowest + 1
        if peaks[-1] > peak:
            peak, peak_line = float(peaks[-1]), first + int(running.argmax()) + 1
        total = float(running[-1])
    length = max(1, found[1] - found[0])
    return fall / max(1e-9, np.sqrt(square / count * length)), found[0], found[1]


def _sample(start: int, stop: int) -> Lengths:
    """Lines from `start` to `stop`, evenly thinned out when there are very many."""
    return np.arange(start, stop, max(1, (stop - start) // _MAX_SAMPLE))


def _mean_and_deviation(side: Lengths) -> tuple[float, float]:
    sample = np.log1p(side[_sample(0, len(side))])
    return float(sample.mean()), max(1e-9, float(sample.std()))


def _correlation(one: Lengths, other: Lengths) -> float:
    one, other = np.log1p(one), np.log1p(other)
    if len(one) < 2 or one.std() < 1e-9 or other.std() < 1e-9:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])
