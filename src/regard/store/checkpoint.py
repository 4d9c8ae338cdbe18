"""Checkpoints: the state a run needs to resume bit-identically.

A checkpoint is a folder written under a temporary name: every file is flushed to disk, the manifest (sizes and SHA-256)
comes last, then the folder is renamed. A checkpoint is valid only if its manifest verifies.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard import messages
from regard.errors import DamagedFile, InputError
from regard.store.files import (
    disk_errors,
    ignore_write_point,
    json_bytes,
    read_json,
    read_tensors,
    sha256,
    sync_folder,
    tensors_to_bytes,
    write_flushed,
)

FORMAT = 2
_NEW, _OLD = ".tmp-", ".old-"  # prefixes of a folder before it is complete, and while it is replaced


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on disk."""

    path: Path
    step: int

    def state(self) -> dict[str, Any]:
        """Read all state that is not a tensor."""
        return read_json(self.path / "state.json")

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Read one group of tensors: "model", "optimizer", ..."""
        return read_tensors(self.path / f"{name}.safetensors", unchanged=True)


def checkpoints_folder(folder: Path) -> Path:
    """The folder of a run's checkpoints."""
    return folder / "checkpoints"


def save_checkpoint(
    folder: Path,
    step: int,
    *,
    state: Mapping[str, Any],
    tensors: Mapping[str, Mapping[str, Tensor]],
    on_write_point: Callable[[str], None] = ignore_write_point,
) -> Checkpoint:
    """Write folder/step-N; `on_write_point` is called at every point where a crash must do no harm."""
    final, temporary = folder / f"step-{step}", folder / f"{_NEW}{step}-{os.getpid()}"
    contents = {f"{name}.safetensors": tensors_to_bytes(group) for name, group in tensors.items()}
    contents["state.json"] = json_bytes(dict(state))
    files = {name: {"size": len(content), "sha256": sha256(content)} for name, content in contents.items()}
    manifest = {"format": FORMAT, "step": step, "files": files}
    on_write_point("before folder")
    with disk_errors(final, sum(map(len, contents.values()))):
        clean_up(folder)
        try:
            temporary.mkdir(parents=True)
            for name, content in {**contents, "manifest.json": json_bytes(manifest)}.items():
                write_flushed(temporary / name, content, name, on_write_point)
            sync_folder(temporary)
            on_write_point("before rename")
            if final.exists():
                os.rename(final, folder / f"{_OLD}{step}")
                on_write_point("between renames")
            os.rename(temporary, final)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        on_write_point("after rename")
        sync_folder(folder)
    return Checkpoint(final, step)


def clean_up(folder: Path) -> None:
    """Remove what a crash left behind; a checkpoint that was about to be replaced gets its name back."""
    for old in folder.glob(f"{_OLD}*"):
        final = folder / f"step-{old.name.removeprefix(_OLD)}"
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                os.rename(old, final)
    for incomplete in folder.glob(f"{_NEW}*"):
        shutil.rmtree(incomplete, ignore_errors=True)


def verify(path: Path) -> str | None:
    """Check every file against the manifest; return what is wrong, or None."""
    try:
        written = (path / "manifest.json").read_bytes()
        manifest = json.loads(written)
        if written != json_bytes(manifest) or path.name != f"step-{manifest['step']}":
            return "manifest.json is not as it was written"
        if manifest["format"] != FORMAT:
            return f"manifest.json has format {manifest['format']}, this version reads {FORMAT}"
        for name, expected in manifest["files"].items():
            if Path(name).name != name:
                return f"manifest.json names {name!r}"
            content = (path / name).read_bytes()
            if len(content) != expected["size"]:
                return f"{name} has {len(content):,} bytes, should have {expected['size']:,}"
            if sha256(content) != expected["sha256"]:
                return f"{name} fails its checksum"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"manifest.json cannot be used ({type(error).__name__})"
    return None


def saved_steps(folder: Path) -> list[int]:
    """The steps of all checkpoints in a folder, oldest first, damaged ones included."""
    names = [path.name for path in folder.glob("step-*") if path.is_dir()]
    return sorted(int(name[5:]) for name in names if name[5:].isdigit())


def newest_checkpoint(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that verifies, with a warning for each newer one; None if there never was one."""
    with disk_errors(folder, 0):
        clean_up(folder)
    faults: list[str] = []
    steps = saved_steps(folder)
    for step in reversed(steps):
        fault = verify(folder / f"step-{step}")
        if fault is None:
            for earlier in faults:
                warn(messages.DAMAGED_CHECKPOINT(fault=earlier, step=step))
            return Checkpoint(folder / f"step-{step}", step)
        faults.append(f"step-{step}/{fault}")
    if faults:
        raise messages.NO_CHECKPOINT(folder=folder, count=len(faults), fault=faults[0])
    return None


def checkpoint_at(folder: Path, step: int) -> Checkpoint:
    """The checkpoint of a step, which must exist and verify."""
    found = Checkpoint(folder / f"step-{step}", step)
    if not found.path.is_dir():
        steps = ", ".join(f"{other:,}" for other in saved_steps(folder)) or "none"
        raise InputError(f"{folder} has no checkpoint of step {step:,}. It has: {steps}.")
    fault = verify(found.path)
    if fault is not None:
        raise DamagedFile(f"{found.path}/{fault}. Choose another step.")
    return found


def newest_step(folder: Path, warn: Callable[[str], None]) -> int:
    """The step of the newest checkpoint that verifies; -1 if there never was one."""
    found = newest_checkpoint(folder, warn)
    return -1 if found is None else found.step


def prune(
    folder: Path,
    newest: int,
    *,
    keep: int,
    save_every: int,
    keep_every: int | None,
    on_write_point: Callable[[str], None] = ignore_write_point,
) -> None:
    """Delete all checkpoints but the newest, the last `keep` multiples of `save_every`, and multiples of `keep_every`.

    A checkpoint that a signal saved in between is deleted after the next save. One later than the newest is damaged,
    or the run would have resumed from it.
    """
    found = saved_steps(folder)
    scheduled = [step for step in found if step % save_every == 0 and step <= newest][-keep:]
    clean_up(folder)
    for step in found:
        if step == newest or step in scheduled or (keep_every and step % keep_every == 0 and step < newest):
            continue
        path = folder / f"step-{step}"
        # Without its manifest it is invalid, so a crash in the middle leaves nothing that looks complete.
        with disk_errors(path, 0):
            (path / "manifest.json").unlink(missing_ok=True)
        on_write_point("inside prune")
        shutil.rmtree(path, ignore_errors=True)
