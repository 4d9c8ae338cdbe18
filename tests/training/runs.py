"""Small training runs in processes of their own, and digests of their results."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import time
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
steps         = 40
batch_tokens  = 300
accumulate    = 2
ema           = 0.9
average       = 2
learning_rate = 1e-2
schedule      = {{ kind = "inverse_square_root", warmup = 5 }}
save_every    = 7
valid_every   = 10
valid_lines   = 4
log_every     = 1
keep          = 3
"""

# Processes are forked from one that has imported everything, so they start quickly.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= ENVIRONMENT
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "__main__",
        "regard.cli",
        "regard.config.setup",
        "sacrebleu",
        "tensorboard.compat.proto.event_pb2",
        "tensorboard.summary.writer.record_writer",
        "torch._dynamo",
    ]
)

Driver = Callable[[], None]  # runs inside the process first


def write_recipe(folder: Path, lines: int = 120) -> Path:
    """A recipe that trains on reversed words, with its text in the folder."""
    words = [hashlib.sha256(str(i).encode()).hexdigest()[: 2 + i % 9] for i in range(lines + 12)]
    for name, part in (("train", words[:lines]), ("valid", words[lines:])):
        (folder / f"{name}.a").write_text("".join(f"{word}\n" for word in part))
        (folder / f"{name}.b").write_text("".join(f"{word[::-1]}\n" for word in part))
    path = folder / "reverse.toml"
    path.write_text(RECIPE.format(folder=folder))
    return path


class CommandProcess:
    """The command line in a process of its own, much like `subprocess.Popen`."""

    def __init__(self, arguments: list[str], driver: Driver | None = None) -> None:
        # Pipes, so that a limit on the size of files does not affect the output.
        pipes = [PROCESSES.Pipe(duplex=False) for _ in range(2)]
        self.readers = [reader for reader, _ in pipes]
        self.process = PROCESSES.Process(target=run_command, args=([writer for _, writer in pipes], arguments, driver))
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
        """Whether it ended within this many seconds."""
        self.process.join(timeout)
        return self.process.exitcode is not None

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Wait for its end; -> its output and errors."""
        if not self.wait(timeout):
            self.kill()
            raise TimeoutError(f"still running after {timeout} seconds")
        out, err = (os.read(reader.fileno(), 1 << 20).decode() for reader in self.readers)
        return out, err


def run_command(writers: list[Connection], arguments: list[str], driver: Driver | None) -> None:
    """Run the command line with its output in two pipes."""
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
    """SIGKILL at the n-th time that a write point is reached."""
    left = times

    def on_write_point(here: str) -> None:
        nonlocal left
        left -= here == point
        if here == point and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    from regard.training.loop import Run

    Run.on_write_point = staticmethod(on_write_point)


def at_steps(acts: dict[int, Callable[[Any], None]], *, after: bool = False) -> None:
    """Call functions with the trainer before the step after the n-th, or right after the n-th."""
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
    """SIGTERM during the step after the n-th."""
    at_steps({step: lambda trainer: os.kill(os.getpid(), signal.SIGTERM)})


def interrupt_thrice(step: int) -> None:
    """SIGINT three times at once during the step after the n-th."""

    def interrupt(_: Any) -> None:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)

    at_steps({step: interrupt})


def interrupt_twice(step: int) -> None:
    """SIGINT during the step after the n-th, and again a second later, before that step is saved."""

    def interrupt(_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    at_steps({step: interrupt})


def poison(step: int, value: float, *, after: bool) -> None:
    """Overwrite a weight before the step after the n-th, or right after the n-th."""

    def spoil(trainer: Any) -> None:
        next(trainer.network.parameters()).data.view(-1)[0] = value

    at_steps({step: spoil}, after=after)


def flip_a_byte(path: Path, step: int) -> None:
    """Flip a bit of the last byte of a file before the step after the n-th."""

    def flip(_: Any) -> None:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    at_steps({step: flip})


def other_torch() -> None:
    """Pretend another version of torch."""
    import torch

    torch.__version__ = "2.99.0"


def start(arguments: list[str], driver: Driver | None = None) -> CommandProcess:
    """The command line in a process of its own."""
    return CommandProcess(arguments, driver)


def regard(*arguments: str | Path, driver: Driver | None = None, timeout: float = 300) -> tuple[int, str, str]:
    """Run the command line to its end: exit code, standard output, standard error."""
    life = start([str(argument) for argument in arguments], driver)
    out, err = life.communicate(timeout)
    return life.returncode, out, err


def in_own_process(work: Callable[..., T], *given: Any) -> T:
    """The result of a function in a process of its own, where nothing else has used memory."""
    with ProcessPoolExecutor(1, PROCESSES) as process:
        return process.submit(work, *given).result()


def same_tensors(one: Path, other: Path, name: str = "model.safetensors") -> bool:
    """Whether a file of two runs holds equal tensors."""
    ours, theirs = load_file(one / name), load_file(other / name)
    return ours.keys() == theirs.keys() and all(tensor.equal(theirs[key]) for key, tensor in ours.items())


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every tensor of the last checkpoint and of the model, and the losses of every step."""
    steps = [int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*")]
    found = {}
    for path in [*(folder / "checkpoints" / f"step-{max(steps)}").glob("*.safetensors"), folder / "model.safetensors"]:
        for name, tensor in load_file(path).items():
            found[f"{path.relative_to(folder)}:{name}"] = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    found["lines"] = str(len(lines))
    for line in lines:
        values = json.loads(line)
        for name in ("loss", "valid_loss", "valid_chrf"):
            if name in values:
                found[f"step {values['step']} {name}"] = repr(values[name])
    return found
