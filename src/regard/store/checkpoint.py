"""Checkpoints: what a run needs to go on as if it had never stopped.

A checkpoint is a folder written under a temporary name, every file flushed to the disk, the manifest (sizes and
SHA-256) last, then renamed. It counts only if its manifest verifies.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import CannotResume
from regard.store.files import disk_trouble, json_bytes, read_json, read_tensors, sha256, sync_folder, tensors_to_bytes

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk that has been verified."""

    path: Path
    step: int

    def state(self) -> dict[str, Any]:
        """Everything that is not a tensor."""
        return read_json(self.path / "state.json")

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors kept under a name ("model", "optimizer", ...)."""
        return read_tensors(self.path / f"{name}.safetensors")


def save_checkpoint(
    folder: Path,
    step: int,
    *,
    state: Mapping[str, Any],
    tensors: Mapping[str, Mapping[str, Tensor]],
    reached: Callable[[str], None] = lambda point: None,
) -> Checkpoint:
    """Write folder/step-N; `reached` is told of every point at which a crash must do no harm."""
    final, temporary = folder / f"step-{step}", folder / f".tmp-{step}-{os.getpid()}"
    contents = {f"{name}.safetensors": tensors_to_bytes(group) for name, group in tensors.items()}
    contents["state.json"] = json_bytes(dict(state))
    manifest = {
        "format": FORMAT,
        "step": step,
        "files": {name: {"size": len(content), "sha256": sha256(content)} for name, content in contents.items()},
    }
    reached("before folder")
    with disk_trouble(final, sum(map(len, contents.values()))):
        try:
            temporary.mkdir(parents=True)
            for name, content in contents.items():
                _write(temporary / name, content, reached)
            _write(temporary / "manifest.json", json_bytes(manifest), reached)
            sync_folder(temporary)
            reached("before rename")
            if final.exists():
                shutil.rmtree(final)
            os.rename(temporary, final)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        reached("after rename")
        sync_folder(folder)
    return Checkpoint(final, step)


def _write(path: Path, content: bytes, reached: Callable[[str], None]) -> None:
    """Write and flush one file; the folder's rename makes it count."""
    with open(path, "wb") as file:
        file.write(content[: len(content) // 2])
        reached(f"inside {path.name}")
        file.write(content[len(content) // 2 :])
        file.flush()
        os.fsync(file.fileno())
    reached(f"after {path.name}")


def verify(path: Path) -> str | None:
    """None when every file is as the manifest says, else what is wrong."""
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        for name, expected in manifest["files"].items():
            if Path(name).name != name:
                return f"manifest.json names {name!r}"
            content = (path / name).read_bytes()
            if len(content) != expected["size"]:
                return f"{name} has {len(content):,} bytes, should have {expected['size']:,}"
            if sha256(content) != expected["sha256"]:
                return f"{name} fails its checksum"
        if manifest["format"] != FORMAT or path.name != f"step-{manifest['step']}":
            return "manifest.json belongs to another checkpoint"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"manifest.json cannot be used ({type(error).__name__})"
    return None


def steps_found(folder: Path) -> list[int]:
    """The steps of all checkpoints in a folder, oldest first, damaged ones among them."""
    names = [path.name for path in folder.glob("step-*") if path.is_dir()]
    return sorted(int(name[5:]) for name in names if name[5:].isdigit())


def newest_checkpoint(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest that verifies; says so when newer ones did not; None when there never was one."""
    faults: list[str] = []
    steps = steps_found(folder)
    for step in reversed(steps):
        fault = verify(folder / f"step-{step}")
        if fault is None:
            for earlier in faults:
                warn(f"{earlier}; resuming from step-{step} instead.")
            return Checkpoint(folder / f"step-{step}", step)
        faults.append(f"step-{step}/{fault}")
    if faults:
        raise CannotResume(
            f"no valid checkpoint in {folder} ({len(faults)} found, all damaged: {faults[0]}). "
            "Restore one from a copy, or choose another --out."
        )
    return None


def prune(folder: Path, *, keep: int, every: int, keep_every: int | None, reached: Callable[[str], None]) -> None:
    """Delete all but the newest `keep` of those saved `every` so many steps, and those at multiples of `keep_every`.

    The newest of all stays in any case; one that a signal saved in between goes with the next. What a crash left
    behind goes too.
    """
    for left in folder.glob(".tmp-*"):
        shutil.rmtree(left, ignore_errors=True)
    found = steps_found(folder)
    scheduled = [step for step in found if step % every == 0][-keep:]
    for step in found[:-1]:
        if step in scheduled or (keep_every and step % keep_every == 0):
            continue
        path = folder / f"step-{step}"
        # Without its manifest it does not count, so a crash in the middle leaves nothing that looks whole.
        (path / "manifest.json").unlink(missing_ok=True)
        reached("inside prune")
        shutil.rmtree(path, ignore_errors=True)
