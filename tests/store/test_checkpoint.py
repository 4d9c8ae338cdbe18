"""Checkpoints are valid only if every byte is as it was written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from regard.errors import CannotResume, RunFailed
from regard.store.checkpoint import FORMAT, newest_checkpoint, prune, save_checkpoint, saved_steps, verify


def save(folder: Path, step: int) -> Path:
    tensors = {"model": {"a": torch.full((50,), float(step))}, "optimizer": {"b": torch.zeros(20)}}
    return save_checkpoint(folder, step, state={"step": step}, tensors=tensors).path


def test_the_newest_checkpoint_is_found(tmp_path: Path):
    save(tmp_path, 5)
    save(tmp_path, 10)
    found = newest_checkpoint(tmp_path, pytest.fail)
    assert found is not None
    assert (found.step, found.state()) == (10, {"step": 10})
    assert torch.equal(found.tensors("model")["a"], torch.full((50,), 10.0))


def test_saving_a_step_again_replaces_it(tmp_path: Path):
    save(tmp_path, 5)
    save(tmp_path, 5)
    assert saved_steps(tmp_path) == [5]
    assert verify(tmp_path / "step-5") is None


def test_a_checkpoint_with_a_flipped_or_missing_byte_is_skipped(tmp_path: Path):
    save(tmp_path, 3)
    path, chance = save(tmp_path, 5), random.Random(1)
    files = sorted(path.iterdir())
    assert len(files) == 4
    for number in range(400):
        file = files[number % len(files)]
        intact = file.read_bytes()
        file.write_bytes(damaged(intact, chance, cut=number // len(files) % 2 == 0))
        warnings: list[str] = []
        found = newest_checkpoint(tmp_path, warnings.append)
        assert found is not None
        assert found.step == 3, (file, number)
        assert len(warnings) == 1
        assert warnings[0].startswith("warning: step-5/")
        assert "resuming from step-3 instead" in warnings[0]
        file.write_bytes(intact)
    assert verify(path) is None


def damaged(intact: bytes, chance: random.Random, *, cut: bool) -> bytes:
    """A copy that is cut off somewhere, or has one bit flipped."""
    at = chance.randrange(len(intact))
    return intact[:at] if cut else intact[:at] + bytes([intact[at] ^ 1 << chance.randrange(8)]) + intact[at + 1 :]


def test_a_manifest_is_checked_to_the_last_byte(tmp_path: Path):
    path = save(tmp_path, 5) / "manifest.json"
    intact = path.read_bytes()
    for content in (intact[:-1], intact.replace(b"\n", b"\t", 1), intact + b" "):
        path.write_bytes(content)
        assert verify(path.parent) == "manifest.json is not as it was written"


def test_an_older_format_is_named(tmp_path: Path):
    path = save(tmp_path, 5) / "manifest.json"
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', '"format": 0'))
    assert verify(path.parent) == f"manifest.json has format 0, this version reads {FORMAT}"


def test_a_crash_while_a_checkpoint_is_replaced_loses_nothing(tmp_path: Path):
    save(tmp_path, 5)

    def stop(point: str) -> None:
        if point == "between renames":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 5, state={"step": 6}, tensors={}, on_write_point=stop)
    found = newest_checkpoint(tmp_path, pytest.fail)
    assert found is not None
    assert found.state() == {"step": 5}
    assert [path.name for path in tmp_path.iterdir()] == ["step-5"]


def test_the_next_save_removes_what_a_crash_left_behind(tmp_path: Path):
    (tmp_path / ".tmp-4-1").mkdir()
    (tmp_path / ".tmp-4-1" / "model.safetensors").write_bytes(b"half of it")
    left: list[Path] = []

    def look(point: str) -> None:  # noqa: ARG001 (the hook gets it)
        left.extend(tmp_path.glob(".tmp-4-*"))

    save_checkpoint(tmp_path, 5, state={}, tensors={}, on_write_point=look)
    assert left == [tmp_path / ".tmp-4-1"]  # at the first point only


def test_values_that_are_not_finite_are_not_saved(tmp_path: Path):
    with pytest.raises(RunFailed, match="a holds a value that is not finite"):
        save_checkpoint(tmp_path, 5, state={}, tensors={"model": {"a": torch.tensor([1.0, float("nan")])}})
    assert not list(tmp_path.iterdir())


def test_a_manifest_cannot_point_elsewhere(tmp_path: Path):
    path = save(tmp_path, 5)
    manifest = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(manifest.replace('"state.json"', '"../state.json"'))
    assert "names" in (verify(path) or "")


def test_without_a_valid_checkpoint_there_is_no_resume(tmp_path: Path):
    assert newest_checkpoint(tmp_path, pytest.fail) is None
    (save(tmp_path, 5) / "state.json").write_text("{}")
    with pytest.raises(CannotResume, match="all damaged"):
        newest_checkpoint(tmp_path, pytest.fail)


def test_pruning_keeps_the_last_scheduled_checkpoints(tmp_path: Path):
    for step in (10, 20, 23, 30, 40, 47, 50, 54):
        save(tmp_path, step)
    prune(tmp_path, 54, keep=2, save_every=10, keep_every=None)
    assert saved_steps(tmp_path) == [40, 50, 54]


def test_pruning_deletes_damaged_later_checkpoints_and_keeps_the_newest(tmp_path: Path):
    for step in (10, 20, 24, 28):
        save(tmp_path, step)
    (tmp_path / "step-28" / "state.json").write_text("")  # so the run resumed from 20, and a signal saved 24
    prune(tmp_path, 24, keep=2, save_every=50, keep_every=14)
    assert saved_steps(tmp_path) == [24]


def test_pruning_keeps_multiples_of_keep_every(tmp_path: Path):
    for step in (10, 20, 30, 40, 50):
        save(tmp_path, step)
    (tmp_path / ".tmp-60-1").mkdir()
    prune(tmp_path, 50, keep=1, save_every=10, keep_every=20)
    assert saved_steps(tmp_path) == [20, 40, 50]
    assert not (tmp_path / ".tmp-60-1").exists()
