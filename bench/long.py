"""Long texts: time and memory of a training step by length, ours and the peers', each in its own process."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import median

from bench.reformers import LAYERS, LSH, MODELS, PLAIN, REFORMER_PYTORCH, TRANSFORMERS, Case
from regard.errors import InputError, RunFailed

GIB = 1024**3
_OFTEN = 0.1  # seconds between two looks at a process
_HOPELESS = 1.2  # a case estimated at this many times the limit is not tried
_FURTHEST_ALONE = 65_536  # tokens
DEEP = (LSH, PLAIN, REFORMER_PYTORCH)
"""The models measured by depth."""
_LONG = 30.0  # seconds, beyond which a step is not repeated
# Large freed blocks are returned at once and allocated in huge pages, small ones are kept for reuse: this costs hardly
# any time or memory.
_TIMED = {
    "MALLOC_MMAP_THRESHOLD_": "8388608",
    "MALLOC_TRIM_THRESHOLD_": "536870912",
    "THP_MEM_ALLOC_ENABLE": "1",
}
_FRUGAL = {"MALLOC_MMAP_THRESHOLD_": "131072"}  # all freed memory is returned at once, so peaks show what was needed


@dataclass(frozen=True)
class Limits:
    """The limits of a measurement; our own model has no time limit."""

    seconds: float = 600.0
    bytes: int = 20 * GIB

    def of(self, who: str) -> Limits:
        """The limits of one model."""
        return replace(self, seconds=math.inf) if who == LSH else self


@dataclass(frozen=True)
class Cost:
    """Time and memory of a step; `estimated` from shorter texts if it exceeds the limits."""

    seconds: float
    peak: float  # bytes, of the whole process
    before: float  # bytes, before its first step
    estimated: bool = False


Costs = Mapping[tuple[str, int], Cost]
"""By model and length, or depth."""


class Kept:
    """Measurements, one line of JSON each; with a file, an interrupted run resumes."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.found = path, {}
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            entry = json.loads(line)
            self.found[entry["key"]] = entry["cost"]

    def get(self, case: Case, turn: int, limits: Limits) -> Cost | None:
        """The cost of a case in this turn, kept or measured now; None if it exceeds the limits."""
        key = json.dumps({**asdict(case), "turn": turn, **asdict(limits)})
        if key not in self.found:
            cost = measure(case, limits)
            self.found[key] = None if cost is None else asdict(cost)
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps({"key": key, "cost": self.found[key]}) + "\n")
        kept = self.found[key]
        return None if kept is None else Cost(**kept)


def measure(case: Case, limits: Limits) -> Cost | None:
    """The cost of a case; None if it exceeds the limits.

    Short ones run twice, for time and for memory: returning all memory at once costs time.
    """
    timed = observed(case, limits, _TIMED)
    if timed is None or timed.seconds > _LONG:
        return timed
    frugal = observed(replace(case, steps=2), limits, _FRUGAL)
    return None if frugal is None else replace(frugal, seconds=timed.seconds)


def observed(case: Case, limits: Limits, surroundings: Mapping[str, str]) -> Cost | None:
    """Run a case in its own process; None if it exceeds the limits."""
    words = [sys.executable, "-m", "bench.reformers", json.dumps(asdict(case)), str(limits.bytes)]
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen(words, stdout=stdout, stderr=stderr, env={**os.environ, **surroundings})
        try:
            within = watch(process, limits)
        finally:
            process.kill()
            process.wait()
        stdout.seek(0)
        stderr.seek(0)
        errors = stderr.read().strip()
        if not within or "allocate memory" in errors or "MemoryError" in errors:
            return None
        if process.returncode:
            last = errors.splitlines()[-1] if errors else f"exit code {process.returncode}"
            raise RunFailed(f"{case.who} failed at {case.length:,} tokens ({last}). Leave it out with --who.")
        return Cost(**json.loads(stdout.read()))


def watch(process: subprocess.Popen[bytes], limits: Limits) -> bool:
    """Wait for a process; -> whether it ended within the limits. One that did not is still running."""
    end = time.monotonic() + limits.seconds
    while process.poll() is None:
        if time.monotonic() > end or held(process.pid) > limits.bytes:
            return False
        time.sleep(_OFTEN)
    return process.returncode != -9  # killed by the system when memory ran out


