"""How good a model's names, numbers or tags are, against those that are right."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from regard.api import LoadedModel
from regard.decode.classify import UNSAID, Labelled, Numbered, Said, Tagged, Text, names_of
from regard.errors import InputError, suggest
from regard.metrics import agreement, correlation
from regard.text.corpus import Corpus
from regard.text.texts import halves

_NAMES_SHOWN = 40


@dataclass(frozen=True)
class NameRow:
    """How well a name is told: how many have it, how many of those it is given to, and of those that have it."""

    name: str
    count: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, kw_only=True)
class AnswerEvaluation:
    """What `evaluate` found of a model that says names or numbers."""

    scores: dict[str, float]
    lines: int
    judged: int  # answers: one a line, or one a word
    dropped: dict[str, int]  # lines that were not judged, by reason
    by_name: tuple[NameRow, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain data."""
        return asdict(self)

    def text(self) -> str:
        """All numbers for a terminal."""
        wide = max(map(len, self.scores))
        lines = [f"{name:<{wide}}  {value:.4f}" for name, value in self.scores.items()]
        lines[0] += f"   of {self.judged:,} answers in {self.lines:,} lines"
        lines += [f"        {count:,} lines not judged: {reason}" for reason, count in self.dropped.items()]
        lines.append(f"time    {self.seconds:.1f} s")
        if self.by_name:
            wide = max(len("name"), *(len(row.name) for row in self.by_name))
            lines += ["", f"{'name':<{wide}}  {'count':>7}  {'precision':>9}  {'recall':>6}  {'F1':>6}"]
            lines += [
                f"{row.name:<{wide}}  {row.count:>7,}  {row.precision:>9.4f}  {row.recall:>6.4f}  {row.f1:>6.4f}"
                for row in self.by_name[:_NAMES_SHOWN]
            ]
            rest = len(self.by_name) - _NAMES_SHOWN
            lines += [f"and {rest:,} more"] if rest > 0 else []
        return "\n".join(lines)


def evaluate_answers(
    model: LoadedModel, corpus: Corpus, *, progress: Callable[[float], None] = lambda done: None
) -> AnswerEvaluation:
    """What a model says of every text against the targets: accuracy and correlations."""
    start = time.perf_counter()
    assert corpus.targets is not None
    judged = [place for place, target in enumerate(corpus.targets) if target.strip()]
    if not judged:
        raise InputError(f"{corpus.names[-1]} holds no answer. Name a file with one a line.")
    progress(len(corpus) - len(judged))
    said = model.classify(_texts(corpus, judged), progress=progress)
    right = [corpus.targets[place].strip() for place in judged]
    dropped = {"no answer": len(corpus) - len(judged)} if len(judged) < len(corpus) else {}
    if model.description.readout.says == "numbers":
        numbers = np.array([_number(corpus, place, text) for place, text in zip(judged, right)])
        found = np.array([one.number for one in said if isinstance(one, Numbered)])
        scores = {**correlation(found, numbers), "mean squared error": float(((found - numbers) ** 2).mean())}
        return AnswerEvaluation(
            scores=scores, lines=len(judged), judged=len(judged), dropped=dropped,
            seconds=time.perf_counter() - start,
        )  # fmt: skip
    names = [*names_of(model.network), UNSAID]
    mine, theirs = _numbered(corpus, judged, said, right, names)
    return AnswerEvaluation(
        scores=agreement(mine, theirs),
        lines=len(judged),
        judged=len(mine),
        dropped=dropped,
        by_name=_by_name(mine, theirs, names),
        seconds=time.perf_counter() - start,
    )


def _texts(corpus: Corpus, places: Sequence[int]) -> list[Text]:
    """The texts at some places, or the pairs of texts."""
    if not corpus.joined:
        return [corpus.sources[place] for place in places]
    for place in places:
        if "\t" not in corpus.sources[place]:
            raise InputError(f"{corpus.where([place])} is one text, not two with a tab between them. Mend it.")
    first, second = halves(corpus.sources)
    return [(first[place], second[place]) for place in places]


def _numbered(
    corpus: Corpus, places: Sequence[int], said: Sequence[Said], right: Sequence[str], names: Sequence[str]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The numbers of all names that were said, and of those that are right."""
    mine: list[int] = []
    theirs: list[int] = []
    numbers = {name: number for number, name in enumerate(names)}
    for place, one, text in zip(places, said, right):
        expected = text.split() if isinstance(one, Tagged) else [text]
        given = one.tags if isinstance(one, Tagged) else (one.label,) if isinstance(one, Labelled) else ()
        if len(expected) != len(given):
            raise InputError(
                f"{corpus.where([place])}: {len(given):,} words have {len(expected):,} tags (--reference). "
                "Give each word one, all separated by spaces."
            )
        for name in expected:
            if name not in numbers:
                known = suggest(name, names[:-1])
                raise InputError(f'{corpus.where([place])}: this model knows no "{name}" (--reference). {known}')
        mine += [numbers[name] for name in given]
        theirs += [numbers[name] for name in expected]
    return np.array(mine, dtype=np.int64), np.array(theirs, dtype=np.int64)


def _by_name(mine: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any], names: Sequence[str]) -> tuple[NameRow, ...]:
    """How well each name that occurs is told."""
    hits, given, there = (
        np.bincount(some, minlength=len(names)) for some in (mine[mine == theirs], mine, theirs)
    )  # fmt: skip
    return tuple(
        NameRow(
            name,
            int(there[place]),
            float(hits[place] / max(1, given[place])),
            float(hits[place] / max(1, there[place])),
            float(2 * hits[place] / (given[place] + there[place])),
        )
        for place, name in enumerate(names)
        if given[place] + there[place]
    )


def _number(corpus: Corpus, place: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f'{corpus.where([place])}: "{text[:40]}" is no number (--reference). Mend it.')
    return value
