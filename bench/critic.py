"""The claim of SHA-RNN (Merity 2019): an LSTM with one head is about as good as one with a head in every layer.

All models are trained on the same bytes for equal time, each in one process with one thread, and evaluated on held-out
text: recurrent models with carried memory, the Transformer with a sliding window that moves by half its length.
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
from regard.data.corpora import Split
from regard.data.corpora.python_source import python_documents
from regard.errors import InputError, RunFailed
from regard.layers.positions import Rotary
from regard.models import zoo
from regard.models.model import Model
from regard.training.memory import Probe, first_epoch

PYTHON = "python"
"""As the name of a text: the standard library's source."""

BYTES = 261  # and the special tokens
_HELD_OUT = 0.05  # of a file for validation, and as much for the test
_MOST = 50_000  # bytes of either
_FILLING, _TIMED = 10, 20  # steps
_SHA = 'name = "sha_rnn"\nwindow = 1000\n'
_STREAM = 'task = { kind = "truncated_bptt", length = 128, streams = 16 }\n'

Say = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """The sizes and settings that all models share."""

    width: int = 128
    depth: int = 4
    learning_rate: float = 5e-3
    dropout: float = 0.1
    minutes: float = 20.0
    seed: int = 1

    def contestants(self) -> dict[str, str]:
        """By model: the tables of its recipe that differ."""
        inner = self.matching(size(zoo.sha_rnn(self.width, self.depth)))
        gpt = f'name = "gpt2"\nheads = 4\ninner = {inner}\nposition = "rotary"\n'
        return {
            "LSTM, no head": f"[model]\n{_SHA}attention = []\n[text]\n{_STREAM}",
            "LSTM, one head": f"[model]\n{_SHA}[text]\n{_STREAM}",
            "LSTM, a head in every layer": f'[model]\n{_SHA}attention = "all"\n[text]\n{_STREAM}',
            "Transformer": f'[model]\n{gpt}[text]\ntask = {{ kind = "language_model", length = 256 }}\n',
        }

    def matching(self, weights: int) -> int:
        """The inner width that gives the Transformer about so many weights."""

        def distance(inner: int) -> int:
            return abs(size(zoo.gpt2(self.width, self.depth, 4, inner=inner, position=Rotary())) - weights)

        return min(range(self.width, 8 * self.width, 8), key=distance)

    def recipe(self, tables: str, folder: Path) -> str:
        """The whole recipe of a model; steps are set when their time is known."""
        model, _, text = tables.partition("[text]\n")
        return (
            f"{model}width = {self.width}\ndepth = {self.depth}\ndropout = {self.dropout}\n"
            f'[text]\nfolder = "{folder}"\ntrain = "train.txt"\nvalid = "valid.txt"\ntokenizer = "byte"\n{text}'
            f"[train]\nbatch_tokens = 2048\nlearning_rate = {self.learning_rate}\n"
            f'optimizer = {{ kind = "muon", weight_decay = 0.05 }}\n'
            f'schedule = {{ kind = "cosine", warmup = 50, floor = 0.02 }}\nlabel_smoothing = 0.0\nsamples = 0\n'
            f"seed = {self.seed}\n"
        )


@dataclass(frozen=True)
class Effort:
    """The cost of training: CPU seconds per step, bytes of memory, parameters."""

    seconds: float
    memory: int
    parameters: int


@dataclass(frozen=True)
class Outcome:
    """The result of a model."""

    bits: float  # per byte
    steps: int
    effort: Effort


def size(model: Model) -> int:
    """How many weights a model of bytes has."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in model.build(BYTES).parameters())


def prepare(text: str, folder: Path) -> None:
    """Write the training, validation and test text.

    The last two are a twentieth of a file each, or other files of Python's library, up to a maximum length.
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
    """The text without its last tenth, and the two halves of that, each from the start of a line."""
    first, second = (
        whole.find(b"\n", at, len(whole) - 1) + 1 or at
        for at in (int(len(whole) * (1 - part * _HELD_OUT)) for part in (2, 1))
    )
    return whole[:first], whole[first:second], whole[second:]


def measure(task: Task, text: str, folder: Path, jobs: int, say: Say) -> dict[str, Outcome]:
    """Train all models, `jobs` at a time, and evaluate them; interrupted runs resume.

    Steps are timed before any training, one model after the other, since they would slow each other down.
    """
    prepare(text, folder)
    efforts = {name: planned(task, folder, name, tables) for name, tables in task.contestants().items()}
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda item: contest(task, folder, *item, say), efforts.items())
        return dict(zip(efforts, found))


