"""The storm: runs killed with SIGKILL at random moments and started again must end as the unbroken run did."""

from __future__ import annotations

import argparse
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.learn.runs import remains, start, write_recipe


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
    expected, same, total = remains(folder / "unbroken"), 0, 0
    for number in range(runs):
        out, killed = folder / f"run-{number}", 0
        while True:
            process = start([*arguments, "--out", str(out)])
            # Anywhere from the very start to a little way on, so that a run lives through all its kills.
            moment = chance.uniform(0, first + (whole - first) / kills)
            try:
                process.wait(timeout=moment if killed < kills else None)
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
            _, said = process.communicate()
            if process.returncode == 0:
                break
            assert process.returncode == -9, said
        identical = remains(out) == expected
        same, total = same + identical, total + killed
        print(f"run {number + 1}: {killed} kills, {'identical' if identical else 'DIFFERENT'}", flush=True)
    return same, total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        same, total = storm(Path(place), given.runs, given.kills, given.seed)
    print(f"{same} of {given.runs} identical after {total} kills (seed {given.seed}, {platform.machine()})")
    sys.exit(same != given.runs)
