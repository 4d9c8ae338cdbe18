"""Fixtures for tests of Hugging Face folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity import zoo
from tests.parity.folders import perturbed, save_theirs


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per family, to be copied."""
    root = tmp_path_factory.mktemp("published")
    for name in ("gpt2", "bert", "t5", "marian", "distilbert", "bert, labels"):
        save_theirs(perturbed(zoo.ALL[name]()), root / name)
    return root
