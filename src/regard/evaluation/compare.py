"""Compare models on one text: quality (with significance, and by length), size, speed and memory."""

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
from regard.config.fit import amount
from regard.config.recipe import read_parts
from regard.data.read.corpus import Corpus
from regard.data.read.texts import byte_lengths
from regard.data.tokenize.tokenizer import word_offsets
from regard.decode.inputs import capabilities, require_capability
from regard.errors import DamagedFile, InputError, suggest
from regard.evaluation.charts import Line, draw, panel, points, read_metrics, short
from regard.evaluation.evaluate import percent, require_fit
from regard.evaluation.isolated import Job, Measured, measure_isolated
from regard.evaluation.significance import (
    METHOD,
    BootstrapScore,
    Counted,
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
from regard.progress import QUIET, Progress
from regard.show.trace import AttentionTrace

TRANSLATING = {"exact": "exact match, %", "bleu": "BLEU", "chrf": "chrF"}
READING = {"bits_per_byte": "bits per byte", "perplexity": "perplexity", "loss": "nats per token"}
_NAME = 20  # characters of a model's name over a column


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A model of a comparison."""

    name: str
    folder: str
    parameters: int
    training_speed: float | None  # tokens per second, the median over its run
    speed: float  # lines translated, or bytes read, per second
    memory: int  # peak bytes, loading included
    beam: int
    unknown: float = 0.0  # the share of characters that its tokenizer does not know, of a language model
    scores: dict[str, BootstrapScore] = field(default_factory=dict)
    rows: dict[str, tuple[Row, ...]] = field(default_factory=dict)  # by source length, then by each group
    translations: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of `compare`; the first model is the baseline."""

    corpus: str
    texts: int  # lines or documents
    models: tuple[Contender, ...]
    device: str
    threads: int
    seconds: float = 0.0
    metric: str = ""  # shown by length and group
    signatures: dict[str, str] = field(default_factory=dict)
    differing: tuple[int, ...] = ()  # the lines whose translations differ most
    sources: tuple[str, ...] = field(default=(), repr=False)
    references: tuple[str, ...] = field(default=(), repr=False)

    @property
    def translates(self) -> bool:
        """Whether these are translators; else they are language models."""
        return bool(self.metric)

    @property
    def titles(self) -> dict[str, str]:
        """The titles of the scores."""
        return TRANSLATING if self.translates else READING

    @property
    def axes(self) -> dict[str, tuple[Row, ...]]:
        """The first model's rows over axes that have an order: source length, and numeric groups."""
        rows = self.models[0].rows
        length = next(iter(rows), "")
        return {name: some for name, some in rows.items() if name == length or is_numbered([row.name for row in some])}

    def values(self, axis: str) -> list[tuple[float, ...]]:
        """The metric of each model along an axis."""
        return [tuple(getattr(row, self.metric) for row in model.rows[axis]) for model in self.models]

    def shown(self, score: BootstrapScore) -> str:
        """A score with its margin."""
        digits = 2 if self.translates else 4
        margin = "" if score.margin is None else f" ±{score.margin:.{digits}f}"
        return f"{score.value:.{digits}f}{margin}"

    def costs(self, model: Contender) -> dict[str, str]:
        """Size, speed and memory of a model."""
        training = "-" if model.training_speed is None else f"{model.training_speed:,.0f}"
        speed = f"{model.speed:,.1f}" if model.speed < 100 else f"{model.speed:,.0f}"
        work = {"beam": str(model.beam), "decoding lines/s": speed} if self.translates else {"reading bytes/s": speed}
        work |= {"characters unknown": percent(model.unknown)} if any(one.unknown for one in self.models) else {}
        size = {"parameters": f"{model.parameters:,}", "training tokens/s": training}
        return size | work | {"peak memory": amount(model.memory)}

    def notes(self) -> list[str]:
        """How the numbers were measured."""
        tested = any(score.p is not None for model in self.models for score in model.scores.values())
        interval = f"±: half of the 95 % interval; p: of a difference from {self.models[0].name} ({METHOD})"
        work = "decoding" if self.translates else "reading"
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        unknown = "an unknown character costs what its token costs, and 8 bits per byte"
        return [
            interval if tested else "one document gives no significance; give several documents",
            *([unknown] if any(model.unknown for model in self.models) else []),
            *(f"{self.titles[name]}: {signature}" for name, signature in self.signatures.items()),
            f"{work} on {self.device} with {threads}, each model in its own process; memory beyond Python and torch",
        ]

    def text(self) -> str:
        """All tables for a terminal."""
        kind = "lines" if self.translates else "documents"
        parts = [f"{self.corpus}: {self.texts:,} {kind}", self._scores(), self._costs()]
        for axis, rows in self.axes.items():
            columns = [(f"{self.titles[self.metric]} by {axis}", [row.name for row in rows])]
            columns.append(("lines", [f"{row.lines:,}" for row in rows]))
            for model, values in zip(self.models, self.values(axis)):
                columns.append((short(model.name, _NAME), [f"{value:.2f}" for value in values]))
            parts.append(_table(columns))
        return "\n\n".join([*parts, "\n".join([*self.notes(), f"{self.seconds:.1f} s"])])

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain data, and the lines whose translations differ most."""
        plain = asdict(self)
        del plain["sources"], plain["references"]
        for model in plain["models"]:
            del model["translations"]
            for score in model["scores"].values():
                score["value"] = score["value"] if math.isfinite(score["value"]) else None
        plain["differing"] = [
            {
                "line": line + 1, "source": self.sources[line], "reference": self.references[line],
                "translations": {model.name: model.translations[line] for model in self.models},
            }
            for line in self.differing
        ]  # fmt: skip
        return plain | {"significance": METHOD}

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
    padded = ([row[0].ljust(wide[0]), *map(str.rjust, row[1:], wide[1:])] for row in rows)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


UNITS: dict[str, Callable[[str], int]] = {"words": lambda text: len(word_offsets(text)), "characters": len}
_DIFFERING = 8
_EXACTLY = 50.0  # per cent; above it, exact match is the metric to show


def compare(
    folders: Sequence[str | Path],
    corpus: Corpus,
    *,
    metric: str | None = None,
    unit: str = "words",
    beam: int | None = None,
    device: str = "auto",
    threads: int | None = None,
    parts: Sequence[Path] | None = None,
    progress: Progress = QUIET,
) -> Comparison:
    """Evaluate models on the same text one by one, each in a process of its own.

    Source lengths are counted in `unit`. `metric` is shown by length: by default exact match if some model gets half of
    the lines right, else chrF. `progress` counts texts.
    """
    start = time.perf_counter()
    for option, given, known in (("--metric", metric, [*TRANSLATING]), ("--unit", unit, [*UNITS])):
        if given is not None and given not in known:
            raise InputError(f'"{given}" is not known ({option}). {suggest(given, known)}')
    names = distinct_names(folders)
    own = read_parts(*parts or ())
    sizes = _parameters(folders, names, corpus, own)
    files = tuple(map(str, parts or ()))
    job = Job("", tuple(corpus.sources), corpus.targets is not None, beam, device, threads, files)
    found = [measure_isolated(replace(job, folder=str(folder)), progress) for folder in folders]
    size = len(corpus) if job.translates else int(byte_lengths(corpus.sources).sum())
    bare = Comparison(
        corpus=", ".join(corpus.names), texts=len(corpus), device=found[0].device, threads=found[0].threads,
        models=tuple(
            Contender(
                name=name, folder=str(folder), parameters=parameters, training_speed=_training_speed(Path(folder)),
                speed=size / one.seconds, memory=one.memory, beam=one.beam, unknown=one.unknown,
                translations=tuple(one.translations),
            )
            for name, folder, parameters, one in zip(names, folders, sizes, found)
        ),
    )  # fmt: skip
    compared = _translations(bare, corpus, unit, metric) if job.translates else _readings(bare, corpus, found)
    return replace(compared, seconds=time.perf_counter() - start)


def distinct_names(folders: Sequence[str | Path]) -> list[str]:
    """Short names of folders, with as many parent folders as tell them apart; refuses what cannot be compared."""
    if len(folders) < 2:
        raise InputError("one model alone cannot be compared (regard compare). Name two or more model folders.")
    paths = [Path(os.path.abspath(folder)) for folder in folders]
    for number, path in enumerate(paths):
        if not path.is_dir():
            raise InputError(f"no such model folder: {folders[number]} (regard compare). Name one that was trained.")
        if any(path.samefile(other) for other in paths[:number]):
            raise InputError(f"{folders[number]} is named twice (regard compare). Name each model folder once.")
    parts = [1] * len(paths)
    while len(set(names := ["/".join(path.parts[-count:]) for path, count in zip(paths, parts)])) < len(names):
        parts = [count + (names.count(name) > 1) for name, count in zip(names, parts)]
    shown = ["".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name) for name in names]
    return [name if shown.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(shown, 1)]


def sample_lines(sources: Sequence[str]) -> list[int]:
    """The indices of a short, a medium and a long source."""
    indices = {source: index for index, source in reversed(list(enumerate(sources)))}
    ordered = sorted(indices, key=len)
    chosen = [indices[ordered[len(ordered) * part // 8]] for part in (2, 5, 7)] if ordered else []
    return list(dict.fromkeys(chosen))


@dataclass(frozen=True)
class AttentionSample:
    """The attention of every model for one source and its reference."""

    source: str
    reference: str
    traces: tuple[AttentionTrace, ...]  # one per model


def attention_samples(
    comparison: Comparison, *, device: str = "auto", parts: Sequence[type] = ()
) -> tuple[AttentionSample, ...]:
    """The attention of every model on a short, a medium and a long line; skips a line too long for some model."""
    pairs = [(comparison.sources[line], comparison.references[line]) for line in sample_lines(comparison.sources)]
    traces: list[list[AttentionTrace]] = [[] for _ in pairs]
    for contender in comparison.models:
        model = load(contender.folder, device=device, parts=parts, engine="torch")
        for found, pair in zip(traces, pairs):
            with suppress(InputError):
                found.append(model.look(*pair))
    return tuple(
        AttentionSample(*pair, tuple(found))
        for pair, found in zip(pairs, traces)
        if len(found) == len(comparison.models)
    )


def plot_comparison(comparison: Comparison, path: str | Path) -> None:
    """Draw the metric by source length and by numeric groups into a PNG, one line per model."""
    if not comparison.translates:
        raise InputError("there are no translations to plot by length (--plot). Compare translators on pairs.")
    panels = []
    for axis, rows in comparison.axes.items():
        values = zip(comparison.models, comparison.values(axis))
        panels.append(panel(axis, rows, [Line(model.name, line) for model, line in values]))
    draw(Path(path), panels, comparison.titles[comparison.metric])


def _parameters(
    folders: Sequence[str | Path], names: Sequence[str], corpus: Corpus, parts: Sequence[type]
) -> list[int]:
    """The number of weights of each model; loads all once, so that a bad one is found before any is measured."""
    found, translate = [], []
    for folder, name in zip(folders, names):
        model = load(folder, device="cpu", parts=parts, engine="torch")
        try:
            _ = model.alignment_heads
        except DamagedFile as error:
            raise DamagedFile(f"{folder}: {error}") from None
        found.append(sum(weight.numel() for weight in model.network.parameters()))
        translate.append(model.network.shape != "decoder")
        if translate[-1] != translate[0]:
            one, other = (names[0], name) if translate[0] else (name, names[0])
            raise InputError(f"{one} translates, {other} does not (regard compare). Compare models of one kind.")
        known = capabilities(model.description, model.tokenizer)
        if not {"translate", "generate"} & {*known}:
            raise InputError(f"{name} was made to {known[0]}, and regard compare takes translators and language models."
                             f" Evaluate it alone: regard evaluate {folder}.")  # fmt: skip
        require_fit(model, corpus)
        require_capability(model.description, model.tokenizer, "generate" if corpus.targets is None else "translate")
    return found


def _translations(bare: Comparison, corpus: Corpus, unit: str, metric: str | None) -> Comparison:
    """The comparison with the quality of each model's translations: all lines, by length and by group."""
    assert corpus.targets is not None
    references = tuple(corpus.targets)
    kinds = metrics(references)
    statistics = [counted(model.translations, kinds) for model in bare.models]
    scores = {name: paired([one.counts[name] for one in statistics], kind.score) for name, kind in kinds.items()}
    buckets = {f"source length in {unit}": by_length([UNITS[unit](source) for source in corpus.sources])}
    buckets |= {name: by_group(of_line) for name, of_line in corpus.groups.items()}
    models = tuple(
        replace(
            model,
            scores={name: estimates[number] for name, estimates in scores.items()},
            rows={name: statistics[number].rows(some) for name, some in buckets.items()},
        )
        for number, model in enumerate(bare.models)
    )
    best = max(estimate.value for estimate in scores["exact"])
    signatures = {name: kind.signature for name, kind in kinds.items() if kind.signature}
    return replace(
        bare, models=models, metric=metric or ("exact" if best >= _EXACTLY else "chrf"), signatures=signatures,
        differing=_differing(bare, statistics), sources=tuple(corpus.sources), references=references,
    )  # fmt: skip


def _differing(bare: Comparison, statistics: Sequence[Counted]) -> tuple[int, ...]:
    """The lines whose translations differ most: the largest gap between the best and the worst chrF."""
    score = statistics[0].metrics["chrf"].score
    of_lines = np.array([[score(line) for line in one.counts["chrf"]] for one in statistics])
    apart = of_lines.max(axis=0) - of_lines.min(axis=0)
    ordered = np.argsort(-apart, kind="stable").tolist()
    differ = (line for line in ordered if len({model.translations[line] for model in bare.models}) > 1)
    return tuple(line for line, _ in zip(differ, range(_DIFFERING)))


def _readings(bare: Comparison, corpus: Corpus, found: Sequence[Measured]) -> Comparison:
    """The comparison with the losses of each model; the bootstrap draws documents."""
    sizes = np.asarray(byte_lengths(corpus.sources), dtype=np.float64)
    filled = np.flatnonzero(sizes)
    counts = [np.stack([np.add(one.losses, one.unknown_nats), sizes], axis=1)[filled] for one in found]
    models = []
    for model, one, estimate in zip(bare.models, found, paired(counts, bits)):
        loss = sum(one.losses) / one.tokens
        per_token = {"perplexity": BootstrapScore(perplexity(loss)), "loss": BootstrapScore(loss)}
        models.append(replace(model, scores={"bits_per_byte": estimate, **per_token}))
    return replace(bare, models=tuple(models))


def _training_speed(folder: Path) -> float | None:
    """Tokens per second in training, the median over a run; None if there is no log."""
    speeds = [speed for _, speed in points(read_metrics(folder / "metrics.jsonl"), "tokens_per_second")]
    return median(speeds) if speeds else None
