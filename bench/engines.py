"""Translating with our engines against CTranslate2's own `translate_batch`, each in a process of its own.

A model that is converted to ONNX too is also decoded greedily by the reference decoder of docs/onnx.md.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.harness import Result, compare, table
from regard.engines.folder import PRECISIONS, place_of
from regard.errors import InputError
from regard.evaluation.contestant import Contestant, Pass
from regard.metrics import quality

REFERENCE = "ONNX, reference decoder"


@dataclass(frozen=True)
class Found:
    """The tables by task, and facts about the run."""

    tables: str
    facts: dict[str, str]


def measure(
    folder: Path, sources: Sequence[str], references: Sequence[str], *, threads: int, rounds: int, beam: int, alone: int
) -> Found:  # fmt: skip
    """Sentences per second of all contestants: many at once by beam search and greedily, and one at a time."""
    tasks = {f"beam {beam}": (beam, False), "greedy": (1, False), f"beam {beam}, one sentence at a time": (beam, True)}
    with ExitStack() as stack:
        contestants = {name: start() for name, start in _starts(folder, threads).items()}
        for contestant in contestants.values():
            stack.callback(contestant.end)
        limit = contestants["regard, torch"].ask(task="limit")["products_per_second"]
        tables = []
        for title, (size, one_by_one) in tasks.items():
            count = alone if one_by_one else len(sources)
            able = {name: one for name, one in contestants.items() if size == 1 or name != REFERENCE}
            result, passes = _in_turns(able, sources[:count], size, one_by_one, rounds)
            ours = passes["regard, torch"][0].answers
            remarks = {name: _remark(some, references[:count], ours) for name, some in passes.items()}
            tables.append(f"{title}, {count:,} sentences:\n\n{table(result, 'sentences/s', remarks)}")
    facts = {"limit": f"{limit / 1e9:,.0f} GFLOP/s in large float32 products", "one line, cold": _cold(folder)}
    return Found("\n\n".join(tables), facts)


def _starts(folder: Path, threads: int) -> dict[str, Callable[[], Contestant]]:
    """Each contestant's name, and how it starts."""
    found: dict[str, Callable[[], Contestant]] = {
        "regard, torch": lambda: Contestant(folder, engine=None, threads=threads)
    }
    found |= converted_starts(folder, threads)
    graphs = place_of(folder, "float32", "onnxruntime")
    if graphs.is_dir():
        found[REFERENCE] = lambda: Contestant(folder, engine=graphs, threads=threads, module="bench.reference")
    return found


def converted_starts(folder: Path, threads: int) -> dict[str, Callable[[], Contestant]]:
    """How our engine and CTranslate2's own methods start, with the model converted to each precision."""
    found: dict[str, Callable[[], Contestant]] = {}
    for precision in PRECISIONS:
        place = place_of(folder, precision)
        if not place.is_dir():
            raise InputError(
                f"{place} is missing. Run: regard convert {folder} --to ctranslate2 --precision {precision}."
            )
        for name, module in (("regard, ctranslate2", "regard.evaluation.contestant"), ("CTranslate2", "bench.plain")):
            found[f"{name} {precision}"] = lambda place=place, module=module: Contestant(  # type: ignore[misc]
                folder, engine=place, threads=threads, module=module
            )
    return found


def _in_turns(
    contestants: dict[str, Contestant], lines: Sequence[str], beam: int, one_by_one: bool, rounds: int
) -> tuple[Result, dict[str, list[Pass]]]:  # fmt: skip
    passes: dict[str, list[Pass]] = {name: [] for name in contestants}

    def block(name: str) -> Callable[[], float]:
        def work() -> float:
            found = contestants[name].measure("translate", lines, beam=beam, one_by_one=one_by_one)
            passes[name].append(found)
            return len(lines) / found.seconds

        return work

    return compare("engines", {name: block(name) for name in contestants}, rounds), passes


def _remark(passes: Sequence[Pass], references: Sequence[str], ours: Sequence[str]) -> str:
    cpu = median(one.cpu_seconds for one in passes[1:])
    answers, memory = passes[0].answers, passes[-1].peak_memory / 2**20
    same = sum(one == other for one, other in zip(answers, ours))
    bleu = quality(answers, references).bleu
    return f"{cpu:.2f} s of processor time, {memory:,.0f} MiB, BLEU {bleu:.2f}, {same:,} of {len(ours):,} as torch"


def _cold(folder: Path) -> str:
    """The time from starting `regard translate` to its end, for one line."""
    times = {}
    for engine in ("ctranslate2", "torch"):
        words = [sys.executable, "-m", "regard", "translate", str(folder), "--engine", engine]
        begun = time.perf_counter()
        subprocess.run(words, input="Ein Hund rennt.\n", text=True, check=True, capture_output=True)
        times[engine] = time.perf_counter() - begun
    return ", ".join(f"{engine} {seconds:.2f} s" for engine, seconds in times.items())
