"""Measure a model in a process of its own, so that no other model affects its time and memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from regard.api import LoadedModel, load
from regard.config.recipe import read_parts
from regard.data.read.corpus import Corpus
from regard.data.tokenize.unknown import UnknownText
from regard.errors import DamagedFile, InputError, RegardError, RunFailed
from regard.evaluation.sliding_window import document_losses
from regard.models.device import choose_device
from regard.progress import Progress
from regard.training.memory import peak
from regard.training.step import is_out_of_memory

_KINDS = {kind.exit_code: kind for kind in (InputError, DamagedFile)}
_KILLED = -9


@dataclass(frozen=True)
class Job:
    """What to measure: a model that translates these texts, or a language model that reads them."""

    folder: str
    texts: tuple[str, ...]
    translates: bool
    beam: int | None = None
    device: str = "auto"
    threads: int | None = None
    parts: Sequence[str] = ()  # Python files of the user's own parts


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The result: translations or the losses of documents, with time and memory."""

    seconds: float  # without loading
    memory: int = 0  # peak bytes, loading included, beyond what Python and torch take
    device: str
    threads: int
    beam: int = 1
    translations: Sequence[str] = ()
    losses: Sequence[float] = ()  # nats
    unknown_nats: Sequence[float] = ()  # to spell what its tokenizer does not know
    unknown: float = 0.0  # the share of characters that its tokenizer does not know
    tokens: int = 0


def measure_isolated(job: Job, progress: Progress) -> Measured:
    """Measure in a new process, which reads the job as JSON and prints its progress and its result as JSON lines."""
    command = [sys.executable, "-P", "-m", __name__]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        try:
            reply = _last_reply(process, job, progress)
        except BaseException:
            process.kill()
            raise
        exit_code = process.wait()
        errors.seek(0)
        output = [line for line in errors.read().decode(errors="replace").split("\n") if line.strip()]
    if "seconds" in reply:
        return Measured(**reply)
    if "message" in reply:
        raise _KINDS.get(reply["exit_code"], RunFailed)(f"{job.folder}: {reply['message']}")
    why = "killed (out of memory?)" if exit_code == _KILLED else "".join(output[-1:]) or f"exit code {exit_code}"
    raise RunFailed(f"the process that measured {job.folder} ended: {why}. Try: regard evaluate {job.folder}.")


def _last_reply(process: subprocess.Popen[bytes], job: Job, progress: Progress) -> dict[str, Any]:
    """The last JSON line that the process prints; empty if it dies before."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(json.dumps(asdict(job)).encode())
    reply: dict[str, Any] = {}
    for line in process.stdout:
        reply = json.loads(line)
        progress(reply.get("done", 0))
    return reply


def measure(job: Job, progress: Progress) -> Measured:
    """Measure in this process."""
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    device, parts = choose_device(job.device), read_parts(*job.parts)
    work = _translate if job.translates else _read
    found: list[Measured] = []

    def whole() -> None:
        found.append(work(load(job.folder, device=job.device, parts=parts, engine="torch"), job, progress))

    # The work is timed as well, so measuring memory must not slow it down.
    memory = peak(whole, device, exact=False)
    return replace(found[0], memory=memory)


def _translate(model: LoadedModel, job: Job, progress: Progress) -> Measured:
    options = model.defaults() if job.beam is None else replace(model.defaults(), beam=job.beam)
    model.translations(job.texts[:1], options)  # warm up
    start = time.perf_counter()
    translations = [found[0].text for found in model.translations(job.texts, options, progress=progress)]
    return _measured(start, model, beam=options.beam, translations=translations)


def _read(model: LoadedModel, job: Job, progress: Progress) -> Measured:
    unknown = UnknownText.of(model.tokenizer, job.texts)
    start = time.perf_counter()
    losses, tokens = document_losses(model, Corpus(job.texts, None, ("text",)), progress=progress)
    facts = {"unknown_nats": unknown.nats.tolist(), "unknown": unknown.share}
    return _measured(start, model, losses=losses.tolist(), tokens=tokens, **facts)


def _measured(start: float, model: LoadedModel, **facts: Any) -> Measured:
    seconds = time.perf_counter() - start
    return Measured(seconds=seconds, device=model.device.type, threads=torch.get_num_threads(), **facts)


def _reply(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def _main() -> None:
    given = json.load(sys.stdin)
    try:
        _reply(**asdict(measure(Job(**given), lambda done: _reply(done=done))))
    except RegardError as error:
        _reply(exit_code=error.exit_code, message=str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _reply(exit_code=1, message="out of memory. Give shorter texts or a smaller --beam.")


if __name__ == "__main__":
    _main()