def planned(task: Task, folder: Path, name: str, tables: str) -> Effort:
    """The cost of a step; kept, so that an interrupted run resumes with the same number of steps."""
    recipe, kept = (run_folder(folder, name).with_suffix(suffix) for suffix in (".toml", ".json"))
    wanted = task.recipe(tables, folder.resolve())
    if recipe.exists() and recipe.read_text() != wanted:
        raise InputError(f"{recipe} was made for other settings. Choose another --keep.")
    if not kept.exists():
        recipe.write_text(wanted)
        kept.write_text(output([sys.executable, "-m", "bench.critic", str(recipe)]))
    return Effort(**json.loads(kept.read_text()))


def contest(task: Task, folder: Path, name: str, effort: Effort, say: Say) -> Outcome:
    """Train for the given time, and evaluate."""
    here = run_folder(folder, name)
    steps = round(60 * task.minutes / effort.seconds)
    say(f"{name}: {steps:,} steps, {effort.seconds:.3f} s each")
    settings = {"steps": steps, "valid_every": max(1, steps // 5), "save_every": max(1, steps // 5)}
    words = [word for key, value in settings.items() for word in ("--set", f"train.{key}={value}")]
    regard("train", str(here.with_suffix(".toml")), "--out", str(here), *words)
    evaluated = json.loads(regard("evaluate", str(here), "--text", str(folder / "test.txt"), "--json"))
    say(f"{name}: {evaluated['bits_per_byte']:.3f} bits per byte")
    return Outcome(evaluated["bits_per_byte"], steps, effort)


def run_folder(folder: Path, name: str) -> Path:
    """The folder of a model's run."""
    return folder / name.replace(",", "").replace(" ", "-")


def effort(recipe: Path) -> Effort:
    """Time some throw-away steps, after some untimed ones that fill the memory."""
    torch.set_num_threads(1)
    found = read_recipe(str(recipe), ())
    material = read_setup(found)
    probe = Probe(material.network, material.samples, found.train, torch.device("cpu"))
    memory = probe.memory(first_epoch(probe.trainer.batches).largest).total
    for number in range(_FILLING + _TIMED):
        if number == _FILLING:
            begin = time.process_time()  # without the time of other processes
        probe.trainer.advance()
    seconds = (time.process_time() - begin) / _TIMED
    return Effort(seconds, memory, sum(weight.numel() for weight in probe.trainer.network.parameters()))


def regard(*words: str) -> str:
    """The output of a command of regard, on one thread."""
    return output([sys.executable, "-m", "regard", *words, "--threads", "1"])


def output(words: list[str]) -> str:
    """The standard output of a command."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RunFailed(f"`{' '.join(words)}` failed: {done.stderr.strip()}")
    return done.stdout


def table(found: Mapping[str, Outcome]) -> str:
    """Markdown, one line per model."""
    lines = ["| | bits per byte | parameters | steps | ms per step | MiB |", "|---|---|---|---|---|---|"]
    for name, outcome in found.items():
        lines.append(
            f"| {name} | {outcome.bits:.3f} | {outcome.effort.parameters:,} | {outcome.steps:,} "
            f"| {1000 * outcome.effort.seconds:.0f} | {outcome.effort.memory / 1024**2:,.0f} |"
        )
    return "\n".join(lines)


def facts(task: Task, jobs: int) -> dict[str, str]:
    """Models, training and evaluation, in words."""
    return {
        "model": f"width {task.width}, {task.depth} layers, bytes; `zoo.sha_rnn` with a window of 1,000 tokens, "
        "`zoo.gpt2` with rotary positions and a feed-forward that makes it as large as the one with one head",
        "training": f"2,048 bytes per step (16 streams of 128, or windows of 256), muon at {task.learning_rate:g} "
        f"with a cosine, dropout {task.dropout:g}; as many steps as fit into {task.minutes:g} CPU minutes, one thread "
        f"each, {jobs} at a time; best of five validations",
        "test": f"at most {_MOST:,} bytes used neither for training nor for validation: the last twentieth "
        "of a file, or files of Python's test part; LSTMs read them whole, the Transformer with a sliding window "
        "of 256 that moves by half",
    }


if __name__ == "__main__":
    print(json.dumps(vars(effort(Path(sys.argv[1])))))
