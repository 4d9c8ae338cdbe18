"""One browser for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .browser import started


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    yield from started()
