"""`regard bench`: the speed of a model on this machine, by engine, precision and threads, with advice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from regard.api import LoadedModel, save
from regard.config.recipe import read_recipe
from regard.data.read.corpus import read_lines
from regard.engines.folder import (
    PROGRAMS,
    Precision,
    Runtime,
    engine_version,
    find_converted,
    place_of,
    read_proof,
)
from regard.errors import InputError, RegardError
from regard.evaluation.contestant import Contestant, Pass
from regard.layers.packed import PRECISIONS as TORCH_PRECISIONS
from regard.layers.packed import InferencePrecision
from regard.models.device import is_native
from regard.progress import waiting
from regard.store.folder import local_folder, read_folder

_LINES = 200  # at most, per pass
_FEWEST = 2  # lines per pass
_ROUNDS = 5  # passes of every contestant, in turns
_NEW_TOKENS = 32  # per generated text
_TASKS = "translate", "generate", "classify", "embed"
_ENGINES: tuple[tuple[Runtime, Precision], ...] = (
    ("ctranslate2", "float32"), ("ctranslate2", "int8"), ("onnxruntime", "float32")
)  # fmt: skip
_FASTER = 1.1  # a ratio that is worth a sentence
_SAMPLE = 8  # lines that a conversion for this measurement alone is checked on


@dataclass(frozen=True)
class Setting:
    """What runs the model: an engine, its precision, and CPU threads."""

    engine: str
    precision: InferencePrecision
    threads: int

    def __str__(self) -> str:
        return f"{self.engine} {self.precision}, {self.threads} {'thread' if self.threads == 1 else 'threads'}"


@dataclass(frozen=True)
class Task:
    """What is measured: a command, its beam size if it searches, and whether lines come one at a time."""

    verb: str
    beam: int = 1
    one_by_one: bool = False

    def __str__(self) -> str:
        how = {"translate": "greedy" if self.beam == 1 else f"beam {self.beam}", "generate": "greedy"}.get(self.verb)
        lines = "one line at a time" if self.one_by_one else "all lines at once"
        return ", ".join(part for part in (self.verb, how, lines) if part)


@dataclass(frozen=True)
class Speed:
    """The measured passes of one setting at one task."""

    task: Task
    setting: Setting
    lines: int
    tokens: int
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    share_of_limit: float  # of the matrix products per second that were measured in the same run
    peak_memory: int
    same_answers: int  # lines answered as torch answers them

    @property
    def lines_per_second(self) -> tuple[float, float, float]:
        """Lower quartile, median, upper quartile."""
        return _quartiles([self.lines / seconds for seconds in self.seconds])

    @property
    def tokens_per_second(self) -> float:
        """The median."""
        return median(self.tokens / seconds for seconds in self.seconds)


@dataclass(frozen=True)
class Bench:
    """The result of `regard.bench`: speeds, and advice in plain sentences."""

    model: str
    parameters: int
    lines_from: str
    limit: dict[int, float]  # multiplications and additions per second in a large product, by threads
    speeds: tuple[Speed, ...]
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def rows(self) -> list[tuple[str, ...]]:
        """The table, its heading first."""
        heading = "task", "engine", "lines/s", "quartiles", "tokens/s", "of the limit", "memory", "as torch"
        rows: list[tuple[str, ...]] = [heading]
        for speed in self.speeds:
            low, middle, high = speed.lines_per_second
            rows.append((
                str(speed.task), str(speed.setting), _number(middle), f"{_number(low)} to {_number(high)}",
                f"{speed.tokens_per_second:,.0f}", f"{speed.share_of_limit:.0%}",
                f"{speed.peak_memory / 2**20:,.0f} MiB", f"{speed.same_answers:,} of {speed.lines:,}",
            ))  # fmt: skip
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows)]
        sides = [str.ljust, str.ljust] + [str.rjust] * (len(widths) - 2)
        table = ["  ".join(side(cell, width) for side, cell, width in zip(sides, row, widths)).rstrip() for row in rows]
        return "\n".join([self.heading(), "", *table, "", *self.advice, *self.notes])

    def heading(self) -> str:
        """One line about the model and the machine."""
        limits = ", ".join(f"{rate / 1e9:,.0f} GFLOP/s with {threads}" for threads, rate in self.limit.items())
        return (f"{self.model}: {self.parameters:,} parameters, {self.lines_from}. Large float32 products here (the "
                f"limit), by threads: {limits}.")  # fmt: skip

    def _repr_html_(self) -> str:
        rows = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in self.rows()]
        rows[0] = rows[0].replace("td>", "th>")
        table = "".join(f"<tr>{row}</tr>" for row in rows)
        sentences = "".join(f"<p>{escape(line)}</p>" for line in (*self.advice, *self.notes))
        return f"<p>{escape(self.heading())}</p><table>{table}</table>{sentences}"

    def to_dict(self) -> dict[str, Any]:
        """All of it for JSON."""
        speeds = [
            {"task": str(speed.task), **asdict(speed.setting), **{k: v for k, v in asdict(speed).items()
             if k not in ("task", "setting")}, "lines_per_second": speed.lines_per_second,
             "tokens_per_second": speed.tokens_per_second}
            for speed in self.speeds
        ]  # fmt: skip
        return {**asdict(self), "speeds": speeds}


def bench(
    model: str | Path | LoadedModel, *, minutes: float = 1.0, text: str | Path | None = None, parts: Sequence[Path] = ()
) -> Bench:  # fmt: skip
    """Measure a model's speed on this machine: a model folder, or a loaded model.

    `text` is a file of lines like those the model will get; `parts` are Python files that define parts of the model.
    """
    if not 0 < minutes <= 24 * 60:
        raise InputError(f"{minutes} minutes cannot be measured for (--minutes). Give more than 0, such as 1.")
    with TemporaryDirectory(prefix="regard-bench-") as temporary:
        if isinstance(model, LoadedModel):
            folder = Path(temporary) / "model"
            save(model.network, model.tokenizers, folder)
            name = "this model"
        else:
            folder, name = local_folder(Path(model)), str(model)
            if not folder.is_dir():
                raise InputError(f"no such model folder: {folder}. Train one with: regard train dates --out {folder}.")
        lines = None if text is None else [line for line in read_lines(text) if line.strip()]
        if lines == []:
            raise InputError(f"{text} holds no line of text (--text). Give one line per text.")
        return _measure(folder, name, lines, 60 * minutes, parts, Path(temporary))


def _measure(
    folder: Path, name: str, lines: list[str] | None, seconds: float, parts: Sequence[Path], temporary: Path
) -> Bench:  # fmt: skip
    """Start the contestants, let them work in turns, and draw conclusions."""
    with ExitStack() as stack:
        cores = len(os.sched_getaffinity(0))
        many = stack.enter_context(_started(folder, None, cores, parts))
        facts = many.ask(task="facts")
        verb = next((verb for verb in _TASKS if verb in facts["capabilities"]), None)
        if verb is None:
            raise InputError(f"{name} cannot translate, generate, classify or embed, so there is nothing to measure.")
        chosen, origin = (lines, "lines of --text") if lines is not None else _own_lines(folder, parts, facts["lines"])
        contestants = {Setting("torch", "float32", cores): many}
        if cores > 1:
            contestants[Setting("torch", "float32", 1)] = stack.enter_context(_started(folder, None, 1, parts))
        notes: list[str] = []
        for lower in TORCH_PRECISIONS[1:]:
            if lower not in facts["precisions"]:
                notes.append(f"This model has no matrix that is large enough for {lower}, so it is not measured.")
            elif is_native(lower):
                contestants[Setting("torch", lower, cores)] = stack.enter_context(
                    _started(folder, None, cores, parts, lower)
                )
            else:
                notes.append(f"This processor has no instructions for {lower}, so it is not measured.")
        converted: dict[Setting, Path | None] = {}
        for runtime, precision in _ENGINES:
            if verb not in PROGRAMS[runtime].verbs:
                continue
            place, note = _converted(folder, runtime, precision, parts, chosen, temporary)
            notes += [] if note is None or note in notes else [note]
            if place is not None:
                setting = Setting(runtime, precision, cores)
                converted[setting] = place if place == place_of(folder, precision, runtime) else None
                contestants[setting] = stack.enter_context(_started(folder, place, cores, ()))
        limit = {setting.threads: one.ask(task="limit")["products_per_second"]
                 for setting, one in contestants.items() if _is_plain(setting)}  # fmt: skip
        limit = {threads: max(limit[fewer] for fewer in limit if fewer <= threads) for threads in limit}
        tasks = _tasks(verb, facts["beam"])
        passes = _in_turns(contestants, tasks, chosen, seconds)
    found = _speeds(passes, facts, limit)
    advice = _advice(found, name, converted)
    return Bench(name, facts["parameters"], f"{len(chosen):,} {origin}", limit, found, tuple(advice), tuple(notes))


@contextmanager
def _started(
    folder: Path, engine: Path | None, threads: int, parts: Sequence[Path], precision: InferencePrecision = "float32"
) -> Iterator[Contestant]:  # fmt: skip
    contestant = Contestant(folder, engine=engine, threads=threads, parts=parts, precision=precision)
    try:
        yield contestant
    finally:
        contestant.end()


def _tasks(verb: str, beam: int) -> list[Task]:
    beams = sorted({1, beam if beam > 1 else 5}, reverse=True) if verb == "translate" else [1]
    return [Task(verb, beam, one) for one in (False, True) for beam in beams]


def _own_lines(folder: Path, parts: Sequence[Path], synthetic: list[str]) -> tuple[list[str], str]:
    """The sources of the model's validation text, or lines made from its vocabulary where that is not here."""
    from regard.config.recipe import read_parts

    recipe = folder / "recipe.toml"
    try:
        read = read_recipe(recipe, parts=read_parts(*parts) if parts else ()) if recipe.is_file() else None
        corpus = None if read is None else read.text.read("valid")
        sources = [] if corpus is None else [line for line in corpus.sources if line.strip()]
    except RegardError:  # its files are elsewhere
        sources = []
    if not sources:
        return synthetic, "lines of random tokens, which say little about answers (give --text FILE)"
    longest = 400  # characters: a document is no line
    chosen = [line[:longest] for line in sources[:: max(1, -(-len(sources) // _LINES))]]
    return chosen, "lines of its validation text"


def _converted(
    folder: Path, runtime: Runtime, precision: Precision, parts: Sequence[Path], lines: list[str], temporary: Path
) -> tuple[Path | None, str | None]:  # fmt: skip
    """The model in another engine: the folder's own if it is proven, or converted for this measurement; or why not."""
    if engine_version(runtime) is None:
        program = PROGRAMS[runtime]
        return None, f"{program.name} is not installed, so it is not measured: pip install 'regard[{program.extra}]'."
    place, engine = place_of(folder, precision, runtime), _proven(folder, runtime)
    if place.is_dir() and engine is not None and read_proof(place) is not None:
        return place, None
    import torch

    from regard.config.recipe import read_parts
    from regard.engines.convert import convert_to_ctranslate2
    from regard.engines.onnx_export import convert_to_onnx
    from regard.engines.prove import Sample

    target = temporary / f"{runtime}-{precision}"
    try:
        loaded = read_folder(folder, torch.device("cpu"), parts=read_parts(*parts) if parts else ())
        sample = Sample.of(lines[:_SAMPLE])
        if runtime == "onnxruntime":
            convert_to_onnx(loaded, folder, target, sample)
        else:
            convert_to_ctranslate2(loaded, folder, target, precision, sample)
    except RegardError as error:
        return None, f"Not measured: {error}"
    return target, None


def _proven(folder: Path, runtime: Runtime) -> Path | None:
    try:
        return find_converted(folder, runtime)
    except InputError:
        return None


Passes = dict[tuple[Task, Setting], list[Pass]]


def _in_turns(
    contestants: dict[Setting, Contestant], tasks: Sequence[Task], lines: Sequence[str], seconds: float
) -> Passes:  # fmt: skip
    """Every contestant works at every task in every round, in reverse order every other round."""
    begun = time.monotonic()
    share = seconds / (len(tasks) * len(contestants) * (_ROUNDS + 1))
    found: Passes = {(task, setting): [] for task in tasks for setting in contestants}
    with waiting(len(found) * (_ROUNDS + 1), "measuring") as advance:
        counts = {}
        for task in tasks:  # the warm-up, which also tells how many lines fit
            slowest = 0.0
            for contestant in contestants.values():
                few = lines[: 4 if task.one_by_one else 16]
                _work(contestant, task, few[:2])
                slowest = max(slowest, _work(contestant, task, few).seconds / len(few))
                advance(1)
            counts[task] = max(_FEWEST, min(len(lines), _LINES, int(share / max(1e-6, slowest))))
        for number in range(_ROUNDS):
            for key in list(found)[:: -1 if number % 2 else 1]:
                task, setting = key
                step = max(1, len(lines) // counts[task])
                found[key].append(_work(contestants[setting], task, lines[::step][: counts[task]]))
                advance(1)
            if time.monotonic() - begun > 1.5 * seconds:
                break
    return found


def _work(contestant: Contestant, task: Task, lines: Sequence[str]) -> Pass:
    return contestant.measure(
        task.verb, lines, one_by_one=task.one_by_one, beam=task.beam, max_tokens=_NEW_TOKENS
    )  # fmt: skip


def _speeds(passes: Passes, facts: dict[str, Any], limit: dict[int, float]) -> tuple[Speed, ...]:
    found = []
    for (task, setting), some in passes.items():
        first = next(one for (other, _), one in passes.items() if other == task)
        reference = first[0].answers
        seconds = median(one.seconds for one in some)
        rate = _work_of(task, facts, some[0].tokens) / seconds
        same = sum(one == other for one, other in zip(some[0].answers, reference))
        found.append(Speed(
            task, setting, len(some[0].answers), some[0].tokens, tuple(one.seconds for one in some),
            tuple(one.cpu_seconds for one in some), rate / limit[setting.threads],
            max(one.peak_memory for one in some), same,
        ))  # fmt: skip
    return tuple(found)


def _work_of(task: Task, facts: dict[str, Any], tokens: int) -> float:
    """Multiplications and additions in the products that these tokens need: two per weight, per token and beam.

    A source is counted as long as its translation.
    """
    encoder, decoder = facts["weights"].get("encoder", 0), facts["weights"].get("decoder", 0)
    if task.verb in ("translate", "generate"):
        return float(2 * tokens * (encoder + task.beam * (decoder + facts["readout"])))
    return float(2 * tokens * (encoder + decoder))


def _advice(speeds: Sequence[Speed], name: str, converted: dict[Setting, Path | None]) -> Iterator[str]:
    """What would make it faster, by how much, and the option or command."""
    by_task: dict[Task, dict[Setting, Speed]] = {}
    for speed in speeds:
        by_task.setdefault(speed.task, {})[speed.setting] = speed
    task, first = next(iter(by_task.items()))
    torch = {setting.threads: _rate(speed) for setting, speed in first.items() if _is_plain(setting)}
    if len(torch) > 1:
        one, many = torch[1], torch[max(torch)]
        if one >= many / 1.05:
            yield f"One thread is as fast as {max(torch)} or faster ({one / many:.2f} x): --threads 1."
        elif many >= _FASTER * one:
            yield f"{max(torch)} threads are {many / one:.1f} x as fast as one: leave out --threads."
    for setting, speed in first.items():
        ratio = _rate(speed) / max(torch.values())
        if _is_plain(setting) or ratio < _FASTER:
            continue
        answers = f"{speed.same_answers:,} of {speed.lines:,} answers are those of torch"
        if setting.engine == "torch":
            answers = f"{answers} in float32"
            yield f"torch in {setting.precision} is {ratio:.1f} x as fast ({answers}): --precision {setting.precision}."
            continue
        rounds = " --precision int8" if setting.precision == "int8" else ""
        place = converted[setting]
        program = next(one for runtime, one in PROGRAMS.items() if runtime == setting.engine)
        how = f"regard {task.verb} {place}" if place else f"regard convert {name} --to {program.target}{rounds}"
        yield f"{program.name} in {setting.precision} is {ratio:.1f} x as fast as torch ({answers}): {how}."
    yield from _advice_on_lines(by_task, task)


def _advice_on_lines(by_task: dict[Task, dict[Setting, Speed]], task: Task) -> Iterator[str]:
    """What beam size and lines one at a time cost, in the fastest setting of the first task."""
    best = max(by_task[task], key=lambda setting: _rate(by_task[task][setting]))
    rate = _rate(by_task[task][best])
    for other, speeds in by_task.items():
        ratio = _rate(speeds[best]) / rate
        if other.beam != task.beam and not other.one_by_one and ratio >= _FASTER:
            yield f"Greedy search is {ratio:.1f} x as fast as beam {task.beam} (check the quality): --beam 1."
        if other.beam == task.beam and other.one_by_one and 1 / ratio >= _FASTER:
            yield f"Many lines at once are {1 / ratio:.1f} x as fast as one at a time: pipe a whole file in."


def _is_plain(setting: Setting) -> bool:
    """Whether it is the one that others are compared with: torch in float32."""
    return setting.engine == "torch" and setting.precision == "float32"


def _rate(speed: Speed) -> float:
    return speed.lines_per_second[1]


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
