"""What a comparison of models found, as data and as tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from regard.judge.chart import short
from regard.judge.counts import Row, is_numbered
from regard.judge.plan import amount
from regard.judge.significance import SAMPLES, SEED, Estimate

TRANSLATING = {"exact": "exact match, %", "bleu": "BLEU", "chrf": "chrF"}
READING = {"bits_per_byte": "bits per byte", "perplexity": "perplexity", "loss": "nats a token"}
_NAME = 20  # letters of a name over a column
_HOW = f"paired bootstrap, {SAMPLES:,} resamples, seed {SEED}"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A model of a comparison."""

    name: str
    folder: str
    parameters: int
    training_speed: float | None  # tokens a second, the median over its run
    speed: float  # lines translated, or bytes read, a second
    memory: int  # bytes, the most held for loading and that
    beam: int
    scores: dict[str, Estimate] = field(default_factory=dict)
    rows: dict[str, tuple[Row, ...]] = field(default_factory=dict)  # by source length, then by each group
    answers: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What `compare` found; the first model is the one that the others are held against."""

    corpus: str
    texts: int  # lines or documents
    models: tuple[Contender, ...]
    device: str
    threads: int
    seconds: float = 0.0
    metric: str = ""  # what is shown by length and group
    signatures: dict[str, str] = field(default_factory=dict)
    differing: tuple[int, ...] = ()  # the lines that models answer most differently
    sources: tuple[str, ...] = field(default=(), repr=False)
    references: tuple[str, ...] = field(default=(), repr=False)

    @property
    def translates(self) -> bool:
        """Whether these models translate; else they read."""
        return bool(self.metric)

    @property
    def titles(self) -> dict[str, str]:
        """What the scores are called."""
        return TRANSLATING if self.translates else READING

    @property
    def axes(self) -> dict[str, tuple[Row, ...]]:
        """The first model's rows over whatever has an order: source length, and groups that are numbers."""
        rows = self.models[0].rows
        length = next(iter(rows), "")
        return {name: some for name, some in rows.items() if name == length or is_numbered([row.name for row in some])}

    def values(self, axis: str) -> list[tuple[float, ...]]:
        """The metric of each model, by length or by a group."""
        return [tuple(getattr(row, self.metric) for row in model.rows[axis]) for model in self.models]

    def shown(self, score: Estimate) -> str:
        """A score with its margin."""
        digits = 2 if self.translates else 4
        margin = "" if score.margin is None else f" ±{score.margin:.{digits}f}"
        return f"{score.value:.{digits}f}{margin}"

    def costs(self, model: Contender) -> dict[str, str]:
        """What a model takes."""
        training = "-" if model.training_speed is None else f"{model.training_speed:,.0f}"
        speed = f"{model.speed:,.1f}" if model.speed < 100 else f"{model.speed:,.0f}"
        doing = {"beam": str(model.beam), "decoding lines/s": speed} if self.translates else {"reading bytes/s": speed}
        size = {"parameters": f"{model.parameters:,}", "training tokens/s": training}
        return size | doing | {"peak memory": amount(model.memory)}

    def notes(self) -> list[str]:
        """What the numbers rest on."""
        tested = any(score.p is not None for model in self.models for score in model.scores.values())
        sure = f"±: half of the 95 % interval; p: of a difference from {self.models[0].name} ({_HOW})"
        doing = "decoding" if self.translates else "reading"
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return [
            sure if tested else "one text alone tells nothing of significance; give several documents",
            *(f"{self.titles[name]}: {signature}" for name, signature in self.signatures.items()),
            f"{doing} on {self.device} with {threads}, each model in its own process; memory beyond Python and torch",
        ]

    def text(self) -> str:
        """All tables for a terminal."""
        kind = "lines" if self.translates else "documents"
        parts = [f"{self.corpus}: {self.texts:,} {kind}", self._scores(), self._costs()]
        for axis, rows in self.axes.items():
            columns = [
                (f"{self.titles[self.metric]} by {axis}", [row.name for row in rows]),
                ("lines", [f"{row.lines:,}" for row in rows]),
            ]
            for model, values in zip(self.models, self.values(axis)):
                columns.append((short(model.name, _NAME), [f"{value:.2f}" for value in values]))
            parts.append(_table(columns))
        return "\n\n".join([*parts, "\n".join([*self.notes(), f"{self.seconds:.1f} s"])])

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain data, and the lines that models answer most differently."""
        plain = asdict(self)
        del plain["sources"], plain["references"]
        for model in plain["models"]:
            del model["answers"]
            for score in model["scores"].values():
                score["value"] = score["value"] if math.isfinite(score["value"]) else None
        plain["differing"] = [
            {
                "line": place + 1,
                "source": self.sources[place],
                "reference": self.references[place],
                "answers": {model.name: model.answers[place] for model in self.models},
            }
            for place in self.differing
        ]
        return plain | {"significance": _HOW}

    def _scores(self) -> str:
        columns = [("model", [model.name for model in self.models])]
        for name, title in self.titles.items():
            scores = [model.scores[name] for model in self.models]
            columns.append((title, [self.shown(score) for score in scores]))
            if any(score.p is not None for score in scores):
                columns.append(("p", ["" if score.p is None else f"{score.p:.3f}" for score in scores]))
        return _table(columns)

    def _costs(self) -> str:
        costs = [self.costs(model) for model in self.models]
        columns = [(title, [cells[title] for cells in costs]) for title in costs[0]]
        return _table([("model", [model.name for model in self.models]), *columns])


def _table(columns: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Columns under their titles, the first to the left, the rest to the right."""
    wide = [max(map(len, (title, *cells))) for title, cells in columns]
    rows = [[title for title, _ in columns], *zip(*(cells for _, cells in columns))]
    lines = [
        "  ".join([row[0].ljust(wide[0]), *(cell.rjust(width) for cell, width in zip(row[1:], wide[1:]))])
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
