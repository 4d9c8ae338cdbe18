"""Tests run side by side, so each keeps to one thread: two that fight for a core take ten times as long."""

from __future__ import annotations

import hypothesis
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("ours", deadline=None)
hypothesis.settings.load_profile("ours")
