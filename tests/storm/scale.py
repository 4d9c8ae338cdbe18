"""A corpus of many lines: memory stays flat while it is read, and a resume at 99 % takes no longer than at 1 %."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

from tests.storm.rows import command

RECIPE = """
[model]
name  = "transformer"
width = 16
depth = 1
heads = 2
[text]
train     = "{folder}/{lines}.{{a,b}}"
tokenizer = {{ kind = "word", size = 1000 }}
[train]
steps        = {steps}
batch_tokens = 2048
save_every   = 1000000
"""

READ = """
import re, sys
from regard.config.recipe import read_recipe
from regard.data.read.cache import default_cache
from regard.data.tasks.translation import Translation
from regard.data.read.report import report_on
from regard.data.tokenize.train import train_tokenizers
def peak():  # in kilobytes, of this program alone: ru_maxrss would include that of the process that started it
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
recipe = read_recipe(sys.argv[1])
before = peak()
cache = default_cache()
corpus = recipe.text.read("train", cache)
tokenizers = train_tokenizers(recipe.text.tokenizer, corpus, cache)
samples = Translation().samples(corpus, tokenizers, cache)
after = peak()
report_on(corpus, samples, {}, cache)
print(len(samples), before // 1024, after // 1024, peak() // 1024)
"""
CURSOR = """
import sys
from pathlib import Path
import torch
from regard.training.loop import Run
from regard.training.distributed import World
from regard.training.log import Quiet
from regard.config.recipe import read_recipe
from regard.config.setup import prepare
from regard.data.batching import Cursor
folder, share = Path(sys.argv[2]), float(sys.argv[3])
folder.mkdir(parents=True, exist_ok=True)
cpu = torch.device("cpu")
run = Run(prepare(read_recipe(sys.argv[1]), folder, World(cpu), Quiet()), folder, cpu, Quiet())
from regard.training.log import Log
run.log = Log(folder, 0, [], print)
run.trainer.advance()
pools = run.trainer.batches.pools
run.trainer.cursor = Cursor(0, int(pools * share))
run.save()
print(run.trainer.cursor.pool, pools)
"""


def write_corpus(folder: Path, lines: int) -> None:
    """Pairs of lines of invented words, the second the first one turned round."""
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randrange(2, 7))) for _ in range(2000)]
    with open(folder / f"{lines}.a", "w") as one, open(folder / f"{lines}.b", "w") as other:
        for first in range(0, lines, 10_000):
            rows = [draw.choices(words, k=draw.randrange(3, 9)) for _ in range(min(10_000, lines - first))]
            one.write("".join(" ".join(row) + "\n" for row in rows))
            other.write("".join(" ".join(reversed(row)) + "\n" for row in rows))


@dataclass(frozen=True)
class Reading:
    """What reading a corpus took: seconds of the processor, and megabytes beyond the imports."""

    pairs: int
    seconds: float
    megabytes: int
    with_report: int


def python(*arguments: str, cache: Path) -> tuple[str, float]:
    """Run a process; -> what it said, and its seconds of the processor, which other programs do not lengthen."""
    done = command(*arguments, timeout=3000, REGARD_CACHE=str(cache))
    if done.code:
        raise AssertionError(done.err[-400:])
    return done.out.strip(), done.processor_seconds


def write_recipe(folder: Path, lines: int) -> Path:
    """A corpus of so many lines, and a recipe for it."""
    write_corpus(folder, lines)
    recipe = folder / f"{lines}.toml"
    recipe.write_text(RECIPE.format(folder=folder, lines=lines, steps=2))
    return recipe


def read(recipe: Path, cache: Path) -> Reading:
    """Read, tokenize and report on a corpus in a process of its own."""
    said, seconds = python("-c", READ, str(recipe), cache=cache)
    pairs, before, after, reported = map(int, said.split())
    return Reading(pairs, seconds, after - before, reported - before)


def resume_seconds(recipe: Path, folder: Path, share: float, cache: Path) -> float:
    """The processor seconds of a command that resumes after this share of the first epoch, and trains one step."""
    out = folder / f"run-{share}-{time.time_ns()}"
    pool, pools = map(int, python("-c", CURSOR, str(recipe), str(out), str(share), cache=cache)[0].split())
    if abs(pool / pools - share) > 0.01 + 1 / pools:
        raise AssertionError(f"the run stands at {pool} of {pools}, not at {share:.0%}")
    said, seconds = python("-m", "regard", "train", str(recipe), "--out", str(out), "--threads", "1", cache=cache)
    if "resuming at step 1 " not in said:
        raise AssertionError(f"the run did not resume: {said[-400:]}")
    return seconds
