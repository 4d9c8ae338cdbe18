"""Small runs in real processes, and what is left of them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file

RECIPE = """
[model]
name    = "transformer"
width   = 16
depth   = 1
heads   = 2
inner   = 24
dropout = 0.2

[text]
train     = "{folder}/train.{{a,b}}"
valid     = "{folder}/valid.{{a,b}}"
tokenizer = "character"

[train]
steps        = 40
batch_tokens = 300
accumulate   = 2
ema          = 0.9
average      = 2
rate         = 1e-2
schedule     = {{ kind = "inverse_square_root", warmup = 10 }}
save_every   = 7
valid_every  = 10
valid_lines  = 4
log_every    = 1
keep         = 3
"""

# Runs the command line, and dies at the n-th time that a point of saving is reached, or is told to end at step n.
DRIVER = """
import os, signal, sys
from regard.learn.loop import Run
from regard.learn.trainer import Trainer
point, times = sys.argv[1], int(sys.argv[2])
def reached(here):
    global times
    if here == point:
        times -= 1
        if times == 0:
            os.kill(os.getpid(), signal.SIGKILL)
Run.reached = staticmethod(reached)
if point == "terminate":
    advance = Trainer.advance
    def terminated(self):
        if self.step == times:
            os.kill(os.getpid(), signal.SIGTERM)
        return advance(self)
    Trainer.advance = terminated
from regard.cli import run
sys.exit(run(sys.argv[3:]))
"""

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def write_recipe(folder: Path, lines: int = 120) -> Path:
    """A recipe that learns to turn words round, on text written into the folder."""
    words = [hashlib.sha256(str(i).encode()).hexdigest()[: 2 + i % 9] for i in range(lines + 12)]
    for name, part in (("train", words[:lines]), ("valid", words[lines:])):
        (folder / f"{name}.a").write_text("".join(f"{word}\n" for word in part))
        (folder / f"{name}.b").write_text("".join(f"{word[::-1]}\n" for word in part))
    path = folder / "reverse.toml"
    path.write_text(RECIPE.format(folder=folder))
    return path


def start(arguments: list[str], driver: tuple[str, int] | None = None) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    program = ["-m", "regard"] if driver is None else ["-c", DRIVER, driver[0], str(driver[1])]
    return subprocess.Popen(
        [sys.executable, *program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL, env=ENVIRONMENT,
    )  # fmt: skip


def regard(*arguments: str, driver: tuple[str, int] | None = None) -> tuple[int, str, str]:
    """Run the command line to its end: exit code, standard output, standard error."""
    process = start([str(argument) for argument in arguments], driver)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def remains(folder: Path) -> dict[str, str]:
    """SHA-256 of every tensor of the last checkpoint and of the model, and the losses of every step."""
    steps = [int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*")]
    found = {}
    for path in [*(folder / "checkpoints" / f"step-{max(steps)}").glob("*.safetensors"), folder / "model.safetensors"]:
        for name, tensor in load_file(path).items():
            found[f"{path.name}:{name}"] = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    found["lines"] = str(len(lines))
    for line in lines:
        values = json.loads(line)
        for name in ("loss", "valid_loss", "valid_chrf"):
            if name in values:
                found[f"step {values['step']} {name}"] = repr(values[name])
    return found
