"""One browser for all tests of a process, and tests without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from .browser import started


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    yield from started()


@pytest.fixture
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield
