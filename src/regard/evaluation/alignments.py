"""Alignment error rate (Och 2003) of a model's cross-attention against gold alignments.

Gold alignments are in the form of NAACL ("1 2 3 S": sentence, source word, target word, sure or possible, counted from
1), or in that of Moses, also called Pharaoh ("1-2 3?4": words counted from 0; ? or p for possible links), line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regard.api import LoadedModel
from regard.data.read.corpus import read_lines
from regard.data.tokenize.tokenizer import word_offsets
from regard.errors import InputError

Link = tuple[int, int]
_NAACL = re.compile(r"(\d+)\s+(\d+)\s+(\d+)(?:\s+([SP]))?(?:\s+[\d.]+)?", re.IGNORECASE)
_MOSES = re.compile(r"(\d+)([-?p])(\d+)")


@dataclass(frozen=True)
class GoldAlignment:
    """The sure links of a pair, and its possible ones, which include the sure."""

    sure: frozenset[Link] = frozenset()
    possible: frozenset[Link] = frozenset()


@dataclass(frozen=True)
class AlignmentQuality:
    """The alignment error rate, with precision against possible links and recall of sure ones."""

    error_rate: float
    precision: float
    recall: float
    pairs: int
    links: int

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain data."""
        return asdict(self)

    def text(self) -> str:
        """All numbers for a terminal."""
        return (
            f"AER     {100 * self.error_rate:.2f} % of {self.pairs:,} pairs ({self.links:,} links; precision "
            f"{100 * self.precision:.2f} %, recall {100 * self.recall:.2f} %)"
        )


def read_gold(path: Path, sources: Sequence[str], targets: Sequence[str]) -> list[GoldAlignment]:
    """Read gold alignments of these pairs; a link to a word that a pair does not have is refused."""
    lines = read_lines(path)
    first = next((line.strip() for line in lines if line.strip()), "")
    found = (
        _read_naacl(path, lines, len(sources)) if _NAACL.fullmatch(first) else _read_moses(path, lines, len(sources))
    )
    for number, (gold, source, target) in enumerate(zip(found, sources, targets), 1):
        sizes = len(word_offsets(source)), len(word_offsets(target))
        for link in sorted(gold.possible):
            if link[0] >= sizes[0] or link[1] >= sizes[1]:
                raise InputError(f"{path}: pair {number:,} has {sizes[0]} and {sizes[1]} words, so it has no link "
                                 f"{link[0]}-{link[1]}, counted from 0 (--alignments). Correct it.")  # fmt: skip
    return found


def _read_moses(path: Path, lines: Sequence[str], pairs: int) -> list[GoldAlignment]:
    if len(lines) != pairs:
        raise InputError(f"{path} has {len(lines):,} lines, and there are {pairs:,} pairs (--alignments). Give one "
                         "line per pair.")  # fmt: skip
    found = []
    for number, line in enumerate(lines, 1):
        links = [_MOSES.fullmatch(one) for one in line.split()]
        if None in links:
            raise InputError(f'{path} line {number:,} is no alignment (--alignments). Write "0-0 1-2", with ? for - in '
                             "possible links.")  # fmt: skip
        found.append(_gold((int(one[1]), int(one[3]), one[2] == "-") for one in links if one))
    return found


def _read_naacl(path: Path, lines: Sequence[str], pairs: int) -> list[GoldAlignment]:
    rows: list[list[tuple[int, int, bool]]] = [[] for _ in range(pairs)]
    for number, line in enumerate(lines, 1):
        match = _NAACL.fullmatch(line.strip())
        if not line.strip():
            continue
        if match is None:
            raise InputError(f'{path} line {number:,} is no alignment (--alignments). Write "1 2 3 S": sentence, '
                             "source word, target word, S or P.")  # fmt: skip
        pair, source, target = (int(match[group]) - 1 for group in (1, 2, 3))
        if not 0 <= pair < pairs or source < 0 or target < 0:
            raise InputError(f"{path} line {number:,} is out of range: there are {pairs:,} pairs, and words are "
                             "counted from 1 (--alignments). Correct it.")  # fmt: skip
        rows[pair].append((source, target, (match[4] or "S").upper() == "S"))
    return [_gold(row) for row in rows]


def _gold(links: Iterable[tuple[int, int, bool]]) -> GoldAlignment:
    rows = list(links)
    sure = frozenset((source, target) for source, target, is_sure in rows if is_sure)
    return GoldAlignment(sure, sure | {(source, target) for source, target, _ in rows})


def evaluate_alignments(
    model: LoadedModel, sources: Sequence[str], targets: Sequence[str], gold: Sequence[GoldAlignment]
) -> AlignmentQuality:
    """Align pairs by the model's attention, and compare with gold."""
    return alignment_quality(model.align(sources, targets), gold)


def alignment_quality(found: Sequence[Sequence[Link]], gold: Sequence[GoldAlignment]) -> AlignmentQuality:
    """AER = 1 - (|A and S| + |A and P|) / (|A| + |S|) over all pairs."""
    links, sure = sum(len({*one}) for one in found), sum(len(one.sure) for one in gold)
    in_sure = sum(len({*one} & other.sure) for one, other in zip(found, gold))
    in_possible = sum(len({*one} & other.possible) for one, other in zip(found, gold))
    return AlignmentQuality(
        error_rate=1 - (in_sure + in_possible) / max(1, links + sure),
        precision=in_possible / max(1, links),
        recall=in_sure / max(1, sure),
        pairs=len(gold),
        links=links,
    )