def held(pid: int) -> int:
    """Bytes that a process holds."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def sweep(cases: Sequence[Case], turns: int, limits: Limits, kept: Kept, axis: str = "length") -> Costs:
    """The median cost of each case over some turns; in a turn all run one after the other, shortest first.

    Cases beyond the limits, and all longer ones, are extrapolated from the two longest within them.
    """
    if turns < 1:
        raise InputError(f"repeat must be 1 or more, got {turns} (--repeat).")
    found: dict[tuple[str, int], list[Cost]] = {}
    given_up: set[str] = set()
    for case in shortest_first(cases, axis):
        known = {size: costs[0] for (who, size), costs in found.items() if who == case.who}
        size = getattr(case, axis)
        cost = None
        if case.who not in given_up and not hopeless(known, size, limits.of(case.who)):
            cost = kept.get(case, 0, limits.of(case.who))
        if cost is None:
            given_up.add(case.who)
        else:
            found[case.who, size] = [cost]
    for turn in range(1, turns):
        for case in shortest_first(cases[:: -1 if turn % 2 else 1], axis):
            costs = found.get((case.who, getattr(case, axis)), [])
            again = kept.get(case, turn, limits.of(case.who)) if costs and costs[0].seconds < _LONG else None
            costs += [] if again is None else [again]
    return extrapolate({key: middle(costs) for key, costs in found.items()}, {getattr(case, axis) for case in cases})


def shortest_first(cases: Iterable[Case], axis: str) -> list[Case]:
    """Cases sorted by length or depth (a stable sort)."""
    return sorted(cases, key=lambda case: int(getattr(case, axis)))


def hopeless(known: Mapping[int, Cost], size: int, limits: Limits) -> bool:
    """Whether the estimate is far beyond the limits."""
    shorter = {at: cost for at, cost in known.items() if at < size}
    cost = extended(shorter, size)
    return cost is not None and max(cost.seconds / limits.seconds, cost.peak / limits.bytes) > _HOPELESS


def middle(costs: Sequence[Cost]) -> Cost:
    """The medians."""
    return Cost(*(median(getattr(cost, name) for cost in costs) for name in ("seconds", "peak", "before")))


def extrapolate(costs: Costs, sizes: Iterable[int]) -> Costs:
    """The costs, with missing ones extrapolated if two are known."""
    whole = dict(costs)
    for who in {who for who, _ in costs}:
        known = {size: cost for (name, size), cost in costs.items() if name == who}
        for size in sizes:
            cost = known.get(size) or extended(known, size)
            if cost is not None:
                whole[who, size] = cost
    return whole


def extended(known: Mapping[int, Cost], size: int) -> Cost | None:
    """Extrapolated from the two longest cases, as a power of the length; None if fewer are known."""
    if len(known) < 2:
        return None
    near, far = sorted(known)[-2:]

    def power(of: Callable[[Cost], float]) -> float:
        low, high = max(of(known[near]), 1e-9), max(of(known[far]), 1e-9)
        growth = math.log(high / low) / math.log(far / near)
        return high * (size / far) ** growth

    before = known[far].before
    return Cost(power(lambda cost: cost.seconds), before + power(lambda cost: cost.peak - cost.before), before, True)


def by_length(costs: Costs, whose: Sequence[str], show: Callable[[Cost], str], first: str = "tokens") -> str:
    """Markdown: one line per length, one column per model; ~ marks an estimate."""
    lines = [f"| {first} | {' | '.join(whose)} |", f"|---|{'---|' * len(whose)}"]
    for size in sorted({size for _, size in costs}):
        cells = []
        for who in whose:
            cost = costs.get((who, size))
            cells.append("" if cost is None else f"{'~' if cost.estimated else ''}{show(cost)}")
        lines.append(f"| {size:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def seconds(cost: Cost) -> str:
    """A time with its significant digits."""
    return f"{cost.seconds:.2f}" if cost.seconds < 10 else f"{cost.seconds:,.0f}"


def peak(cost: Cost) -> str:
    """Peak memory of the process, in GiB."""
    return f"{cost.peak / GIB:.2f}" if cost.peak < 10 * GIB else f"{cost.peak / GIB:,.1f}"


def active(cost: Cost) -> str:
    """Memory of a step, without what the process held before it, in MiB."""
    return f"{(cost.peak - cost.before) / 1024**2:,.0f}"


def plot(costs: Costs, whose: Sequence[str], path: Path) -> None:
    """Time and memory by length, both axes logarithmic; estimates are dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    panels = figure.subplots(1, 2)
    sides = (("seconds per step", lambda cost: cost.seconds), ("peak GiB", lambda cost: cost.peak / GIB))
    for panel, (label, value) in zip(panels, sides):
        for number, who in enumerate(whose):
            points = sorted((size, cost) for (name, size), cost in costs.items() if name == who)
            sure = [(size, value(cost)) for size, cost in points if not cost.estimated]
            unsure = sure[-1:] + [(size, value(cost)) for size, cost in points if cost.estimated]
            panel.plot(*zip(*sure), "o-", color=f"C{number}", label=who)
            if len(unsure) > 1:
                panel.plot(*zip(*unsure), "--", color=f"C{number}")
        panel.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label)
        panel.grid(alpha=0.3)
    panels[0].legend(frameon=False)
    figure.savefig(path)


