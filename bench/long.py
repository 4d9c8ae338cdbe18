"""Long texts: time and memory of a step of training by length, ours and the peers', each in a process of its own."""

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
_HOPELESS = 1.2  # what is foreseen to take so many times the limit is not tried
_FURTHEST_ALONE = 65_536  # tokens
DEEP = (LSH, PLAIN, REFORMER_PYTORCH)
"""Who is measured by depth."""
_LONG = 30.0  # seconds, beyond which a step is not repeated
# Large blocks that are freed go back at once and come in large pages, small ones are kept for the next: hardly any
# time, hardly any room.
_TIMED = {
    "MALLOC_MMAP_THRESHOLD_": "8388608",
    "MALLOC_TRIM_THRESHOLD_": "536870912",
    "THP_MEM_ALLOC_ENABLE": "1",
}
_FRUGAL = {"MALLOC_MMAP_THRESHOLD_": "131072"}  # all that is freed goes back at once: peaks are what was needed


@dataclass(frozen=True)
class Limits:
    """What a measurement may take; our own is given the time it needs."""

    seconds: float = 600.0
    bytes: int = 20 * GIB

    def of(self, who: str) -> Limits:
        """Those of a contestant."""
        return replace(self, seconds=math.inf) if who == LSH else self


@dataclass(frozen=True)
class Cost:
    """What a step takes; more than was allowed where `foreseen` from what shorter texts took."""

    seconds: float
    peak: float  # bytes, of the whole process
    before: float  # bytes, before its first step
    foreseen: bool = False


Costs = Mapping[tuple[str, int], Cost]
"""By contestant and length, or depth."""


class Kept:
    """What was measured, a line of JSON each; a file of them lets a long run be interrupted."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.found = path, {}
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            entry = json.loads(line)
            self.found[entry["key"]] = entry["cost"]

    def get(self, case: Case, turn: int, limits: Limits) -> Cost | None:
        """The cost of a case, in this turn: kept, or measured now; None where it took more than it may."""
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
    """What a case costs; None where it took longer or held more than it may.

    Short ones run twice: giving all memory back at once costs time, and keeping it for later is no need of theirs.
    """
    timed = observed(case, limits, _TIMED)
    if timed is None or timed.seconds > _LONG:
        return timed
    frugal = observed(replace(case, steps=2), limits, _FRUGAL)
    return None if frugal is None else replace(frugal, seconds=timed.seconds)


def observed(case: Case, limits: Limits, surroundings: Mapping[str, str]) -> Cost | None:
    """Run a case in a process of its own; None where it took longer or held more than it may."""
    words = [sys.executable, "-m", "bench.reformers", json.dumps(asdict(case)), str(limits.bytes)]
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(words, stdout=said, stderr=complaints, env={**os.environ, **surroundings})
        try:
            within = watch(process, limits)
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        complaints.seek(0)
        complaint = complaints.read().strip()
        if not within or "allocate memory" in complaint or "MemoryError" in complaint:
            return None
        if process.returncode:
            last = complaint.splitlines()[-1] if complaint else f"exit code {process.returncode}"
            raise RunFailed(f"{case.who} failed at {case.length:,} tokens ({last}). Leave it out with --who.")
        return Cost(**json.loads(said.read()))


def watch(process: subprocess.Popen[bytes], limits: Limits) -> bool:
    """Wait for a process; -> whether it ended within what it may take. One that does not is still running."""
    end = time.monotonic() + limits.seconds
    while process.poll() is None:
        if time.monotonic() > end or held(process.pid) > limits.bytes:
            return False
        time.sleep(_OFTEN)
    return process.returncode != -9  # which is how the system ends one when there is no memory left


def held(pid: int) -> int:
    """Bytes that a process holds."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def sweep(cases: Sequence[Case], turns: int, limits: Limits, kept: Kept, axis: str = "length") -> Costs:
    """The median cost of each case over some turns, in which all work one after the other, shortest first.

    What took too much, and all that is longer, is foreseen from the two longest that did not.
    """
    if turns < 1:
        raise InputError(f"repeat must be 1 or more, got {turns} (--repeat).")
    found: dict[tuple[str, int], list[Cost]] = {}
    given_up: set[str] = set()
    for case in shortest_first(cases, axis):
        known = {place: costs[0] for (who, place), costs in found.items() if who == case.who}
        place = getattr(case, axis)
        cost = None
        if case.who not in given_up and not hopeless(known, place, limits.of(case.who)):
            cost = kept.get(case, 0, limits.of(case.who))
        if cost is None:
            given_up.add(case.who)
        else:
            found[case.who, place] = [cost]
    for turn in range(1, turns):
        for case in shortest_first(cases[:: -1 if turn % 2 else 1], axis):
            costs = found.get((case.who, getattr(case, axis)), [])
            again = kept.get(case, turn, limits.of(case.who)) if costs and costs[0].seconds < _LONG else None
            costs += [] if again is None else [again]
    return foresee({key: middle(costs) for key, costs in found.items()}, {getattr(case, axis) for case in cases})


