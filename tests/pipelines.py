"""From text: what we make of 200 lines with every published kind, head and tokenizer form is what transformers does."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.parity.pipelines import CASES, lines, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    texts, wrong, total = lines(arguments.lines, arguments.seed), 0, 0
    for case in CASES:
        if arguments.only in str(case):
            with tempfile.TemporaryDirectory() as folder:
                for name, same, count in run(case, Path(folder), texts):
                    mark = "equal" if same == count else "DIFFERENT"
                    print(f"{mark}: {case}: {name} {same} of {count}", flush=True)
                    wrong, total = wrong + (same < count), total + 1
    print(f"{total - wrong} of {total} comparisons equal, {arguments.lines} lines, seed {arguments.seed}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
