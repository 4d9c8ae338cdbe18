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
from tests.learn.runs import regard, remains, start, write_recipe


def storm(folder: Path, runs: int, kills: int, seed: int, say=print) -> int:
    """-> how many of the runs ended identical to the unbroken one."""
    recipe, chance = write_recipe(folder), random.Random(seed)
    settings = ["--set", "train.steps=400", "--set", "train.save_every=7"]
    began = time.monotonic()
    code, _, err = regard("train", recipe, "--out", folder / "unbroken", *settings)
    assert code == 0, err
    expected, length = remains(folder / "unbroken"), time.monotonic() - began
    same = 0
    for number in range(runs):
        out, killed = folder / f"run-{number}", 0
        while True:
            process = start(["train", str(recipe), "--out", str(out), *settings])
            try:
                process.wait(timeout=chance.uniform(0.3, 0.95) * length if killed < kills else None)
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
            if process.wait() == 0:
                break
            assert process.returncode == -9, process.stderr.read() if process.stderr else ""
        identical = remains(out) == expected
        same += identical
        say(f"run {number + 1}: {killed} kills, {'identical' if identical else 'DIFFERENT'}")
    return same


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        same = storm(Path(place), given.runs, given.kills, given.seed)
    print(f"{same} of {given.runs} identical (seed {given.seed}, {platform.processor() or platform.machine()})")
    sys.exit(same != given.runs)
