"""Tests run side by side, so each keeps to one thread: two that fight for a core take ten times as long."""

from __future__ import annotations

import os
import signal
import tempfile

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a background job, and under nohup: children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ.setdefault("REGARD_CACHE", tempfile.mkdtemp(prefix="regard-cache-"))
hypothesis.settings.register_profile("ours", deadline=None)
hypothesis.settings.load_profile("ours")


@pytest.fixture(autouse=True)
def _drawn_alike() -> None:
    """What a test draws at random does not depend on which tests ran before it."""
    torch.manual_seed(0)
