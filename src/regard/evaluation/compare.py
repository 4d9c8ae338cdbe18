"""What a comparison of models found, as data and as tables for a terminal."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from regard.api import load
from regard.data.read.corpus import Corpus
from regard.data.read.texts import sizes_of
from regard.decode.inputs import require_verb
from regard.errors import DamagedFile, InputError, suggest
from regard.evaluation.charts import Line, draw, panel, points, read_metrics, short
from regard.evaluation.evaluate import require_fit
from regard.evaluation.isolated import Measured, Progress, Task, measure_alone
from regard.evaluation.plan import amount
from regard.evaluation.report import telling
from regard.evaluation.significance import (
    SAMPLES,
    SEED,
    Counted,
    Estimate,
    Row,
    bits,
    by_group,
    by_length,
    counted,
    is_numbered,
    metrics,
    paired,
)
from regard.metrics import perplexity
from regard.show.trace import Seen

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


__all__ = ["Comparison", "Look", "compare", "distinct_names", "look_at", "plot_comparison"]

UNITS: dict[str, Callable[[str], int]] = {"words": lambda text: len(text.split()), "characters": len}
_DIFFERING = 8
_EXACTLY = 50.0  # per cent; when a model gets so many lines right to the letter, that is what to look at


def compare(
    folders: Sequence[str | Path],
    corpus: Corpus,
    *,
    metric: str | None = None,
    unit: str = "words",
    beam: int | None = None,
    device: str = "auto",
    threads: int | None = None,
    progress: Progress = lambda done: None,
) -> Comparison:
    """Judge models on the same text, one after another, each in a process of its own.

    Source lengths are counted in a `unit`. The `metric` is what is shown by length: by default exact match if some
    model gets half of the lines right, else chrF. `progress` is told how many more texts a model has done.
    """
    start = time.perf_counter()
    for option, given, known in (("--metric", metric, [*TRANSLATING]), ("--unit", unit, [*UNITS])):
        if given is not None and given not in known:
            raise InputError(f'"{given}" is not known ({option}). {suggest(given, known)}')
    names = distinct_names(folders)
    sizes = _parameters(folders, names, corpus)
    task = Task("", tuple(corpus.sources), corpus.targets is not None, beam, device, threads)
    found = [measure_alone(replace(task, folder=str(folder)), progress) for folder in folders]
    size = len(corpus) if task.translates else int(sizes_of(corpus.sources).sum())
    bare = Comparison(
        corpus=", ".join(corpus.names),
        texts=len(corpus),
        models=tuple(
            Contender(
                name=name,
                folder=str(folder),
                parameters=parameters,
                training_speed=_training_speed(Path(folder)),
                speed=size / one.seconds,
                memory=one.memory,
                beam=one.beam,
                answers=tuple(one.answers),
            )
            for name, folder, parameters, one in zip(names, folders, sizes, found)
        ),
        device=found[0].device,
        threads=found[0].threads,
    )
    judged = _translations(bare, corpus, unit, metric) if task.translates else _readings(bare, corpus, found)
    return replace(judged, seconds=time.perf_counter() - start)


def distinct_names(folders: Sequence[str | Path]) -> list[str]:
    """The last names of folders, with as much before them as tells them apart; refuses what cannot be compared."""
    if len(folders) < 2:
        raise InputError("one model alone cannot be compared (regard compare). Name two or more model folders.")
    paths = [Path(os.path.abspath(folder)) for folder in folders]
    for place, path in enumerate(paths):
        if not path.is_dir():
            raise InputError(f"no such model folder: {folders[place]} (regard compare). Name one that was trained.")
        if any(path.samefile(other) for other in paths[:place]):
            raise InputError(f"{folders[place]} is named twice (regard compare). Name each model folder once.")
    parts = [1] * len(paths)
    while len(set(names := ["/".join(path.parts[-count:]) for path, count in zip(paths, parts)])) < len(names):
        parts = [count + (names.count(name) > 1) for name, count in zip(names, parts)]
    shown = ["".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name) for name in names]
    return [name if shown.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(shown, 1)]


@dataclass(frozen=True)
class Look:
    """What every model attends to while it reads a source and says its reference."""

    source: str
    reference: str
    seen: tuple[Seen, ...]


def look_at(comparison: Comparison, *, device: str = "auto") -> tuple[Look, ...]:
    """Look at a short, a middling and a long line with every model; one too long for a model is left out."""
    pairs = [(comparison.sources[place], comparison.references[place]) for place in telling(comparison.sources)]
    seen: list[list[Seen]] = [[] for _ in pairs]
    for contender in comparison.models:
        model = load(contender.folder, device=device)
        for found, pair in zip(seen, pairs):
            with suppress(InputError):
                found.append(model.look(*pair))
    return tuple(Look(*pair, tuple(found)) for pair, found in zip(pairs, seen) if len(found) == len(comparison.models))


def plot_comparison(comparison: Comparison, path: str | Path) -> None:
    """A PNG of the metric by source length, and by groups that are numbers, a line for each model."""
    if not comparison.translates:
        raise InputError("there are no translations to plot by length (--plot). Compare translators on pairs.")
    panels = []
    for axis, rows in comparison.axes.items():
        values = zip(comparison.models, comparison.values(axis))
        panels.append(panel(axis, rows, [Line(model.name, line) for model, line in values]))
    draw(Path(path), panels, comparison.titles[comparison.metric])


def _parameters(folders: Sequence[str | Path], names: Sequence[str], corpus: Corpus) -> list[int]:
    """The number of weights of each model; all are loaded once, so that a bad one is found before any is measured."""
    found, translate = [], []
    for folder, name in zip(folders, names):
        model = load(folder, device="cpu")
        try:
            _ = model.aligners
        except DamagedFile as error:
            raise DamagedFile(f"{folder}: {error}") from None
        found.append(sum(weight.numel() for weight in model.network.parameters()))
        translate.append(model.network.encoder is not None)
        if translate[-1] != translate[0]:
            one, other = (names[0], name) if translate[0] else (name, names[0])
            raise InputError(f"{one} translates, {other} does not (regard compare). Compare models of one kind.")
        require_fit(model, corpus)
        require_verb(model.description, model.tokenizer, "generate" if corpus.targets is None else "translate")
    return found


def _translations(bare: Comparison, corpus: Corpus, unit: str, metric: str | None) -> Comparison:
    """The comparison with the quality of what each model said, of all lines and by length and group."""
    assert corpus.targets is not None
    references = tuple(corpus.targets)
    kinds = metrics(references)
    said = [counted(model.answers, kinds) for model in bare.models]
    scores = {name: paired([one.counts[name] for one in said], kind.score) for name, kind in kinds.items()}
    buckets = {f"source length in {unit}": by_length([UNITS[unit](source) for source in corpus.sources])}
    buckets |= {name: by_group(of_line) for name, of_line in corpus.groups.items()}
    models = tuple(
        replace(
            model,
            scores={name: estimates[place] for name, estimates in scores.items()},
            rows={name: said[place].rows(some) for name, some in buckets.items()},
        )
        for place, model in enumerate(bare.models)
    )
    best = max(estimate.value for estimate in scores["exact"])
    return replace(
        bare,
        models=models,
        metric=metric or ("exact" if best >= _EXACTLY else "chrf"),
        signatures={name: kind.signature for name, kind in kinds.items() if kind.signature},
        differing=_differing(bare, said),
        sources=tuple(corpus.sources),
        references=references,
    )


def _differing(bare: Comparison, said: Sequence[Counted]) -> tuple[int, ...]:
    """The lines that models answer most differently: where the best and the worst chrF are furthest apart."""
    score = said[0].metrics["chrf"].score
    of_lines = np.array([[score(line) for line in one.counts["chrf"]] for one in said])
    apart = of_lines.max(axis=0) - of_lines.min(axis=0)
    ordered = np.argsort(-apart, kind="stable").tolist()
    differ = (place for place in ordered if len({model.answers[place] for model in bare.models}) > 1)
    return tuple(place for place, _ in zip(differ, range(_DIFFERING)))


def _readings(bare: Comparison, corpus: Corpus, found: Sequence[Measured]) -> Comparison:
    """The comparison with the losses of each model; documents are what is drawn."""
    sizes = np.asarray(sizes_of(corpus.sources), dtype=np.float64)
    filled = np.flatnonzero(sizes)
    counts = [np.stack([np.asarray(one.losses), sizes], axis=1)[filled] for one in found]
    models = []
    for model, one, estimate in zip(bare.models, found, paired(counts, bits)):
        loss = sum(one.losses) / one.tokens
        scores = {"bits_per_byte": estimate, "perplexity": Estimate(perplexity(loss)), "loss": Estimate(loss)}
        models.append(replace(model, scores=scores))
    return replace(bare, models=tuple(models))


def _training_speed(folder: Path) -> float | None:
    """Tokens a second, the median over a run; None if nothing is known of it."""
    speeds = [speed for _, speed in points(read_metrics(folder / "metrics.jsonl"), "tokens_per_second")]
    return median(speeds) if speeds else None
