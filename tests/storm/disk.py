"""The full disk: a run without room for a checkpoint, of any size, loses nothing and equals the unbroken one."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from regard.store.checkpoint import newest_checkpoint, saved_steps, verify
from regard.store.files import read_tensors
from tests.training.runs import at_steps, digests, regard, write_recipe

DISK_ERROR = re.compile(
    r"cannot write .+( \(needs [\d,]+ bytes, ([\d,]+ free|there was less|[\d,]+ allowed in a file)\))?\. .+\."
)
PLENTY = 16 << 20


@contextmanager
def small_disk(folder: Path, options: str = f"size={PLENTY}") -> Iterator[None]:
    """A disk of its own for a folder; PermissionError where one may not mount."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True).returncode:
        raise PermissionError("only root may mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def resize(folder: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


def allow(size: int) -> None:
    """How large a file of this process may be."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def squeezed(kind: str, out: Path, part: float, freed: bool) -> None:
    """From step 28 on there is room for a part of a checkpoint only; with `freed`, from step 37 on for all again."""

    def squeeze(_: Any) -> None:
        newest = out / "checkpoints" / "step-28"
        shutil.copytree(newest, out.parent / "before")
        sizes = [path.stat().st_size for path in newest.iterdir()]
        if kind == "limit":
            allow(int(part * max(sizes)))
        else:
            status = os.statvfs(out)
            page = status.f_frsize
            needed = sum(-(-size // page) * page for size in sizes)
            resize(out, (status.f_blocks - status.f_bfree) * page + int(part * needed))

    def free(_: Any) -> None:
        allow(resource.RLIM_INFINITY) if kind == "limit" else resize(out, PLENTY)

    at_steps({28: squeeze, 37: free} if freed else {28: squeeze})


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def faults(recipe: Path, expected: dict[str, str], folder: Path, *, kind: str, part: float, freed: bool) -> list[str]:
    """The faults of one case."""
    out, found = folder / "run", []
    code, output, error = regard("train", recipe, "--out", out, driver=partial(squeezed, kind, out, part, freed))
    saved = out / "checkpoints"
    if content(saved / "step-28") != content(folder / "before"):
        found.append("the previous checkpoint has changed")
    if any(verify(saved / f"step-{step}") for step in saved_steps(saved)):
        found.append("a half checkpoint has the name of a whole one")
    if {path.name for path in saved.iterdir()} != {f"step-{step}" for step in saved_steps(saved)}:
        found.append("something was left behind")
    if newest_checkpoint(saved, found.append) is None or not read_tensors(out / "model.safetensors"):
        found.append("nothing can be loaded")
    warnings = [line for line in output.splitlines() if line.startswith("warning: cannot")]
    named = part >= 0.9 or "Last good checkpoint: step 28" in output
    if not named or not all(DISK_ERROR.search(line) for line in warnings):
        found.append(f"the warnings do not name the cause: {warnings}")
    if part > 1.05 and warnings:
        found.append(f"there was room enough, but: {warnings}")
    if code != (74 if part < 0.9 and not freed else 0) and not 0.9 <= part <= 1.05:
        found.append(f"exit code {code}")
    if (error.count("\n"), bool(DISK_ERROR.search(error))) != ((1, True) if code else (0, False)):
        found.append(f"the error is not one line: {error!r}")
    if code:
        if kind == "disk":
            resize(out, PLENTY)
        if regard("train", recipe, "--out", out)[0] != 0:
            found.append("it does not resume after space is freed")
    if digests(out) != expected:
        found.append("the result differs from the unbroken run's")
    return found


def all_cases(folder: Path, chosen: Sequence[int]) -> tuple[int, int]:
    """-> how many of the chosen cases went well, and how many there were."""
    recipe = write_recipe(folder)
    assert regard("train", recipe, "--out", folder / "unbroken")[0] == 0
    expected = digests(folder / "unbroken")
    cases = [("disk", 1.1 * n / 19) for n in range(20)] + [("limit", 1.1 * n / 9) for n in range(10)]
    good = 0
    for number in chosen:
        kind, part = cases[number]
        case = folder / f"case-{number}"
        case.mkdir()
        if kind == "disk":
            with small_disk(case / "run"):
                found = faults(recipe, expected, case, kind=kind, part=part, freed=number % 2 == 1)
        else:
            found = faults(recipe, expected, case, kind=kind, part=part, freed=number % 2 == 1)
        good += not found
        print(f"case {number}: {kind}, {part:.0%} of the room: {'; '.join(found) or 'good'}", flush=True)
    return good, len(chosen)
