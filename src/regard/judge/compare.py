"""Models side by side on one text: how good, how surely better, how large, how fast."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from regard.api import load
from regard.decode.ability import require_verb
from regard.errors import DamagedFile, InputError, suggest
from regard.judge.alone import Measured, Progress, Task, measure_alone
from regard.judge.chart import Line, draw, panel
from regard.judge.comparison import TRANSLATING, Comparison, Contender
from regard.judge.counts import Counted, bits, by_group, by_length, counted, metrics
from regard.judge.evaluate import require_fit
from regard.judge.history import points, read_metrics
from regard.judge.report import telling
from regard.judge.significance import Estimate, paired
from regard.metrics import perplexity
from regard.show.trace import Seen
from regard.text.corpus import Corpus
from regard.text.texts import sizes_of

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
