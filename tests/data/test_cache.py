"""The cache: unfinished tables of killed processes are removed; one that cannot be written says what to do."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.read.cache import Cache, Columns
from regard.errors import DiskTrouble


def make(columns: Columns) -> Mapping[str, Any]:
    columns.append("numbers", np.arange(3))
    return {}


@pytest.mark.parametrize(("folder_days", "file_days", "stays"), [(2, 2, False), (2, 0, True), (0, 0, True)])
def test_unfinished_tables_are_removed_after_a_day(tmp_path: Path, folder_days: int, file_days: int, stays: bool):
    part = tmp_path / ".part-abc"
    part.mkdir()
    (part / "tokens").write_bytes(b"12")
    for path, days in ((part / "tokens", file_days), (part, folder_days)):
        before = time.time() - 86_400 * days - 60
        os.utime(path, (before, before))
    finished = Cache(tmp_path).table("text", 1, make)
    assert finished.columns["numbers"].tolist() == [0, 1, 2]
    assert part.exists() == stays
    assert len(list(tmp_path.glob("text-*"))) == 1


@pytest.mark.parametrize(("number", "full"), [(errno.EACCES, False), (errno.EROFS, False), (errno.ENOSPC, True)])
def test_only_a_full_disk_asks_for_space_and_another_folder_is_always_named(tmp_path: Path, number: int, full: bool):
    def fail(_: Columns) -> Mapping[str, Any]:
        raise OSError(number, os.strerror(number))

    with pytest.raises(DiskTrouble, match=r"another folder: REGARD_CACHE=") as found:
        Cache(tmp_path).table("text", 1, fail)
    assert ("Free some space" in str(found.value)) == full


def test_a_home_that_cannot_be_written_is_a_cache_that_cannot(tmp_path: Path):
    (tmp_path / "home").write_text("in the way")
    with pytest.raises(DiskTrouble, match=r"cannot write the cache .*home/.cache/regard: .* REGARD_CACHE="):
        Cache(tmp_path / "home" / ".cache" / "regard").table("text", 1, make)
    with pytest.raises(DiskTrouble, match="REGARD_CACHE="):
        Cache(Path("/proc/1/nowhere/.cache/regard")).table("text", 1, make)