def shortest_first(cases: Iterable[Case], axis: str) -> list[Case]:
    """In the order of their lengths, or of what else the axis is; those of one length stay in their order."""
    return sorted(cases, key=lambda case: int(getattr(case, axis)))


def hopeless(known: Mapping[int, Cost], place: int, limits: Limits) -> bool:
    """True where what is known foresees far more than is allowed."""
    shorter = {at: cost for at, cost in known.items() if at < place}
    cost = extended(shorter, place)
    return cost is not None and max(cost.seconds / limits.seconds, cost.peak / limits.bytes) > _HOPELESS


def middle(costs: Sequence[Cost]) -> Cost:
    """The medians."""
    return Cost(*(median(getattr(cost, name) for cost in costs) for name in ("seconds", "peak", "before")))


def foresee(costs: Costs, places: Iterable[int]) -> Costs:
    """The costs with what is missing foreseen, where two places are known."""
    whole = dict(costs)
    for who in {who for who, _ in costs}:
        known = {place: cost for (name, place), cost in costs.items() if name == who}
        for place in places:
            cost = known.get(place) or extended(known, place)
            if cost is not None:
                whole[who, place] = cost
    return whole


def extended(known: Mapping[int, Cost], place: int) -> Cost | None:
    """What the two furthest places foresee, as a power of the length; None where fewer are known."""
    if len(known) < 2:
        return None
    near, far = sorted(known)[-2:]

    def power(of: Callable[[Cost], float]) -> float:
        low, high = max(of(known[near]), 1e-9), max(of(known[far]), 1e-9)
        growth = math.log(high / low) / math.log(far / near)
        return high * (place / far) ** growth

    before = known[far].before
    return Cost(power(lambda cost: cost.seconds), before + power(lambda cost: cost.peak - cost.before), before, True)


