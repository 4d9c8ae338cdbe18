"""Small runs in real processes, and what is left of them."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file

T = TypeVar("T")

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

# Processes are forked from one that has imported everything, so that starting one takes no time.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= ENVIRONMENT
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "__main__",
        "regard.cli",
        "regard.config.setup",
        "regard.config.recipes",
        "sacrebleu",
        "tensorboard.compat.proto.event_pb2",
        "tensorboard.summary.writer.record_writer",
        "torch._dynamo",
    ]
)

Driver = Callable[[], None]  # what is changed inside the process before it starts


def write_recipe(folder: Path, lines: int = 120) -> Path:
    """A recipe that learns to turn words round, on text written into the folder."""
    words = [hashlib.sha256(str(i).encode()).hexdigest()[: 2 + i % 9] for i in range(lines + 12)]
    for name, part in (("train", words[:lines]), ("valid", words[lines:])):
        (folder / f"{name}.a").write_text("".join(f"{word}\n" for word in part))
        (folder / f"{name}.b").write_text("".join(f"{word[::-1]}\n" for word in part))
    path = folder / "reverse.toml"
    path.write_text(RECIPE.format(folder=folder))
    return path


class Life:
    """The command line in a process of its own, much like `subprocess.Popen`."""

    def __init__(self, arguments: list[str], driver: Driver | None = None) -> None:
        # Pipes, so that a limit on the size of files does not touch what is said.
        pipes = [PROCESSES.Pipe(duplex=False) for _ in range(2)]
        self.readers = [reader for reader, _ in pipes]
        self.process = PROCESSES.Process(target=live, args=([writer for _, writer in pipes], arguments, driver))
        self.process.start()
        for _, writer in pipes:
            writer.close()
        self.pid = self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.process.kill()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it ended within so many seconds."""
        self.process.join(timeout)
        return self.process.exitcode is not None

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Wait for its end; -> what it said."""
        if not self.wait(timeout):
            self.kill()
            raise TimeoutError(f"still running after {timeout} seconds")
        out, err = (os.read(reader.fileno(), 1 << 20).decode() for reader in self.readers)
        return out, err


def live(writers: list[Connection], arguments: list[str], driver: Driver | None) -> None:
    """What a process does: the command line, its output in two pipes."""
    for number, writer in enumerate(writers, start=1):
        os.dup2(writer.fileno(), number)
        writer.close()
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    if driver is not None:
        driver()
    from regard.cli import main

    sys.argv = ["regard", *arguments]
    main()


def kill_at(point: str, times: int) -> None:
    """Die when a point of saving is reached for the n-th time."""
    left = times

    def reached(here: str) -> None:
        nonlocal left
        left -= here == point
        if here == point and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    from regard.training.loop import Run

    Run.reached = staticmethod(reached)


def at_steps(acts: dict[int, Callable[[Any], None]], *, after: bool = False) -> None:
    """Do something with the trainer before it takes the step after the n-th, or right after it took the n-th."""
    from regard.training.step import Trainer

    advance = Trainer.advance

    def advanced(self: Any) -> Any:
        before = self.step
        if not after and before in acts:
            acts[before](self)
        report = advance(self)
        if after and self.step in acts:
            acts[self.step](self)
        return report

    Trainer.advance = advanced


def terminate_at(step: int) -> None:
    """Be told to end during the step after the n-th."""
    at_steps({step: lambda trainer: os.kill(os.getpid(), signal.SIGTERM)})


def interrupt_twice(step: int) -> None:
    """Ctrl-C during the step after the n-th, and again while that step is being saved."""
    from regard.training.loop import Run

    def reached(here: str) -> None:
        if here == "inside optimizer.safetensors":
            os.kill(os.getpid(), signal.SIGINT)

    def interrupt(_: Any) -> None:
        Run.reached = staticmethod(reached)
        os.kill(os.getpid(), signal.SIGINT)

    at_steps({step: interrupt})


def poison(step: int, value: float, *, after: bool) -> None:
    """Spoil a weight before the step after the n-th, or right after the n-th."""

    def spoil(trainer: Any) -> None:
        next(trainer.network.parameters()).data.view(-1)[0] = value

    at_steps({step: spoil}, after=after)


def other_torch() -> None:
    """Be another version of torch."""
    import torch

    torch.__version__ = "2.99.0"


def start(arguments: list[str], driver: Driver | None = None) -> Life:
    """The command line in a process of its own."""
    return Life(arguments, driver)


def regard(*arguments: str | Path, driver: Driver | None = None) -> tuple[int, str, str]:
    """Run the command line to its end: exit code, standard output, standard error."""
    life = start([str(argument) for argument in arguments], driver)
    out, err = life.communicate()
    return life.returncode, out, err


def alone(work: Callable[..., T], *given: Any) -> T:
    """What a function returns in a process of its own, where nothing else has touched memory."""
    with ProcessPoolExecutor(1, PROCESSES) as process:
        return process.submit(work, *given).result()


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
