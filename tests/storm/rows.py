"""Rows of the storm: what is tested, how often, and the outcome as n of N."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent.parent
MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """How many of the cases went well, and what was measured."""

    good: int
    total: int
    note: str = ""


class NotHereError(Exception):
    """A row that this machine cannot run, and why."""


@dataclass(frozen=True)
class Row:
    """A row: its name, what it tests, how many cases, the minutes that they take, and the function that tries them.

    The function gets a number of cases, a seed and an empty folder. Fewer than `least` cases would show nothing.
    """

    name: str
    what: str
    figure: int
    minutes: float
    run: Callable[[int, int, Path], Outcome]
    least: int = 1


def tests(*chosen: str) -> Callable[[int, int, Path], Outcome]:
    """A row that consists of tests: how many of them pass; one that was skipped did not. `chosen` are for pytest."""

    def run(_count: int, _seed: int, folder: Path) -> Outcome:
        report = folder / "report.xml"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "", f"--junitxml={report}", *chosen]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if not report.exists():
            return Outcome(0, 1, (done.stdout + done.stderr)[-500:])
        suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
        tried, failed, broken, skipped = (int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped"))
        names = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        note = f"failed: {', '.join(names[:3])}" if names else f"{skipped} skipped" if skipped else ""
        return Outcome(tried - failed - broken - skipped, tried, note)

    return run


class Case:
    """Counts cases, and prints those that went wrong."""

    def __init__(self) -> None:
        self.good = self.total = 0
        self.faults: list[str] = []

    def add(self, name: str, fault: str = "") -> None:
        """Count a case; `fault` says what is wrong with it."""
        self.good, self.total = self.good + (not fault), self.total + 1
        if fault:
            self.faults.append(f"{name}: {fault}")
            print(f"  {name}: {fault}", flush=True)

    def outcome(self, note: str = "") -> Outcome:
        """The outcome; the note begins with the first fault."""
        return Outcome(self.good, self.total, "; ".join([*self.faults[:1], *([note] if note else [])])[:400])


def memory_of(process: int) -> int:
    """The resident memory of a process, in bytes; 0 once it has ended."""
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def descriptors_of(process: int) -> int:
    """How many files and sockets a process has open."""
    return len(os.listdir(f"/proc/{process}/fd"))


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float
    processor_seconds: float
    peak: int  # the most resident memory, in bytes


def command(*arguments: object, timeout: float = 600, **environment: str) -> Ended:
    """Run `python ARGUMENTS` in a process of its own; the code of one that takes too long is -9."""
    began, used = time.monotonic(), children_seconds()
    inherited = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path_to_here()}
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, **inherited, **environment},
    )  # fmt: skip
    timer = threading.Timer(timeout, process.kill)
    timer.start()
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, memory_of(process.pid))
            time.sleep(0.02)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    out, err = process.communicate()
    timer.cancel()
    watching.join()
    return Ended(process.returncode, out, err, time.monotonic() - began, children_seconds() - used, peak)


def children_seconds() -> float:
    """The processor seconds of all children that have ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def path_to_here() -> str:
    """PYTHONPATH for a child: this tree, then what was given."""
    return os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])


def one_line(said: str) -> str:
    """What is wrong with the error that a command printed; "" if it is one line, without a traceback."""
    errors = [line for line in said.splitlines() if line.startswith("regard: error: ")]
    if "Traceback" in said or "internal error" in said:
        return f"a traceback: {said[-300:]!r}"
    return "" if len(errors) == 1 else f"{len(errors)} errors: {said[-300:]!r}"
