"""A contestant of `regard bench`: one model in one engine, in a process of its own, which works when it is asked to.

It reads one request per line of standard input and writes one reply per line, both as JSON. A process of its own makes
its threads and its peak memory its own.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard.decode.options import Options
from regard.errors import InputError, RunFailed

_SYNTHETIC, _WORDS = 64, 20  # lines, and tokens per line
_SQUARE, _PRODUCTS = 1024, 8  # of the matrix products that measure the limit


@dataclass(frozen=True)
class Pass:
    """One measured pass over some lines."""

    seconds: float
    cpu_seconds: float
    tokens: int  # that were read (embed, classify) or written
    answers: list[str]
    peak_memory: int  # bytes, of the process so far


class Contestant:
    """The process of a contestant, seen from outside."""

    def __init__(self, folder: Path, *, engine: Path | None, threads: int, parts: Sequence[Path] = (),
                 module: str = "regard.evaluation.contestant", precision: str = "float32") -> None:  # fmt: skip
        words = [str(folder), str(engine or ""), str(threads), precision, *map(str, parts)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "1000"}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, *words], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, **request: Any) -> Any:
        """Send a request and wait for its reply."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        reply = self.process.stdout.readline()
        if not reply:
            raise self._ended()
        found = json.loads(reply)
        if "error" in found:
            raise InputError(found["error"])
        return found

    def measure(self, task: str, lines: Sequence[str], **options: Any) -> Pass:
        """Work on these lines once."""
        return Pass(**self.ask(task=task, lines=list(lines), **options))

    def _ended(self) -> RunFailed:
        assert self.process.stderr is not None
        last = [line for line in self.process.stderr.read().splitlines() if line.strip()][-1:]
        code = self.process.wait()
        why = "".join(last) or f"exit code {code}"
        return RunFailed(f"a process of the measurement ended: {why}. Is there enough memory?")

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


def _load(folder: Path, engine: Path | None, threads: int, precision: Any, parts: Sequence[Path]) -> Any:
    """The model, in torch with this precision or converted."""
    if engine is not None:
        from regard.engines.open import open_converted

        return open_converted(engine, None, defaults_from=folder, threads=threads)
    import torch

    from regard.api import load
    from regard.config.recipe import read_parts

    torch.set_num_threads(threads)
    return load(folder, device="cpu", engine="torch", parts=read_parts(*parts) if parts else (), precision=precision)


class _Worker:
    """The inside of a contestant's process: a model, and what it is asked to do."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        task = request["task"]
        if task == "facts":
            return self.facts()
        if task == "limit":
            return {"products_per_second": _products_per_second()}
        work, told = _WORK[task]
        begun, cpu = time.perf_counter(), time.process_time()
        groups = [[line] for line in request["lines"]] if request.get("one_by_one") else [request["lines"]]
        found = [work(self.model, lines, request) for lines in groups]
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        both = [told(self.model, lines, some) for lines, some in zip(groups, found)]
        answers, tokens = [answer for some, _ in both for answer in some], sum(count for _, count in both)
        return vars(Pass(seconds, cpu, tokens, answers, _peak_memory()))

    def facts(self) -> dict[str, Any]:
        """What the model is and can do, and lines made from its vocabulary."""
        from regard.decode.inputs import capabilities
        from regard.layers.packed import PRECISIONS
        from regard.models.device import gains_from

        network, tokenizer = self.model.network, self.model.tokenizer
        draw = random.Random(1)
        rows = [draw.choices(range(min(4, tokenizer.vocabulary - 1), tokenizer.vocabulary), k=draw.randint(4, _WORDS))
                for _ in range(_SYNTHETIC)]  # fmt: skip
        lines = [" ".join(tokenizer.decode(row).split()) or "a" for row in rows]
        stacks = {name: getattr(network, name, None) for name in ("encoder", "decoder")}
        weights = {name: sum(one.numel() for one in stack.parameters()) for name, stack in stacks.items() if stack}
        return {
            "shape": network.shape, "capabilities": capabilities(network.description, tokenizer), "lines": lines,
            "beam": self.model.defaults().beam, "weights": weights, "max_positions": network.max_positions,
            "readout": network.vocabulary * network.description.width,
            "parameters": sum(one.numel() for one in network.parameters()),
            "precisions": [precision for precision in PRECISIONS if gains_from(network, precision)],
        }  # fmt: skip


def _translate(model: Any, lines: list[str], request: dict[str, Any]) -> Any:
    return model.translations(lines, replace(model.defaults(), beam=request["beam"]), progress=_silent)


def _generate(model: Any, lines: list[str], request: dict[str, Any]) -> Any:
    options = Options(max_tokens=request["max_tokens"]).with_tokens_of(model.defaults())
    return model.continuations(lines, options, progress=_silent)


def _written(_model: Any, _lines: list[str], found: Any) -> tuple[list[str], int]:
    return [one[0].text for one in found], sum(len(one[0].tokens) + one[0].ended for one in found)


def _embed(model: Any, lines: list[str], _request: dict[str, Any]) -> Any:
    return model.embed(lines, progress=_silent)


def _vectors(model: Any, lines: list[str], found: Any) -> tuple[list[str], int]:
    return [" ".join(f"{number:.1e}" for number in row[:4]) for row in found], _read(model, lines)


def _classify(model: Any, lines: list[str], _request: dict[str, Any]) -> Any:
    return model.classify(lines, progress=_silent)


def _predictions(model: Any, lines: list[str], found: Any) -> tuple[list[str], int]:
    names = [getattr(one, "label", None) or getattr(one, "tags", None) or f"{one.number:.2g}" for one in found]
    return [str(name) for name in names], _read(model, lines)


def _read(model: Any, lines: list[str]) -> int:
    return sum(len(ids) for ids in model.tokenizer.encode_batch(lines))


def _silent(done: float) -> None:
    pass


_Work = Callable[[Any, list[str], dict[str, Any]], Any]
_Told = Callable[[Any, list[str], Any], tuple[list[str], int]]
_WORK: dict[str, tuple[_Work, _Told]] = {
    "translate": (_translate, _written), "generate": (_generate, _written), "embed": (_embed, _vectors),
    "classify": (_classify, _predictions),
}  # fmt: skip
"""The work that is measured, and what is told of it afterwards: answers, and how many tokens were read or written."""


def _peak_memory() -> int:
    """The peak of this process in bytes; unlike getrusage, without that of its parent where the system tells."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return 1024 * int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _products_per_second() -> float:
    """Multiplications and additions per second in a large float32 product, which no model can exceed."""
    import torch

    from regard.layers.linear import multiply

    one = torch.rand(_SQUARE, _SQUARE)
    best = float("inf")
    for _ in range(_PRODUCTS):
        begun = time.perf_counter()
        multiply(one, one)
        best = min(best, time.perf_counter() - begun)
    return float(2 * _SQUARE**3 / best)


def answer_requests(load: Callable[[], Any]) -> None:
    """Answer requests to a model until standard input ends; what else is printed goes to standard error."""
    out, sys.stdout = sys.stdout, sys.stderr
    worker = _Worker(load())
    for line in sys.stdin:
        try:
            reply = worker.reply(json.loads(line))
        except InputError as error:
            reply = {"error": str(error)}
        print(json.dumps(reply), file=out, flush=True)


def main(words: list[str]) -> None:
    """Load the model that the words name, and answer requests."""
    folder, engine, threads, precision, *parts = words
    converted = Path(engine) if engine else None
    answer_requests(lambda: _load(Path(folder), converted, int(threads), precision, [Path(part) for part in parts]))


if __name__ == "__main__":
    main(sys.argv[1:])
