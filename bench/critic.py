"""The critic's claim (Merity 2019): an LSTM with one head is about as good as one with a head in every layer.

Each contestant learns from the same bytes for as long as the others, a process and a thread each, and then reads the
rest of the text: recurrent models on from what they remember, the Transformer through a window that moves on by half.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch

from regard.config.recipe import read_recipe
from regard.config.setup import read_setup
from regard.data.corpora.python_source import python_documents
from regard.data.draws import Split
from regard.errors import InputError, RunFailed
from regard.layers.positions import Rotary
from regard.models import zoo
from regard.models.model import Model
from regard.training.probe import Probe, first_epoch

PYTHON = "python"
"""As the name of a text: the standard library's source."""

BYTES = 261  # and what begins, ends and fills a text
_HELD_OUT = 0.05  # of a file, to choose the best weights by, and as much to be read in the end
_MOST = 50_000  # bytes of either
_FILLING, _TIMED = 10, 20  # steps
_SHA = 'name = "sha_rnn"\nwindow = 1000\n'
_STREAM = 'task = { kind = "truncated_bptt", length = 128, streams = 16 }\n'

Say = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """The sizes and settings that all have."""

    width: int = 128
    depth: int = 4
    learning_rate: float = 5e-3
    dropout: float = 0.1
    minutes: float = 20.0
    seed: int = 1

    def contestants(self) -> dict[str, str]:
        """By name: the recipe's tables that differ."""
        inner = self.matching(size(zoo.sha_rnn(self.width, self.depth)))
        gpt = f'name = "gpt2"\nheads = 4\ninner = {inner}\nposition = "rotary"\n'
        return {
            "LSTM, no head": f"[model]\n{_SHA}attention = []\n[text]\n{_STREAM}",
            "LSTM, one head": f"[model]\n{_SHA}[text]\n{_STREAM}",
            "LSTM, a head in every layer": f'[model]\n{_SHA}attention = "all"\n[text]\n{_STREAM}',
            "Transformer": f'[model]\n{gpt}[text]\ntask = {{ kind = "language_model", length = 256 }}\n',
        }

    def matching(self, weights: int) -> int:
        """The feed-forward's width that gives the Transformer about so many weights."""

        def distance(inner: int) -> int:
            return abs(size(zoo.gpt2(self.width, self.depth, 4, inner=inner, position=Rotary())) - weights)

        return min(range(self.width, 8 * self.width, 8), key=distance)

    def recipe(self, tables: str, folder: Path) -> str:
        """The whole recipe of a contestant; steps are set when their time is known."""
        model, _, text = tables.partition("[text]\n")
        return (
            f"{model}width = {self.width}\ndepth = {self.depth}\ndropout = {self.dropout}\n"
            f'[text]\nfolder = "{folder}"\ntrain = "train.txt"\nvalid = "valid.txt"\ntokenizer = "byte"\n{text}'
            f'[train]\nbatch_tokens = 2048\nlearning_rate = {self.learning_rate}\noptimizer = {{ kind = "muon", weight_decay = 0.05 }}\n'
            f'schedule = {{ kind = "cosine", warmup = 50, floor = 0.02 }}\nlabel_smoothing = 0.0\nsamples = 0\n'
            f"seed = {self.seed}\n"
        )


@dataclass(frozen=True)
class Effort:
    """What learning takes: seconds of the processor a step, and bytes held."""

    seconds: float
    memory: int
    parameters: int


@dataclass(frozen=True)
class Outcome:
    """What became of a contestant."""

    bits: float  # a byte
    steps: int
    effort: Effort


def size(model: Model) -> int:
    """How many weights a model of bytes has."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in model.build(BYTES).parameters())


def prepare(text: str, folder: Path) -> None:
    """Write what is learnt from, what the best weights are chosen by, and what is read in the end.

    The last two are a twentieth of a file each, or other files of Python's, as far as anybody reads them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if text == PYTHON:
        sides = ["\n".join(document for _, document in python_documents(split)).encode() for split in get_args(Split)]
    else:
        if not Path(text).is_file():
            raise InputError(f"no such file: {text} (--text). Name a text file, or `{PYTHON}`.")
        sides = list(cut(Path(text).read_bytes()))
    for split, side in zip(get_args(Split), sides):
        kept = side if split == "train" else side[:_MOST]
        (folder / f"{split}.txt").write_bytes(kept.decode(errors="ignore").encode())


def cut(whole: bytes) -> tuple[bytes, bytes, bytes]:
    """The text without its last tenth, and the two halves of that, each from the begin of a line."""
    first, second = (
        whole.find(b"\n", at, len(whole) - 1) + 1 or at
        for at in (int(len(whole) * (1 - part * _HELD_OUT)) for part in (2, 1))
    )
    return whole[:first], whole[first:second], whole[second:]


