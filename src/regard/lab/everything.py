"""All claims at their quick size, some at a time, each in a process of one thread, and one report of them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from regard.errors import InputError, Interrupted, RunFailed
from regard.lab.catalogue import NAMES, facts
from regard.lab.experiment import Finding, read_finding, request
from regard.progress import progress

Say = Callable[[str], None]


def run_all(
    folder: Path, *, minutes: float | None = None, seeds: int | None = None, first_seed: int = 1,
    jobs: int | None = None, say: Say = print,
) -> list[Finding]:  # fmt: skip
    """Run every claim into a folder of its own, the longest first; what is stored there is not repeated.

    `minutes`: of each claim, at least its fewest. A claim that fails does not stop the others.
    """
    if minutes is not None and not 0 < minutes < math.inf:
        raise InputError(f"claims need more than 0 minutes, got {minutes:g} (--minutes). Leave it out for the fewest.")
    request(NAMES[0], None, seeds, (), None, first_seed)  # refuses seeds that no claim could use
    ordered = sorted(NAMES, key=lambda name: -float(facts(name)["fewest"]))
    failed: dict[str, str] = {}
    with _children() as start, progress(len(NAMES), "claims") as advance:

        def one(name: str) -> None:
            begun = time.monotonic()
            error = start(_command(name, folder / name, minutes, seeds, first_seed))
            finding = read_finding(folder / name) if error is None else None
            if finding is None:
                failed[name] = error or "it wrote no finding"
            said = failed.get(name) or finding.verdict if finding else failed[name]
            say(f"{name}: {said} ({(time.monotonic() - begun) / 60:.1f} min)")
            advance(1)

        with ThreadPoolExecutor(jobs or max(1, min(len(NAMES), os.cpu_count() or 1))) as pool:
            list(pool.map(one, ordered))
    if failed:
        name, error = next(iter(failed.items()))
        raise RunFailed(f"{len(failed)} of {len(NAMES)} claims failed: {', '.join(failed)}. The first: {name}: {error}")
    return [found for name in NAMES if (found := read_finding(folder / name)) is not None]


def _command(name: str, out: Path, minutes: float | None, seeds: int | None, first_seed: int) -> list[str]:
    size = max(float(facts(name)["fewest"]), minutes or 0.0)
    words = [sys.executable, "-m", "regard", "lab", name, "--minutes", f"{size:g}", "--out", str(out)]
    words += ["--first-seed", str(first_seed)]
    return [*words, *(["--seeds", str(seeds)] if seeds is not None else [])]


@contextmanager
def _children() -> Iterator[Callable[[Sequence[str]], str | None]]:
    """Start processes and wait for them; they end with this one. -> the error line of a process, or None."""
    alive: set[subprocess.Popen[str]] = set()
    lock, ended = threading.Lock(), threading.Event()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(words: Sequence[str]) -> str | None:
        with lock:
            if ended.is_set():
                return "stopped"
            child = subprocess.Popen(
                words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
            )
            alive.add(child)
        said = child.communicate()[1]
        with lock:
            alive.discard(child)
        lines = said.strip().splitlines()
        return None if child.returncode == 0 else (lines[-1] if lines else f"ended with {child.returncode}")

    try:
        yield start
    except KeyboardInterrupt:
        raise Interrupted("stopped by SIGINT. Run the same command to resume.", signal=2) from None
    finally:
        with lock:
            ended.set()
            for child in alive:
                child.terminate()