@dataclass(frozen=True)
class Found:
    """Steps by length, memory by depth, and a single attention layer by length."""

    steps: Costs
    depths: Costs
    alone: Costs

    def tables(self, whose: Sequence[str]) -> str:
        """Markdown tables; a model that was not measured has no column."""
        shown = [
            ("Seconds per step", self.steps, seconds, "tokens"),
            ("Peak GiB of the whole process", self.steps, peak, "tokens"),
            ("MiB of a step by depth, without what the process held before it", self.depths, active, "layers"),
            ("Seconds of one layer of attention, forward and backward pass", self.alone, seconds, "tokens"),
            ("MiB of this layer, without what the process held before it", self.alone, active, "tokens"),
        ]
        parts = []
        for title, costs, show, first in shown:
            taking_part = [who for who in whose if any(who == name for name, _ in costs)]
            parts += [f"{title}:\n\n{by_length(costs, taking_part, show, first)}"] if costs else []
        return "\n\n".join(parts)


def measure_all(
    base: Case,
    whose: Sequence[str],
    lengths: Sequence[int],
    depths: Sequence[int],
    depth_length: int,
    turns: int,
    limits: Limits,
    kept: Kept,
) -> Found:
    """Steps at every length; of some models also by depth at one length; then one attention layer by length."""
    steps = [replace(base, who=who, length=length) for length in lengths for who in whose]
    deep = [
        replace(base, who=who, length=depth_length, depth=depth) for depth in depths for who in whose if who in DEEP
    ]
    alone = [replace(case, work="attention") for case in steps if case.who in LAYERS and case.length <= _FURTHEST_ALONE]
    return Found(
        sweep(steps, turns, limits, kept), sweep(deep, turns, limits, kept, "depth"), sweep(alone, turns, limits, kept)
    )


def contestants(named: Sequence[str] | None) -> list[str]:
    """The named models, or all."""
    for who in named or ():
        if who not in MODELS:
            raise InputError(f"no model is called {who!r} (--who). They are: {'; '.join(MODELS)}.")
    return list(named or MODELS)


def peers(whose: Sequence[str]) -> list[str]:
    """The peers' packages among them; each is imported at once, so that a missing one is an error now."""
    found = [who for who in (REFORMER_PYTORCH, TRANSFORMERS) if who in whose]
    for package in found:
        import_module(package.replace("-", "_"))
    return found


def rounds(base: Case) -> str:
    """The number of hash rounds, in words."""
    return f"{base.rounds} round{'s' * (base.rounds > 1)} of hashing"


def facts(base: Case, turns: int, limits: Limits) -> dict[str, str]:
    """The sizes, and how they were measured."""
    return {
        "model": f"{base.depth} layers, width {base.width}, {base.heads} heads, feed-forward {4 * base.width}, bytes, "
        f"one text per step; LSH: {rounds(base)}, one bucket per window of {base.window}; ours attends to the last "
        f"{base.window} keys of a bucket, in chunks and theirs to two chunks of {base.window}",
        "measured": f"each in its own processes, {turns} times in turns (medians), once beyond {_LONG:g} s; "
        f"AdamW; ~ is extrapolated from the two longest that took at most {limits.seconds / 60:g} minutes and "
        f"{limits.bytes / GIB:g} GiB",
        "full fused": "`zoo.gpt2` with reversible layers, and plain residual blocks; both by torch's fused kernel",
    }
