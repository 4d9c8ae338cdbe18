"""A converted model is whole or not there: killed, refused, written twice at once, on a disk of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from regard.api import load
from regard.errors import DiskTrouble, InputError, RunFailed
from regard.models import zoo
from regard.store.convert import convert
from regard.store.files import PARTIAL, new_folder
from regard.store.folder import WEIGHTS
from tests.small import save_model, small
from tests.storm.disk import small_disk


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "model", small(zoo.gpt2(16, 1, 2)))


def convert_and_die(model: Path, target: Path) -> int:
    """Convert in a child that is killed just before its weights get their name; -> its exit code."""
    child = os.fork()
    if child == 0:
        replace = os.replace

        def deadly(old: Path, new: Path) -> None:
            if Path(new).name == WEIGHTS:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(old, new)

        os.replace = deadly
        convert(model, target, "regard")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("exists", [False, True])
def test_a_killed_conversion_leaves_no_target_and_is_simply_repeated(model: Path, tmp_path: Path, exists: bool):
    target = tmp_path / "new"
    if exists:
        target.mkdir()
    assert convert_and_die(model, target) == -9
    assert not [path for path in target.glob("*") if path.name != PARTIAL]
    convert(model, target, "regard")
    load(target, device="cpu")
    assert not list(tmp_path.glob(f"**/*{PARTIAL}"))


def fill_and_fail(target: Path) -> None:
    with new_folder(target) as folder:
        (folder / "config.json").touch()
        raise RunFailed("it failed.")


def test_a_refused_conversion_leaves_nothing(tmp_path: Path):
    with pytest.raises(RunFailed):
        fill_and_fail(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())


def test_what_a_crash_left_is_cleared(tmp_path: Path):
    left = tmp_path / f".new{PARTIAL}"
    (left / "folder").mkdir(parents=True)
    (left / "old").touch()
    (left / "link").symlink_to(tmp_path)
    with new_folder(tmp_path / "new") as folder:
        (folder / "one").touch()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["one"]


def test_two_processes_never_write_one_folder(model: Path, tmp_path: Path):
    target = tmp_path / "new"
    with new_folder(target) as folder:
        (folder / "mine").touch()
        with pytest.raises(InputError, match="is being written by another process"):
            convert(model, target, "huggingface")
    assert [path.name for path in target.iterdir()] == ["mine"]


def fill_too_late(target: Path) -> None:
    with new_folder(target):
        target.mkdir()
        (target / "theirs").touch()


def test_a_folder_that_came_meanwhile_is_not_replaced(tmp_path: Path):
    target = tmp_path / "new"
    with pytest.raises(InputError, match="exists already"):
        fill_too_late(target)
    assert [path.name for path in target.iterdir()] == ["theirs"]


def test_an_older_conversion_stays_until_the_new_one_is_whole(tmp_path: Path):
    target = tmp_path / "new"
    with new_folder(target) as folder:
        (folder / "one").touch()
    with new_folder(target, lambda _: True) as folder:
        (folder / "two").touch()
        assert [path.name for path in target.iterdir()] == ["one"]
    assert [path.name for path in target.iterdir()] == ["two"]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_link_to_an_empty_folder_is_followed(model: Path, tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    convert(model, tmp_path / "link", "huggingface")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / WEIGHTS).is_file()


def test_a_disk_of_its_own_is_filled_and_one_that_is_full_is_left_empty(model: Path, tmp_path: Path):
    try:
        with small_disk(tmp_path / "disk", "size=64k"):
            with pytest.raises(DiskTrouble, match=rf"cannot write {tmp_path}/disk/.*needs"):
                convert(model, tmp_path / "disk", "regard")
            assert not list((tmp_path / "disk").iterdir())
        (tmp_path / "disk").rmdir()
        with small_disk(tmp_path / "disk"):
            convert(model, tmp_path / "disk", "regard")
            load(tmp_path / "disk", device="cpu")
    except PermissionError as error:
        pytest.skip(str(error))
