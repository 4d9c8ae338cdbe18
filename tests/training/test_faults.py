"""Faults that users meet while they train: lost locks, clocks that jump, a cache that vanishes, texts that grow."""

from __future__ import annotations

import os
import resource
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from regard.errors import InputError
from regard.layers import linear
from regard.store.files import tensors_to_bytes
from regard.training.lock import folder_lock, require_lock
from tests.storm import faults
from tests.training.runs import digests, in_own_process, regard, start, write_recipe


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    return faults.unbroken(tmp_path_factory.mktemp("unbroken"))


def test_a_lock_that_another_machine_took_is_no_longer_ours(tmp_path: Path):
    require_lock(tmp_path)  # of no run
    with folder_lock(tmp_path):
        require_lock(tmp_path)
        (tmp_path / ".lock").write_text("process 7 on host elsewhere (started 10:02)")
        with pytest.raises(InputError, match="in use by process 7 on host elsewhere"):
            require_lock(tmp_path)


@pytest.mark.slow
def test_a_run_gives_way_to_one_that_took_its_folder(tmp_path: Path):
    recipe, out = write_recipe(tmp_path), tmp_path / "run"
    arguments = ["train", str(recipe), "--out", str(out), "--set", "train.steps=100000"]
    run = start(arguments, partial(faults.useless_locks, "one"))
    try:
        while not (out / "checkpoints" / "step-7").exists():
            assert run.poll() is None
            time.sleep(0.01)
        (out / ".lock").write_text("process 7 on host other (started 10:02)")
        assert run.wait(60), "it goes on"
    finally:
        run.kill()
    _, err = run.communicate()
    assert run.returncode == 2
    assert "in use by process 7 on host other" in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_without_locks_a_run_is_refused_and_leaves_nothing(tmp_path: Path):
    code, _, err = regard("train", write_recipe(tmp_path), "--out", tmp_path / "run", driver=faults.no_locks)
    assert code == 2
    assert "cannot be locked: No locks available" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_clock_that_jumps_changes_nothing(unbroken, tmp_path: Path):
    recipe, expected = unbroken
    for more in (faults.stop_at(17), ()):
        driver = partial(faults.jumping_clock, len(more))
        assert regard("train", recipe, "--out", tmp_path / "run", *more, driver=driver)[0] == 0
    assert digests(tmp_path / "run") == expected


@pytest.mark.slow
def test_a_cache_that_is_deleted_while_a_run_trains_changes_nothing(
    unbroken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe, expected = unbroken
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    driver = partial(with_cache, tmp_path / "cache")
    assert regard("train", recipe, "--out", tmp_path / "run", driver=driver)[0] == 0
    assert not (tmp_path / "cache").exists()
    assert digests(tmp_path / "run") == expected


def with_cache(folder: Path) -> None:
    os.environ["REGARD_CACHE"] = str(folder)
    faults.delete(folder, 9)


@pytest.mark.slow
def test_a_text_that_grows_while_it_is_read_is_refused(tmp_path: Path):
    recipe = write_recipe(tmp_path)
    driver = partial(faults.append_while_reading, tmp_path / "train.a")
    code, _, err = regard("train", recipe, "--out", tmp_path / "run", driver=driver)
    assert code == 2
    assert "train.a: it was changed while it was read" in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_text_that_grows_later_changes_nothing_but_a_resume_is_refused(tmp_path: Path):
    recipe, expected = faults.unbroken(tmp_path)
    driver = partial(faults.append_at, tmp_path, 9)
    assert regard("train", recipe, "--out", tmp_path / "run", driver=driver)[0] == 0
    assert digests(tmp_path / "run") == expected
    assert regard("train", recipe, "--out", tmp_path / "run", "--set", "train.steps=50")[0] == 4


@pytest.mark.slow
def test_little_memory_ends_a_run_in_one_line(tmp_path: Path):
    wide = ["--set", "model.width=256", "--set", "train.batch_tokens=30000", "--set", "train.steps=1"]
    recipe = write_recipe(tmp_path, lines=2000)
    driver = partial(faults.limit_memory, 40)
    code, _, err = regard("train", recipe, "--out", tmp_path / "run", *wide, driver=driver)
    assert code == 1, err
    assert err.count("\n") == 1
    assert "memory" in err


def saved_with_little_memory() -> str:
    """What saving 200 MB ends with where there are 370 MB; the library needs two copies."""
    tensors = {"a": torch.zeros(50 << 20)}
    faults.limit_memory(370)
    try:
        return f"{len(tensors_to_bytes(tensors))} bytes"
    except MemoryError:
        return "MemoryError"


@pytest.mark.slow
def test_a_checkpoint_for_which_memory_is_short_raises_an_error_and_no_signal():
    assert in_own_process(saved_with_little_memory) == "MemoryError"


@pytest.mark.parametrize("limit", [1 << 40, resource.RLIM_INFINITY])
def test_onednn_is_not_used_under_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch, limit: int):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, "cpu_name": "Another's"})
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    usable = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    assert linear._onednn_is_faster() == (usable and limit == resource.RLIM_INFINITY)
