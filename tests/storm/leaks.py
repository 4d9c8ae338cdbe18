"""Memory and descriptors stay flat over long training and many calls."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from tests.storm.rows import MEGABYTE, Outcome, Row, command, descriptors_of, memory_of
from tests.training.runs import at_steps, regard, write_recipe

MOST = 8 * MEGABYTE  # that memory may grow between the first fifth and the end
SAMPLES = 50

CALLS = """
import json, os, random, sys
import torch
import regard
from tests.small import TEXTS
from tests.storm.rows import descriptors_of, memory_of
torch.set_num_threads(1)
model, count, chance = regard.load(sys.argv[1], device="cpu"), int(sys.argv[2]), random.Random(int(sys.argv[3]))
words = sorted({word for text in TEXTS for word in text.split()})
every = max(1, count // 50)
for number in range(1, count + 1):
    model.translate(" ".join(chance.choices(words, k=chance.randint(1, 12))))
    if number % every == 0:
        print(json.dumps([number, memory_of(os.getpid()), descriptors_of(os.getpid())]), flush=True)
"""


def record(path: Path, steps: int) -> None:
    """Write memory and descriptors to a file, at intervals."""

    def note(trainer: Any) -> None:
        with open(path, "a") as file:
            row = [trainer.step, memory_of(os.getpid()), descriptors_of(os.getpid())]
            file.write(json.dumps(row) + "\n")

    every = max(1, steps // SAMPLES)
    at_steps(dict.fromkeys(range(every, steps + 1, every), note), after=True)


def judged(rows: list[list[int]], count: int) -> Outcome:
    """Whether memory and descriptors at the end are those after the first fifth."""
    early, late = rows[len(rows) // 5 : len(rows) // 5 + 5], rows[-5:]
    grown = sum(row[1] for row in late) // len(late) - sum(row[1] for row in early) // len(early)
    files = max(row[2] for row in late) - min(row[2] for row in early)
    note = f"memory {grown / MEGABYTE:+.1f} MB (now {rows[-1][1] // MEGABYTE}), descriptors {files:+d}"
    return Outcome(count if grown <= MOST and files <= 2 else 0, count, note)


def training(count: int, _seed: int, folder: Path) -> Outcome:
    """Many steps of training, with validation and checkpoints."""
    recipe, path = write_recipe(folder), folder / "rows.jsonl"
    often = ["--set", f"train.steps={count}", "--set", f"train.valid_every={max(10, count // 40)}",
             "--set", f"train.save_every={max(10, count // 40)}"]  # fmt: skip
    driver = partial(record, path, count)
    code, _, err = regard("train", recipe, "--out", folder / "run", *often, driver=driver, timeout=3600)
    assert code == 0, err
    return judged([json.loads(line) for line in path.read_text().splitlines()], count)


def translating(count: int, seed: int, folder: Path) -> Outcome:
    """Many calls of `translate`."""
    from regard.models import zoo
    from tests.small import save_model, small

    model = save_model(folder / "model", small(zoo.transformer(32, 2, 4), generation_config={"max_length": 20}))
    done = command("-c", CALLS, model, count, seed, timeout=3600)
    assert done.code == 0, done.err[-400:]
    return judged([json.loads(line) for line in done.out.splitlines()], count)


ROWS = [
    Row("L1", "steps of training: memory and descriptors", 10_000, 4, training, 200),
    Row("L2", "calls of translate: memory and descriptors", 10_000, 4, translating, 200),
]
