"""Generating and embedding in torch and in engines against other libraries, each in a process of its own, in turns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import torch

from bench.engines import converted_starts
from bench.harness import compare, table
from bench.peers import HERE, python_of
from bench.training import Peer
from regard.api import save
from regard.data.read.corpus import embedded_corpus
from regard.data.tokenize.train import Byte
from regard.engines.convert import Sample, convert_to_ctranslate2
from regard.engines.folder import PRECISIONS, place_of
from regard.evaluation.contestant import Contestant, Pass
from regard.layers.packed import PRECISIONS as TORCH_PRECISIONS
from regard.models import zoo
from regard.store.convert import convert
from regard.store.loading import Loaded

_WORDS = 8  # of a prompt


def gpt(folder: Path, seed: int) -> tuple[Path, Path]:
    """A GPT of 10.7 million random weights that reads bytes: our folder, converted too, and that of transformers."""
    torch.manual_seed(seed)
    tokenizer = Byte().train([])
    model = save(zoo.gpt2(384, 6, 6).build(tokenizer.vocabulary).eval(), tokenizer, folder / "ours")
    loaded = Loaded(model.network, (tokenizer, None), dict(model.config), dict(model.generation_config))
    for precision in PRECISIONS:
        place = place_of(folder / "ours", precision)
        convert_to_ctranslate2(loaded, folder / "ours", place, precision, Sample.of(prompts(20)))
    convert(folder / "ours", folder / "theirs", "huggingface")
    return folder / "ours", folder / "theirs"


def prompts(count: int) -> list[str]:
    """The first words of lines of the embedded corpus of Python."""
    lines = [line for text in embedded_corpus("python", "valid").sources for line in text.splitlines() if line.strip()]
    return [" ".join(line.split()[:_WORDS]) for line in lines[:: max(1, len(lines) // count)][:count]]


def contestants(folder: Path, theirs: dict[str, Path], threads: int) -> dict[str, Callable[[], Contestant]]:
    """Each contestant's name, and how it starts; `theirs` are the models of other libraries by kind."""
    found: dict[str, Callable[[], Contestant]] = {}
    for torch_precision in TORCH_PRECISIONS:
        found[f"regard, torch {torch_precision}"] = lambda precision=torch_precision: Contestant(  # type: ignore[misc]
            folder, engine=None, threads=threads, precision=precision
        )
    found |= converted_starts(folder, threads)
    for kind, model in theirs.items():
        python = python_of(kind) if kind == "sentence-transformers" else Path(sys.executable)
        words = [str(python), "-W", "ignore", str(HERE / "libraries.py"), kind, str(model), str(threads)]
        name = kind if kind == "sentence-transformers" else "transformers"
        found[name] = lambda words=words: Peer(words, threads)  # type: ignore[misc]
    return found


def measure(
    starts: dict[str, Callable[[], Contestant]], task: str, lines: Sequence[str], rounds: int, **request: object
) -> str:
    """The table of all contestants: tokens per second that they write, or texts per second that they embed."""
    passes: dict[str, list[Pass]] = {name: [] for name in starts}
    with ExitStack() as stack:
        running = {name: start() for name, start in starts.items()}
        for contestant in running.values():
            stack.callback(contestant.end)

        def block(name: str) -> Callable[[], float]:
            def work() -> float:
                found = running[name].measure(task, lines, **request)
                passes[name].append(found)
                return (found.tokens if task == "generate" else len(lines)) / found.seconds

            return work

        result = compare(task, {name: block(name) for name in running}, rounds)
    ours = next(iter(passes.values()))[0].answers
    remarks = {}
    for name, some in passes.items():
        same, cpu = sum(map(str.__eq__, some[0].answers, ours)), median(one.cpu_seconds for one in some[1:])
        remarks[name] = f"{cpu:.2f} s of processor time, {some[-1].peak_memory / 2**20:,.0f} MiB"
        if task == "generate":
            remarks[name] += f", {same:,} of {len(ours):,} as torch"
    return table(result, "tokens/s" if task == "generate" else "texts/s", remarks)
