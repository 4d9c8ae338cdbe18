"""What a run wrote down while it learnt, read back."""

from __future__ import annotations

import json
import math
from pathlib import Path

Lines = list[dict[str, object]]


def read_metrics(path: Path | None) -> Lines:
    """The objects of a metrics.jsonl; a line that is not one (cut off by a kill, say) is passed over."""
    if path is None or not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            value = json.loads(line, parse_int=float)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def points(lines: Lines, name: str) -> list[tuple[float, float]]:
    """(step, value) of every line that has both as finite numbers, in order; the last of a step counts."""
    found = {}
    for line in lines:
        step, value = line.get("step"), line.get(name)
        if isinstance(step, float) and isinstance(value, float) and math.isfinite(step + value):
            found[step] = value
    return sorted(found.items())
