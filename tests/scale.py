"""A corpus of many lines: memory stays flat while it is read, and a resume at 99 % takes no longer than at 1 %.

    python tests/scale.py --lines 10000000 --folder /somewhere/with/room

Prints what it measures; `make storm` runs it smaller. Each measurement is a process of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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

PEAK = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
READ = """
import sys
from regard.config.recipe import read_recipe
from regard.data.read.cache import default_cache
from regard.data.tasks.translation import Translation
from regard.data.read.report import report_on
from regard.data.tokenize.train import train_tokenizers
recipe = read_recipe(sys.argv[1])
import resource
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
cache = default_cache()
corpus = recipe.text.read("train", cache)
tokenizers = train_tokenizers(recipe.text.tokenizer, corpus, cache)
samples = Translation().samples(corpus, tokenizers, cache)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report_on(corpus, samples, {}, cache)
print(len(samples), before // 1024, after // 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
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
run.trainer.cursor = Cursor(0, int(run.trainer.batches.pools * share))
run.save()
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


def python(*arguments: str) -> tuple[str, float]:
    """Run a process; -> what it said, and how long it took."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.strip(), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="regard-scale-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["REGARD_CACHE"] = str(folder / "cache")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"python {sys.version.split()[0]}, {os.cpu_count()} cores, page size {resource.getpagesize()}")
    for lines in (options.lines // 10, options.lines):
        write_corpus(folder, lines)
        recipe = folder / f"{lines}.toml"
        recipe.write_text(RECIPE.format(folder=folder, lines=lines, steps=2))
        for time_of in ("first", "second"):
            said, seconds = python("-c", READ, str(recipe))
            samples, before, after, reported = said.split()
            print(
                f"{lines:,} lines, {time_of} time: {seconds:.1f} s, {int(samples):,} pairs; peak memory {before} MiB "
                f"before reading, {after} MiB after, {reported} MiB with the report",
                flush=True,
            )
    for share in (0.01, 0.99, 0.01, 0.99):
        out = folder / f"run-{share}-{time.time_ns()}"
        python("-c", CURSOR, str(recipe), str(out), str(share))
        _, seconds = python("-m", "regard", "train", str(recipe), "--out", str(out), "--threads", "1")
        print(f"resume at {share:.0%}: {seconds:.1f} s for the whole command, one step", flush=True)


if __name__ == "__main__":
    main()
