"""Checkpoints count only when every byte is as it was written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from regard.errors import CannotResume
from regard.store.checkpoint import newest_checkpoint, prune, save_checkpoint, steps_found, verify


def save(folder: Path, step: int) -> Path:
    tensors = {"model": {"a": torch.full((50,), float(step))}, "optimizer": {"b": torch.zeros(20)}}
    return save_checkpoint(folder, step, state={"step": step}, tensors=tensors).path


def test_what_is_saved_is_found_again(tmp_path: Path):
    save(tmp_path, 5)
    save(tmp_path, 10)
    found = newest_checkpoint(tmp_path, pytest.fail)
    assert found is not None
    assert (found.step, found.state()) == (10, {"step": 10})
    assert torch.equal(found.tensors("model")["a"], torch.full((50,), 10.0))


def test_saving_a_step_again_replaces_it(tmp_path: Path):
    save(tmp_path, 5)
    save(tmp_path, 5)
    assert steps_found(tmp_path) == [5]
    assert verify(tmp_path / "step-5") is None


def test_every_flipped_or_missing_byte_is_noticed(tmp_path: Path):
    path, chance = save(tmp_path, 5), random.Random(1)
    files = sorted(path.iterdir())
    for number in range(200):
        file = files[number % len(files)]
        whole = file.read_bytes()
        spoilt = bytearray(whole)
        if number % 2:
            spoilt[chance.randrange(len(spoilt))] ^= 1 << chance.randrange(8)
        else:
            del spoilt[chance.randrange(len(spoilt)) :]
        file.write_bytes(spoilt)
        fault = verify(path)
        # White space and digits that JSON does not mind apart, nothing passes.
        assert fault is not None or file.name == "manifest.json", (file, number)
        file.write_bytes(whole)
    assert verify(path) is None


def test_a_manifest_cannot_point_elsewhere(tmp_path: Path):
    path = save(tmp_path, 5)
    manifest = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(manifest.replace("state.json", "../state.json"))
    assert "names" in (verify(path) or "")


def test_with_nothing_valid_left_there_is_no_resume(tmp_path: Path):
    assert newest_checkpoint(tmp_path, pytest.fail) is None
    (save(tmp_path, 5) / "state.json").write_text("{}")
    with pytest.raises(CannotResume, match="all damaged"):
        newest_checkpoint(tmp_path, pytest.fail)


def test_old_checkpoints_go_and_the_last_scheduled_ones_stay(tmp_path: Path):
    for step in (10, 20, 23, 30, 40, 47, 50, 54):
        save(tmp_path, step)
    prune(tmp_path, keep=2, every=10, keep_every=None, reached=lambda point: None)
    assert steps_found(tmp_path) == [40, 50, 54]


def test_some_can_be_kept_for_good(tmp_path: Path):
    for step in (10, 20, 30, 40, 50):
        save(tmp_path, step)
    (tmp_path / ".tmp-60-1").mkdir()
    prune(tmp_path, keep=1, every=10, keep_every=20, reached=lambda point: None)
    assert steps_found(tmp_path) == [20, 40, 50]
    assert not (tmp_path / ".tmp-60-1").exists()
