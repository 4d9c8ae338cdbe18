"""Runs killed with SIGKILL, at random moments and at every write point, equal the unbroken run."""

from __future__ import annotations

import random
import shutil
import time
from functools import partial
from pathlib import Path

from regard.store.checkpoint import newest_checkpoint
from tests.training.runs import CommandProcess, digests, kill_at, regard, start, write_recipe

_STEPS = 200  # of a run
_START, _LINE = 2.0, 0.05  # seconds in which a run that starts is killed, and in which it is after a line of its log
FILES = ["model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json", "manifest.json"]
POINTS = [
    "before folder", *(f"{word} {name}" for name in FILES for word in ("inside", "after")), "before rename",
    "between renames", "after rename", "inside prune", "inside .model.safetensors", "after .model.safetensors",
]  # fmt: skip


def unbroken(folder: Path, arguments: list[str]) -> tuple[float, float]:
    """Run to the end; -> the seconds until the first checkpoint, and until the end."""
    began, first = time.monotonic(), None
    process = start([*arguments, "--out", str(folder)])
    while process.poll() is None:
        if first is None and (folder / "checkpoints").exists():
            first = time.monotonic() - began
        time.sleep(0.01)
    assert process.returncode == 0, process.communicate()[1]
    assert first is not None
    return first, time.monotonic() - began


def lines_of(out: Path) -> int:
    """How many lines the log of a run has: one per step, and one per validation."""
    log = out / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def kill_somewhere(process: CommandProcess, out: Path, lines: int, seconds: float) -> bool:
    """SIGKILL so many seconds after the log has so many lines; -> whether the run was still there to be killed."""
    while lines_of(out) < lines and process.poll() is None:
        time.sleep(0.002)
    if process.wait(seconds):
        return False
    process.kill()
    return True


def storm(folder: Path, runs: int, kills: int, seed: int) -> tuple[int, int]:
    """-> how many of the runs were killed so often and ended as the unbroken one; and how many kills there were.

    A moment is a line of the log and a time after it, so that it is in the run however busy the machine is. Every
    fourth is before the first line, while the run starts or resumes.
    """
    recipe, chance = write_recipe(folder), random.Random(seed)
    arguments = ["train", str(recipe), "--set", f"train.steps={_STEPS}"]
    first, _ = unbroken(folder / "unbroken", arguments)
    expected, same, total = digests(folder / "unbroken"), 0, 0
    length = lines_of(folder / "unbroken")
    for number in range(runs):
        out, killed = folder / f"run-{number}", 0
        while True:
            process = start([*arguments, "--out", str(out)])
            if killed < kills:
                here = lines_of(out)
                starting = chance.random() < 0.25
                # Early in the rest of the run, so that it survives to receive all its kills.
                line = 0 if starting else here + chance.randrange(1, 2 + (length - here) // (kills + 1 - killed))
                line = min(line, length - 20)
                wait = chance.uniform(0, min(first, _START) if starting else _LINE)
                killed += kill_somewhere(process, out, line, wait)
            process.wait()
            _, error = process.communicate()
            if process.returncode == 0 and killed < kills:  # it was faster than the last kill
                shutil.rmtree(out)
                killed = 0
                continue
            if process.returncode == 0:
                break
            assert process.returncode == -9, error
        identical = digests(out) == expected
        same, total = same + identical, total + killed
        print(f"run {number + 1}: {killed} kills, {'identical' if identical else 'DIFFERENT'}", flush=True)
    return same, total


def at_every_point(folder: Path, times: int) -> tuple[int, int]:
    """Kill runs at the n-th save, at each of its points; -> how many ended as the unbroken one, and of how many."""
    # With so few kept, old checkpoints are removed often enough to be killed there each time.
    recipe, same = write_recipe(folder), 0
    arguments = ["train", str(recipe), "--set", "train.keep=2"]
    unbroken(folder / "unbroken", arguments)
    expected = digests(folder / "unbroken")
    cases = [(point, turn) for point in POINTS for turn in range(1, times + 1)]
    for point, turn in cases:
        out = folder / f"{point} {turn}"
        # Only the last checkpoint of a run is written twice.
        driver = partial(kill_at, point, 1 if point == "between renames" else turn)
        code, _, _ = regard(*arguments, "--out", out, driver=driver)
        found = newest_checkpoint(out / "checkpoints", print)
        whole = found is not None or turn == 1
        identical = regard(*arguments, "--out", out)[0] == 0 and digests(out) == expected
        good = code == -9 and whole and identical
        same += good
        print(f"killed {point}, time {turn}: {'identical' if good else 'DIFFERENT'}", flush=True)
    return same, len(cases)
