"""Runs killed with SIGKILL, at random moments and at every write point, equal the unbroken run."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

from regard.store.checkpoint import newest_checkpoint
from tests.training.runs import digests, kill_at, regard, start, write_recipe

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


def storm(folder: Path, runs: int, kills: int, seed: int) -> tuple[int, int]:
    """-> how many of the runs ended identical to the unbroken one, and how many kills there were."""
    recipe, chance = write_recipe(folder), random.Random(seed)
    arguments = ["train", str(recipe), "--set", "train.steps=400"]
    first, whole = unbroken(folder / "unbroken", arguments)
    expected, same, total = digests(folder / "unbroken"), 0, 0
    for number in range(runs):
        out, killed = folder / f"run-{number}", 0
        while True:
            process = start([*arguments, "--out", str(out)])
            # Early in the run, so that it survives to receive all its kills.
            moment = chance.uniform(0, first + (whole - first) / kills)
            if not process.wait(moment if killed < kills else None):
                process.kill()
                killed += 1
            _, error = process.communicate()
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
