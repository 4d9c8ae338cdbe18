"""What is written survives a loss of power: files are flushed, then named; nothing is rewritten in place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from regard.store.checkpoint import prune, save_checkpoint, verify
from regard.store.files import write_file

TENSORS = {"model": {"a": torch.ones(3)}, "optimizer": {"a/step": torch.zeros(1)}}
NAMES = {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is flushed and renamed, in order, by the last part of its path."""
    found: list[str] = []
    fsync, rename = os.fsync, os.rename

    def flushed(descriptor: int) -> None:
        found.append(f"flush {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def renamed(old: Path, new: Path) -> None:
        found.append(f"rename {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", renamed)
    return found


def save(folder: Path, step: int) -> None:
    save_checkpoint(folder, step, state={"step": step}, tensors=TENSORS)


def test_every_file_of_a_checkpoint_is_flushed_before_its_folder_is_renamed(events: list[str], tmp_path: Path):
    save(tmp_path, 3)
    before = events[: events.index("rename step-3")]
    assert {f"flush {name}" for name in NAMES} <= set(before)
    assert [event for event in before if event.endswith((".json", ".safetensors"))][-1] == "flush manifest.json"


def test_the_folder_is_flushed_before_and_after_the_rename(events: list[str], tmp_path: Path):
    save(tmp_path, 3)
    at = events.index("rename step-3")
    assert events[at - 1].startswith("flush .tmp-3-")
    assert events[at + 1] == f"flush {tmp_path.name}"


def test_a_checkpoint_has_no_name_before_it_is_whole(tmp_path: Path):
    seen: list[str] = []

    def look(point: str) -> None:
        seen.append(point)
        if point != "after rename":
            assert not (tmp_path / "step-3").exists(), point

    save_checkpoint(tmp_path, 3, state={}, tensors=TENSORS, on_write_point=look)
    assert len(seen) > len(NAMES)
    assert verify(tmp_path / "step-3") is None


def test_a_file_is_replaced_and_never_rewritten(tmp_path: Path):
    path = tmp_path / "file"
    write_file(path, b"old")
    os.link(path, tmp_path / "reader")  # stands for a process that has it open
    write_file(path, b"new")
    assert (path.read_bytes(), (tmp_path / "reader").read_bytes()) == (b"new", b"old")


def test_a_checkpoint_that_is_being_removed_is_invalid_at_once(tmp_path: Path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    faults: list[str | None] = []

    def look(point: str) -> None:
        if point == "inside prune":
            faults.append(verify(tmp_path / f"step-{len(faults) + 1}"))

    prune(tmp_path, 4, keep=2, save_every=1, keep_every=None, on_write_point=look)
    assert len(faults) == 2
    assert all(faults)
