"""Tier A: no work is lost, nothing is corrupted."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.storm.rows import Case, NotHereError, Outcome, Row, tests

TIMEOUT = 10  # seconds that processes wait for one that hangs (train.timeout)
MOST_SECONDS = 900  # of a job of two processes

# Runs the command line; the first time, one rank signals itself before a step (-1: while it saves). Files hold when,
# and when it resumed.
DRIVER = """
import os, sys, time
from pathlib import Path
from regard.cli import run
from regard.training.loop import Run
from regard.training.step import Trainer
rank, number, step, times = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
advance, write = Trainer.advance, Run.write_checkpoint
def written(self, *given, **options):
    if step < 0:
        (times / "signalled").write_text(str(time.time()))
        os.kill(os.getpid(), number)
    return write(self, *given, **options)
def advanced(self):
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if first and self.world.rank == rank and self.step == step:
        (times / "signalled").write_text(str(time.time()))
        os.kill(os.getpid(), number)
    report = advance(self)
    if not first and self.world.rank == 0 and not (times / "resumed").exists():
        (times / "resumed").write_text(str(time.time()))
    return report
Trainer.advance, Run.write_checkpoint = advanced, written
sys.exit(run(sys.argv[5:]))
"""


def killed_at_random(count: int, seed: int, folder: Path) -> Outcome:
    """Runs killed with SIGKILL at random moments, five times each, equal the unbroken run."""
    from tests.storm.kills import storm

    same, kills = storm(folder, count, 5, seed)
    return Outcome(same, count, f"{kills} kills")


def killed_at_write_points(count: int, _seed: int, folder: Path) -> Outcome:
    """Runs killed at each point of a save equal the unbroken run."""
    from tests.storm.kills import POINTS, at_every_point

    return Outcome(*at_every_point(folder, max(1, round(count / len(POINTS)))))


def disks(first: int, last: int) -> Callable[[int, int, Path], Outcome]:
    """Full disks, or limits on the size of files: cases of `disk.py`, spread evenly over their range."""

    def run(count: int, _seed: int, folder: Path) -> Outcome:
        from tests.storm.disk import all_cases

        if first == 0 and os.geteuid() != 0:
            raise NotHereError("only root may mount a small disk")
        every = [first + round(index * (last - first) / max(1, count - 1)) for index in range(count)]
        return Outcome(*all_cases(folder, every))

    return run


def resumed(count: int, seed: int, folder: Path) -> Outcome:
    """The matrix of families, states and moments."""
    from tests.storm import resume

    cases, every = Case(), list(resume.combinations())
    random.Random(seed).shuffle(every)
    for number, case in enumerate(every[: -(-count // 3)]):
        for moment, fault in resume.resumed(case, folder / str(number)):
            cases.add(f"{case.name}, accumulate {case.accumulate}, {moment}", fault)
        shutil.rmtree(folder / str(number))
    return cases.outcome(f"{len(resume.FAMILIES)} families")


def rotten(count: int, seed: int, folder: Path) -> Outcome:
    """One flipped byte, or a cut, in any file of the newest checkpoint: it is skipped with a warning."""
    from regard.store.checkpoint import newest_checkpoint
    from tests.training.runs import regard, write_recipe

    code, _, err = regard("train", write_recipe(folder), "--out", folder / "run", "--set", "train.average=1")
    assert code == 0, err
    saved, chance, cases = folder / "run" / "checkpoints", random.Random(seed), Case()
    newest = saved / "step-40"
    files = sorted(newest.iterdir())
    for number in range(count):
        path = chance.choice(files)
        whole = path.read_bytes()
        content = bytearray(whole)
        if chance.random() < 0.5:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        else:
            del content[chance.randrange(len(content)) :]
        path.write_bytes(content)
        warnings: list[str] = []
        found = newest_checkpoint(saved, warnings.append)
        good = found is not None and found.step == 35 and len(warnings) == 1 and "step-40" in warnings[0]
        cases.add(f"case {number} in {path.name}", "" if good else f"{found}, {warnings}")
        path.write_bytes(whole)
    return cases.outcome()


def signalled(
    folder: Path, recipe: Path, rank: int, number: int, step: int, *options: str, restarts: int = 3
) -> tuple[int, str, str]:
    """Two processes of torchrun, of which one signals itself before a step; -> exit code, output, errors.

    A job that does not end is killed, and its exit code is that of SIGKILL.
    """
    import sys
    from subprocess import TimeoutExpired

    from tests.training.test_distributed import TORCHRUN, ended, launched

    program = ["--no-python", sys.executable, "-c", DRIVER, str(rank), str(number), str(step), str(folder)]
    command = ["train", str(recipe), "--out", str(folder / "run"), *options]
    job = launched([*TORCHRUN, "--max-restarts", str(restarts), *program, *command])
    try:
        return ended(job, MOST_SECONDS)
    except TimeoutExpired:
        job.kill()
        return (-signal.SIGKILL, *job.communicate())


def killed_ranks(count: int, seed: int, folder: Path) -> Outcome:
    """One of two processes killed with SIGKILL: torchrun restarts both, and the run equals the unbroken one."""
    from tests.training.runs import digests, write_recipe
    from tests.training.test_distributed import torchrun_regard

    recipe, chance, cases, waits = write_recipe(folder), random.Random(seed), Case(), []
    code, _, err = torchrun_regard("train", recipe, "--out", folder / "unbroken")
    assert code == 0, err
    expected = digests(folder / "unbroken")
    for number in range(count):
        case = folder / f"case-{number}"
        case.mkdir()
        rank, step = chance.randrange(2), chance.randrange(1, 39)
        code, _, err = signalled(case, recipe, rank, signal.SIGKILL, step)
        stepped = (case / "resumed").exists()
        if stepped:
            begun, again = (float((case / name).read_text()) for name in ("signalled", "resumed"))
            waits.append(again - begun)
        same = code == 0 and digests(case / "run") == expected
        fault = "" if same and "Traceback (most" not in err else f"exit {code}, {'same' if same else 'different'}"
        fault = fault or ("" if stepped else "no step came after the kill")
        cases.add(f"rank {rank} killed before step {step + 1}", fault)
    waits = sorted(waits) or [math.inf]
    note = f"from the kill to the next step: median {waits[len(waits) // 2]:.0f} s, worst {waits[-1]:.0f} s"
    if waits[len(waits) // 2] > 30 or waits[-1] > 60:
        cases.add("waiting", note)
    return cases.outcome(note)


def hung_ranks(count: int, seed: int, folder: Path) -> Outcome:
    """One of two processes stopped with SIGSTOP: the other one names it within the timeout, and the job ends."""
    from tests.training.runs import write_recipe

    recipe, chance, cases, waits = write_recipe(folder), random.Random(seed), Case(), []
    for number in range(count):
        case, rank, step = folder / f"case-{number}", number % 2, chance.randrange(1, 39) if number % 3 else -1
        rank = 0 if step < 0 else rank  # which saves
        case.mkdir()
        limit = ("--set", f"train.timeout={TIMEOUT}")
        code, _, err = signalled(case, recipe, rank, signal.SIGSTOP, step, *limit, restarts=0)
        took = time.time() - float((case / "signalled").read_text())
        waits.append(took)
        named = f"rank {1 - rank}: rank {rank} of this run has not responded for {TIMEOUT} s or more"
        fault = "" if named in err else f"the rank is not named: {err[-300:]!r}"
        # torchrun itself waits 30 s before it kills a process that does not end.
        fault = fault or ("" if code and took < TIMEOUT + 45 else f"exit {code} after {took:.0f} s")
        where = "while it saves" if step < 0 else f"before step {step + 1}"
        cases.add(f"rank {rank} stopped {where}", fault)
    return cases.outcome(f"ended after {min(waits):.0f} to {max(waits):.0f} s with a timeout of {TIMEOUT} s")


def interrupted(count: int, seed: int, folder: Path) -> Outcome:
    """SIGTERM, SIGINT and two SIGINTs at random moments: a checkpoint of the step, at once, and an identical resume."""
    from regard.store.checkpoint import newest_checkpoint, saved_steps
    from tests.training.runs import digests, interrupt_twice, regard, start, write_recipe

    recipe, chance, cases, slowest = write_recipe(folder), random.Random(seed), Case(), 0.0
    assert regard("train", recipe, "--out", folder / "unbroken")[0] == 0
    expected = digests(folder / "unbroken")
    for number in range(count):
        kind, out = ("SIGTERM", "SIGINT", "twice")[number % 3], folder / f"run-{number}"
        wanted, took = chance.randrange(1, 33), 0.0
        if kind == "twice":  # the second one before the step is saved
            code, _, err = regard("train", recipe, "--out", out, driver=partial(interrupt_twice, wanted))
            fault = "" if "stopped at once" in err else f"exit {code}: {err[-200:]}"
        else:
            process, lines = start(["train", str(recipe), "--out", str(out)]), out / "metrics.jsonl"
            while not lines.exists() or lines.read_text().count("\n") < wanted:
                assert process.poll() is None
                time.sleep(0.002)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM if kind == "SIGTERM" else signal.SIGINT)
            ended = process.wait(30)
            took, (_, err) = time.monotonic() - began, process.communicate()
            code, fault = process.returncode, "" if ended and took <= 10 else f"took {took:.1f} s"
        slowest = max(slowest, took)
        warnings: list[str] = []
        found = newest_checkpoint(out / "checkpoints", warnings.append)
        fault = fault or ("" if code == (143 if kind == "SIGTERM" else 130) else f"exit {code}: {err[-200:]}")
        nothing = kind == "twice" and wanted < 7  # before the first checkpoint
        fault = fault or ("" if (found is None) == nothing and not warnings else f"{found}: {warnings}")
        again = regard("train", recipe, "--out", out)[0]
        fault = fault or ("" if again == 0 and digests(out) == expected else f"the resume differs ({again})")
        cases.add(f"{kind} after line {wanted}, {saved_steps(out / 'checkpoints')}", fault)
    return cases.outcome(f"slowest end {slowest:.1f} s")


def resume_cost(count: int, _seed: int, folder: Path) -> Outcome:
    """The processor time to the first step of a resume at 99 % of a corpus, and at 1 %."""
    from tests.storm.scale import resume_seconds, write_recipe

    recipe, cache = write_recipe(folder, count), folder / "cache"
    resume_seconds(recipe, folder, 0.01, cache)  # fills the cache
    early, late = (min(resume_seconds(recipe, folder, share, cache) for _ in range(2)) for share in (0.01, 0.99))
    note = f"the whole command takes {early:.1f} s at 1 %, {late:.1f} s at 99 %"
    return Outcome(count if abs(late - early) <= 2 else 0, count, note)


def two_runs(count: int, _seed: int, folder: Path) -> Outcome:
    """A second run in a folder is refused with the process that holds it, each time; a stale lock is no hindrance."""
    from tests.training.runs import regard, start, write_recipe

    recipe, out, cases = write_recipe(folder), folder / "run", Case()
    first = start(["train", str(recipe), "--out", str(out), "--set", "train.steps=1000000"])
    try:
        while not (out / "metrics.jsonl").exists():
            assert first.poll() is None
            time.sleep(0.01)
        for number in range(count - 1):
            code, _, err = regard("train", recipe, "--out", out)
            good = code == 2 and f"in use by process {first.pid}" in err and err.count("\n") == 1
            cases.add(f"attempt {number}", "" if good else f"exit {code}: {err}")
    finally:
        first.kill()
        first.communicate()
    code, _, err = regard("train", recipe, "--out", out, "--set", "train.steps=10")
    cases.add("after the first was killed", "" if code == 0 else f"exit {code}: {err}")
    return cases.outcome()


def golden_runs(_count: int, _seed: int, folder: Path) -> Outcome:
    """Golden checkpoints of every format: their next losses are those that were recorded."""
    from tests.storm import golden

    cases, farthest = Case(), 0.0
    for number, kept in enumerate(golden.folders()):
        (folder / str(number)).mkdir()
        losses, outputs = golden.resume(kept, folder / str(number))
        expected = json.loads((kept / "golden.json").read_text())
        off = max(abs(one / other - 1) for one, other in zip(losses, expected["losses"], strict=True))
        farthest = max(farthest, off)
        fault = "" if off <= 1e-6 and outputs == expected["outputs"] else f"off by {off:.1e}"
        cases.add(f"{kept.parent.name} {kept.name}", fault)
    return cases.outcome(f"{golden.LATER} losses each, relative difference at most {farthest:.1e}")


RUN_FOLDER, LOOP = "tests/training/test_run_folder.py", "tests/training/test_loop.py"
ROWS = [
    Row("A1", "kill -9 at random moments, 5 per run", 20, 12, killed_at_random),
    Row("A2", "kill -9 at every point of a save", 51, 6, killed_at_write_points, 17),
    Row("A3", "disks of 20 sizes, from 0 to 110 % of a checkpoint", 20, 4, disks(0, 19), 2),
    Row("A3b", "limits on the size of a file, 10 sizes", 10, 2, disks(20, 29), 2),
    Row("A4", "clean resume: families x accumulation x precision and states x moments", 294, 20, resumed, 3),
    Row("A5", "one flipped byte or a cut in a checkpoint", 1000, 1, rotten, 20),
    Row("A6", "one of two torchrun processes killed", 20, 12, killed_ranks),
    Row("A7", "one of two torchrun processes hangs", 10, 9, hung_ranks),
    Row("A8", "SIGTERM, Ctrl-C, second Ctrl-C", 50, 5, interrupted, 3),
    Row("A9", "the number of processes changes: 2, 1, 2", 1, 2, tests(
        "tests/training/test_distributed.py", "-k", "number_of_processes_may_change or two_processes_train")),
    Row("A10", "lines of a corpus: resume at 99 % within 2 s of one at 1 %", 10_000_000, 12, resume_cost, 20_000),
    Row("A11", "weights or losses that are not finite", 1, 1, tests(
        LOOP, "tests/store/test_checkpoint.py", "tests/training/test_step.py", "-k", "not_finite")),
    Row("A12", "two runs in one folder", 20, 1, two_runs, 2),
    Row("A13", "changed text, tokenizer, recipe, torch, threads on resume", 1, 1, tests(
        RUN_FOLDER, "-k", "changed or other_threads")),
    Row("A14", "golden runs of every checkpoint format", 2, 0.2, golden_runs, 2),
    Row("A15", "file modes, odd names, read-only and full folders", 1, 1, tests(
        RUN_FOLDER, "-k", "umask or any_name or cannot_be_written or before_the_first_step")),
]  # fmt: skip
