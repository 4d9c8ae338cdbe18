"""From text: what we make of 200 lines with every published kind, head and tokenizer form is what transformers does."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import transformers

from tests.parity.pipelines import CASES, lines, run


def compare(count: int, seed: int, only: str = "") -> tuple[int, int]:
    """Compare this many lines in every case; -> the comparisons that are equal, and all."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    texts, equal, total = lines(count, seed), 0, 0
    for case in CASES:
        if only in str(case):
            with tempfile.TemporaryDirectory() as folder:
                for name, same, compared in run(case, Path(folder), texts):
                    mark = "equal" if same == compared else "DIFFERENT"
                    print(f"{mark}: {case}: {name} {same} of {compared}", flush=True)
                    equal, total = equal + (same == compared), total + 1
    return equal, total
