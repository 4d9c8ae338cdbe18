"""What is written down while a model learns: metrics.jsonl for programs, TensorBoard for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.store.files import write_file


class Log:
    """Appends to metrics.jsonl and to TensorBoard; on resume both forget what came after the checkpoint."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / "metrics.jsonl"
        if self.path.exists():
            kept = [line for line in self.path.read_bytes().splitlines(keepends=True) if _until(line, step)]
            write_file(self.path, b"".join(kept))
        self.file = self.path.open("a", encoding="utf-8")
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, values: dict[str, Any]) -> None:
        """One line, and one point a number."""
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self.board.add_scalar(name.replace("valid_", "valid/"), value, step)

    def close(self) -> None:
        """Write what is still on its way."""
        self.file.close()
        self.board.close()


def _until(line: bytes, step: int) -> bool:
    """Whether a line is whole and not later than the step."""
    try:
        values = json.loads(line)
        # What was judged after the last step is judged again.
        return line.endswith(b"\n") and int(values["step"]) <= step and not values.get("last")
    except (ValueError, KeyError, TypeError):
        return False
