"""The reference decoder of docs/onnx.md, as it stands there, in a process of its own: greedy, in batches by length."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.decode.options import Options
from regard.decode.requests import GeneratedText
from regard.evaluation.contestant import answer_requests

PAGE = Path(__file__).parents[1] / "docs" / "onnx.md"
BATCH = 64


class Reference:
    """ONNX Runtime, which takes all cores, and numpy."""

    def __init__(self, folder: Path) -> None:
        code = next(
            block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "Generator" in block
        )
        names: dict[str, Any] = {}
        exec(compile(code.partition("\nfor text in Generator")[0], str(PAGE), "exec"), names)
        self.generator = names["Generator"](folder)

    def defaults(self) -> Options:
        """Greedy search."""
        return Options()

    def translations(self, texts: Sequence[str], options: Options, progress: Any) -> list[list[GeneratedText]]:
        """The translation of each text."""
        del options, progress
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        found = [""] * len(texts)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            for index, text in zip(batch, self.generator.generate([texts[index] for index in batch], max_tokens=100)):
                found[index] = text
        return [[GeneratedText(text, 0.0, 0.0, (), True)] for text in found]


if __name__ == "__main__":
    answer_requests(lambda: Reference(Path(sys.argv[2])))