def measure(task: Task, text: str, folder: Path, jobs: int, say: Say) -> dict[str, Outcome]:
    """Let everybody learn, some at a time, and judge them. What a folder holds already is gone on with.

    Steps are timed before anybody learns, one contestant after the other, since they would slow each other down.
    """
    prepare(text, folder)
    efforts = {name: planned(task, folder, name, tables) for name, tables in task.contestants().items()}
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda item: contest(task, folder, *item, say), efforts.items())
        return dict(zip(efforts, found))


def planned(task: Task, folder: Path, name: str, tables: str) -> Effort:
    """What a step takes; kept, so that an interrupted run goes on with what was planned."""
    recipe, kept = (place(folder, name).with_suffix(suffix) for suffix in (".toml", ".json"))
    wanted = task.recipe(tables, folder.resolve())
    if recipe.exists() and recipe.read_text() != wanted:
        raise InputError(f"{recipe} was made for other settings. Choose another --keep.")
    if not kept.exists():
        recipe.write_text(wanted)
        kept.write_text(said([sys.executable, "-m", "bench.critic", str(recipe)]))
    return Effort(**json.loads(kept.read_text()))


def contest(task: Task, folder: Path, name: str, effort: Effort, say: Say) -> Outcome:
    """Learn for as long as there is time, and read."""
    here = place(folder, name)
    steps = round(60 * task.minutes / effort.seconds)
    say(f"{name}: {steps:,} steps, {effort.seconds:.3f} s each")
    settings = {"steps": steps, "valid_every": max(1, steps // 5), "save_every": max(1, steps // 5)}
    words = [word for key, value in settings.items() for word in ("--set", f"train.{key}={value}")]
    regard("train", str(here.with_suffix(".toml")), "--out", str(here), *words)
    judged = json.loads(regard("evaluate", str(here), "--text", str(folder / "test.txt"), "--json"))
    say(f"{name}: {judged['bits_per_byte']:.3f} bits a byte")
    return Outcome(judged["bits_per_byte"], steps, effort)


def place(folder: Path, name: str) -> Path:
    """Where a contestant's run is kept."""
    return folder / name.replace(",", "").replace(" ", "-")


def effort(recipe: Path) -> Effort:
    """Take steps that count for nothing, the first of them to fill what is remembered."""
    torch.set_num_threads(1)
    found = read_recipe(str(recipe), ())
    material = read_setup(found)
    probe = Probe(material.network, material.samples, found.train, torch.device("cpu"))
    memory = probe.memory(first_epoch(probe.trainer.batches).largest).total
    for number in range(_FILLING + _TIMED):
        if number == _FILLING:
            begin = time.process_time()  # which does not count what other processes take
        probe.trainer.advance()
    seconds = (time.process_time() - begin) / _TIMED
    return Effort(seconds, memory, sum(weight.numel() for weight in probe.trainer.network.parameters()))


def regard(*words: str) -> str:
    """What a verb prints, on one thread."""
    return said([sys.executable, "-m", "regard", *words, "--threads", "1"])


def said(words: list[str]) -> str:
    """What a command prints."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RunFailed(f"`{' '.join(words)}` failed: {done.stderr.strip()}")
    return done.stdout


def table(found: Mapping[str, Outcome]) -> str:
    """Markdown, a line each."""
    lines = ["| | bits a byte | parameters | steps | ms a step | MiB |", "|---|---|---|---|---|---|"]
    for name, outcome in found.items():
        lines.append(
            f"| {name} | {outcome.bits:.3f} | {outcome.effort.parameters:,} | {outcome.steps:,} "
            f"| {1000 * outcome.effort.seconds:.0f} | {outcome.effort.memory / 1024**2:,.0f} |"
        )
    return "\n".join(lines)


def facts(task: Task, jobs: int) -> dict[str, str]:
    """What was learnt by what, and how."""
    return {
        "model": f"width {task.width}, {task.depth} layers, bytes; `zoo.sha_rnn` with a window of 1,000 tokens, "
        "`zoo.gpt2` with rotary positions and a feed-forward that makes it as large as the one with one head",
        "training": f"2,048 bytes a step (16 lanes of 128, or windows of 256), muon at {task.learning_rate:g} with a cosine, "
        f"dropout {task.dropout:g}; as many steps as {task.minutes:g} minutes of processor hold, one thread "
        f"each, {jobs} at a time; best of five validations",
        "reading": f"at most {_MOST:,} bytes that neither were learnt from nor chose the weights: the last twentieth "
        "of a file, or files of Python's test part; LSTMs read them whole, the Transformer through windows of 256 that "
        "move on by half",
    }


if __name__ == "__main__":
    print(json.dumps(vars(effort(Path(sys.argv[1])))))