def by_length(costs: Costs, whose: Sequence[str], show: Callable[[Cost], str], first: str = "tokens") -> str:
    """Markdown: a line a length, a column a contestant; what is foreseen has a ~."""
    lines = [f"| {first} | {' | '.join(whose)} |", f"|---|{'---|' * len(whose)}"]
    for place in sorted({place for _, place in costs}):
        cells = []
        for who in whose:
            cost = costs.get((who, place))
            cells.append("" if cost is None else f"{'~' if cost.foreseen else ''}{show(cost)}")
        lines.append(f"| {place:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def seconds(cost: Cost) -> str:
    """A time, with as many digits as mean something."""
    return f"{cost.seconds:.2f}" if cost.seconds < 10 else f"{cost.seconds:,.0f}"


def peak(cost: Cost) -> str:
    """What the process held at most, in GiB."""
    return f"{cost.peak / GIB:.2f}" if cost.peak < 10 * GIB else f"{cost.peak / GIB:,.1f}"


def active(cost: Cost) -> str:
    """What a step held besides what was there before it, in MiB."""
    return f"{(cost.peak - cost.before) / 1024**2:,.0f}"


def plot(costs: Costs, whose: Sequence[str], path: Path) -> None:
    """Time and memory by length, both axes logarithmic; what is foreseen is dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    panels = figure.subplots(1, 2)
    sides = (("seconds a step", lambda cost: cost.seconds), ("GiB at most", lambda cost: cost.peak / GIB))
    for panel, (label, value) in zip(panels, sides):
        for number, who in enumerate(whose):
            points = sorted((place, cost) for (name, place), cost in costs.items() if name == who)
            sure = [(place, value(cost)) for place, cost in points if not cost.foreseen]
            unsure = sure[-1:] + [(place, value(cost)) for place, cost in points if cost.foreseen]
            panel.plot(*zip(*sure), "o-", color=f"C{number}", label=who)
            if len(unsure) > 1:
                panel.plot(*zip(*unsure), "--", color=f"C{number}")
        panel.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label)
        panel.grid(alpha=0.3)
    panels[0].legend(frameon=False)
    figure.savefig(path)


@dataclass(frozen=True)
class Found:
    """Steps by length, what they hold by depth, and attention alone by length."""

    steps: Costs
    depths: Costs
    alone: Costs

    def tables(self, whose: Sequence[str]) -> str:
        """Markdown: a table each; those who do not take part in one have no column."""
        shown = [
            ("Seconds a step", self.steps, seconds, "tokens"),
            ("GiB at most, the whole process", self.steps, peak, "tokens"),
            ("MiB that a step holds by depth, beside what was there before it", self.depths, active, "layers"),
            ("Seconds of one layer of attention alone, forwards and backwards", self.alone, seconds, "tokens"),
            ("MiB that it holds, beside what was there before it", self.alone, active, "tokens"),
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
    """Steps at every length; of some, at one length, by depth; then attention alone, as far as full attention goes."""
    steps = [replace(base, who=who, length=length) for length in lengths for who in whose]
    deep = [
        replace(base, who=who, length=depth_length, depth=depth) for depth in depths for who in whose if who in DEEP
    ]
    alone = [replace(case, work="attention") for case in steps if case.who in LAYERS and case.length <= _FURTHEST_ALONE]
    return Found(
        sweep(steps, turns, limits, kept), sweep(deep, turns, limits, kept, "depth"), sweep(alone, turns, limits, kept)
    )


def contestants(named: Sequence[str] | None) -> list[str]:
    """Those who were named, or all."""
    for who in named or ():
        if who not in MODELS:
            raise InputError(f"nobody is called {who!r} (--who). They are: {'; '.join(MODELS)}.")
    return list(named or MODELS)


def peers(whose: Sequence[str]) -> list[str]:
    """The packages of others among them; each is tried, so that one that is missing is missed at once."""
    found = [who for who in (REFORMER_PYTORCH, TRANSFORMERS) if who in whose]
    for package in found:
        import_module(package.replace("-", "_"))
    return found


def rounds(base: Case) -> str:
    """How often is hashed."""
    return f"{base.rounds} round{'s' * (base.rounds > 1)} of hashing"


def facts(base: Case, turns: int, limits: Limits) -> dict[str, str]:
    """Whose sizes were what, and how they were measured."""
    return {
        "model": f"{base.depth} layers, width {base.width}, {base.heads} heads, feed-forward {4 * base.width}, bytes, "
        f"one text a step; LSH: {rounds(base)}, as many buckets as windows of {base.window}; ours sees the last "
        f"{base.window} keys of a bucket, in chunks and theirs two chunks of {base.window}",
        "measured": f"each in processes of its own, {turns} times in turns (medians), once beyond {_LONG:g} s; "
        f"AdamW; ~ is foreseen from the two longest that took at most {limits.seconds / 60:g} minutes and "
        f"{limits.bytes / GIB:g} GiB",
        "full fused": "`zoo.gpt2` with reversible layers, and plain residual blocks; both by torch's fused kernel",
    }
