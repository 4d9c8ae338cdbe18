"""What several tests of folders begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity import zoo
from tests.parity.folders import saved, shaken


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of each family, to be copied."""
    root = tmp_path_factory.mktemp("published")
    for name in ("gpt2", "bert", "t5", "marian", "distilbert", "bert, labels"):
        saved(shaken(zoo.ALL[name]()), root / name)
    return root
