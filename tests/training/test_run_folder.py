"""The folder of a run: full disks, locks, odd names, file modes, and changed recipes on resume."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from regard.errors import InputError
from regard.training.lock import folder_lock
from tests.storm.disk import faults, small_disk
from tests.training.runs import at_steps, digests, other_torch, regard, start, write_recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("unbroken")
    recipe = write_recipe(folder)
    assert regard("train", recipe, "--out", folder / "run")[0] == 0
    return recipe, digests(folder / "run")


@pytest.fixture(scope="module")
def started(unbroken, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of seven steps, which no test continues."""
    out = tmp_path_factory.mktemp("started") / "run"
    assert regard("train", unbroken[0], "--out", out, "--set", "train.steps=7")[0] == 0
    return out


def disk(folder: Path, options: str = "size=16m") -> ExitStack:
    """A small disk mounted for the test, or a reason to skip."""
    stack = ExitStack()
    try:
        stack.enter_context(small_disk(folder, options))
    except (PermissionError, FileNotFoundError) as error:
        pytest.skip(f"cannot mount a small disk: {error}")
    return stack


@pytest.mark.parametrize(("part", "freed"), [(0.0, True), (0.6, False)])
def test_a_full_disk_loses_nothing(unbroken, tmp_path: Path, part: float, freed: bool):
    with disk(tmp_path / "run"):
        assert faults(*unbroken, tmp_path, kind="disk", part=part, freed=freed) == []


@pytest.mark.parametrize(("part", "freed"), [(0.0, True), (0.0, False), (0.5, True)])
def test_a_limit_on_the_size_of_files_loses_nothing(unbroken, tmp_path: Path, part: float, freed: bool):
    assert faults(*unbroken, tmp_path, kind="limit", part=part, freed=freed) == []


def without_log(out: Path) -> None:
    """From step 10 on the log cannot be written; after step 21, which is saved, the process is killed."""

    def spoil(_: Any) -> None:
        (out / "metrics.jsonl").rename(out / "moved")
        (out / "metrics.jsonl").mkdir()

    at_steps({10: spoil, 21: lambda _: os.kill(os.getpid(), signal.SIGKILL)})


def test_lines_that_could_not_be_written_are_stored_in_the_checkpoint(unbroken, tmp_path: Path):
    recipe, out = unbroken[0], tmp_path / "run"
    assert regard("train", recipe, "--out", out, driver=partial(without_log, out))[0] == -signal.SIGKILL
    (out / "metrics.jsonl").rmdir()
    (out / "moved").rename(out / "metrics.jsonl")
    assert regard("train", recipe, "--out", out)[0] == 0
    assert digests(out) == unbroken[1]


@pytest.mark.parametrize("size", ["4k", "16k"])
def test_a_full_disk_is_reported_before_the_first_step(unbroken, tmp_path: Path, size: str):
    with disk(tmp_path / "run", f"size={size}"):
        code, out, err = regard("train", unbroken[0], "--out", tmp_path / "run")
    assert (code, out) == (74, "")
    assert err.count("\n") == 1
    assert "No space left on device (needs" in err


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_first_step(unbroken, tmp_path: Path):
    with disk(tmp_path / "run", "size=1m,ro"):
        code, out, err = regard("train", unbroken[0], "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "is not writable" in err


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_file_modes_follow_the_umask(unbroken, tmp_path: Path, mask: int):
    out = tmp_path / "run"
    driver = partial(os.umask, mask)
    assert regard("train", unbroken[0], "--out", out, "--set", "train.steps=8", driver=driver)[0] == 0
    for path in (out, *out.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o777 if path.is_dir() else 0o666) & ~mask, path


@pytest.mark.parametrize("name", ["two words", "two\nlines", "🙂", "[0-9]*?", "ünï"])
def test_a_folder_may_have_any_name(unbroken, tmp_path: Path, name: str):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    for steps in (8, 40):
        code, _, err = regard("train", unbroken[0], "--out", tmp_path / name, "--set", f"train.steps={steps}")
        assert (code, err) == (0, "")
    assert digests(tmp_path / name) == unbroken[1]
    code, _, err = regard("train", unbroken[0], "--out", tmp_path / name, "--set", "model.width=32")
    assert code == 4
    assert err.count("\n") == 1


def test_a_second_run_in_the_same_folder_is_refused_until_the_first_has_ended(unbroken, tmp_path: Path):
    recipe, out = unbroken[0], tmp_path / "run"
    first = start(["train", str(recipe), "--out", str(out), "--set", "train.steps=100000"])
    try:
        while not (out / "metrics.jsonl").exists():
            assert first.poll() is None
            time.sleep(0.01)
        code, _, err = regard("train", recipe, "--out", out)
        assert code == 2
        assert f"in use by process {first.pid}" in err
        for _ in range(20):
            with pytest.raises(InputError, match=f"process {first.pid} on host"), folder_lock(out):
                pytest.fail("two in one folder")
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()
    assert first.returncode == -signal.SIGKILL
    assert (out / ".lock").read_text().startswith(f"process {first.pid}")
    assert regard("train", recipe, "--out", out)[0] == 0


@pytest.mark.parametrize(
    ("setting", "key"),
    [("model.width=32", "model.width"), ("train.seed=2", "train.seed"),
     ("train.learning_rate=0.1", "train.learning_rate"), ("text.tokenizer=byte", "text.tokenizer"),
     ("model.depth=2", "model."), ("train.batch_tokens=500", "train.batch_tokens")],
)  # fmt: skip
def test_a_changed_recipe_is_refused_on_resume(unbroken, started: Path, setting: str, key: str):
    code, _, err = regard("train", unbroken[0], "--out", started, "--set", setting)
    assert code == 4
    assert key in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("options", "driver"), [(["--threads", "2"], None), ([], other_torch)])
def test_other_threads_and_versions_give_a_warning(unbroken, tmp_path: Path, options, driver):
    out = tmp_path / "run"
    assert regard("train", unbroken[0], "--out", out, "--set", "train.steps=7")[0] == 0
    code, output, err = regard("train", unbroken[0], "--out", out, *options, driver=driver)
    assert (code, err) == (0, "")
    assert "close but not bit-identical" in output


def test_a_changed_corpus_is_refused_and_more_steps_are_not(tmp_path: Path):
    recipe, out = write_recipe(tmp_path), tmp_path / "run"
    assert regard("train", recipe, "--out", out, "--set", "train.steps=7")[0] == 0
    assert regard("train", recipe, "--out", out, "--set", "train.steps=9")[0] == 0
    text = (tmp_path / "train.a").read_text()
    (tmp_path / "train.a").write_text(text.replace("a", "b", 1))
    code, _, err = regard("train", recipe, "--out", out, "--set", "train.steps=12")
    assert code == 4
    assert "text.train" in err
    assert err.count("\n") == 1
