"""The cache: unfinished tables of killed processes are removed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.read.cache import Cache, Columns


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
