"""A model measured in a process of its own, so that neither its time nor its memory is another's."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from regard.api import LoadedModel, load
from regard.data.read.corpus import Corpus
from regard.errors import DamagedFile, InputError, RegardError, RunFailed
from regard.evaluation.sliding_window import document_losses
from regard.models.device import choose_device
from regard.training.memory import peak, ran_out

Progress = Callable[[float], None]

_KINDS = {kind.exit_code: kind for kind in (InputError, DamagedFile)}
_KILLED = -9


@dataclass(frozen=True)
class Task:
    """What to measure: a model that translates these texts, or one that reads them."""

    folder: str
    texts: tuple[str, ...]
    translates: bool
    beam: int | None = None
    device: str = "auto"
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was found: translations or the losses of documents, and what they took."""

    seconds: float  # of translating or reading, not of loading
    memory: int = 0  # the most bytes held for both, beyond what Python and torch take
    device: str
    threads: int
    beam: int = 1
    answers: Sequence[str] = ()
    losses: Sequence[float] = ()  # nats
    tokens: int = 0


def measure_alone(task: Task, progress: Progress) -> Measured:
    """Measure in a new process: it reads the task as JSON, tells how far it is, and at last what it found."""
    command = [sys.executable, "-P", "-m", __name__]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        try:
            told = _told(process, task, progress)
        except BaseException:
            process.kill()
            raise
        ended = process.wait()
        errors.seek(0)
        said = [line for line in errors.read().decode(errors="replace").split("\n") if line.strip()]
    if "seconds" in told:
        return Measured(**told)
    if "message" in told:
        raise _KINDS.get(told["exit_code"], RunFailed)(f"{task.folder}: {told['message']}")
    why = "killed (out of memory?)" if ended == _KILLED else "".join(said[-1:]) or f"exit code {ended}"
    raise RunFailed(f"the process that measured {task.folder} ended: {why}. Try: regard evaluate {task.folder}.")


def _told(process: subprocess.Popen[bytes], task: Task, progress: Progress) -> dict[str, Any]:
    """The last thing that a process tells; nothing if it dies before."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(json.dumps(asdict(task)).encode())
    told: dict[str, Any] = {}
    for line in process.stdout:
        told = json.loads(line)
        progress(told.get("done", 0))
    return told


def measure(task: Task, progress: Progress) -> Measured:
    """Measure in this process."""
    if task.threads is not None:
        torch.set_num_threads(task.threads)
    device = choose_device(task.device)
    found: list[Measured] = []
    work = _translate if task.translates else _read

    def whole() -> None:
        found.append(work(load(task.folder, device=task.device), task, progress))

    # Its time is taken as well, so nothing may slow it down.
    memory = peak(whole, device, steady=False)
    return replace(found[0], memory=memory)


def _translate(model: LoadedModel, task: Task, progress: Progress) -> Measured:
    options = model.defaults() if task.beam is None else replace(model.defaults(), beam=task.beam)
    model.translations(task.texts[:1], options)  # what only the first call takes
    start = time.perf_counter()
    answers = [found[0].text for found in model.translations(task.texts, options, progress=progress)]
    return _measured(start, model, beam=options.beam, answers=answers)


def _read(model: LoadedModel, task: Task, progress: Progress) -> Measured:
    start = time.perf_counter()
    losses, tokens = document_losses(model, Corpus(task.texts, None, ("text",)))
    progress(len(task.texts))
    return _measured(start, model, losses=losses.tolist(), tokens=tokens)


def _measured(start: float, model: LoadedModel, **facts: Any) -> Measured:
    seconds = time.perf_counter() - start
    return Measured(seconds=seconds, device=model.device.type, threads=torch.get_num_threads(), **facts)


def _tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def _main() -> None:
    given = json.load(sys.stdin)
    try:
        _tell(**asdict(measure(Task(**given), lambda done: _tell(done=done))))
    except RegardError as error:
        _tell(exit_code=error.exit_code, message=str(error))
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        _tell(exit_code=1, message="out of memory. Give shorter texts or a smaller --beam.")


if __name__ == "__main__":
    _main()
