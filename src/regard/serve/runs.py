"""Runs that are served: the new lines of their metrics.jsonl, and the film of a text through their checkpoints."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.api import LoadedModel, load, side_by_side, steps
from regard.errors import InputError, RegardError
from regard.progress import QUIET
from regard.schema import classes_of, parse_toml
from regard.show.payload import TracePage
from regard.store.checkpoint import checkpoints_folder

_CHUNK = 1 << 20  # bytes of metrics per reply
_MAX_FRAMES = 12  # checkpoints of a film
_MAX_FILM = 1 << 30  # bytes of weights of a film
_CURVES = ("step", "loss", "learning_rate", "tokens_per_second", "gradient_norm", "seconds", "last")


def metrics_of(folder: Path | None) -> Path | None:
    """The metrics of a run folder; None for a model that is not a run."""
    path = None if folder is None else folder / "metrics.jsonl"
    return path if path is not None and path.is_file() else None


@dataclass(frozen=True)
class Cursor:
    """How far a client has read a file of metrics, and which file: a resumed run writes another."""

    file: int = 0
    offset: int = 0

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor of a reply; anything else is the start of the file."""
        parts = text.split("-")
        if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts):
            return cls()
        return cls(int(parts[0]), int(parts[1]))

    def __str__(self) -> str:
        return f"{self.file}-{self.offset}"


def new_metrics(path: Path, after: Cursor) -> dict[str, Any]:
    """The lines since the cursor and the next cursor; `restart`: the client drops what it has read before."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        restart = after.file != status.st_ino or after.offset > status.st_size
        offset = 0 if restart else after.offset
        file.seek(offset)
        content = file.read(_CHUNK)
    whole = content[: content.rfind(b"\n") + 1]  # the last line may be half written
    return {
        "lines": [line for text in whole.split(b"\n") if (line := _numbers(text))],
        "after": str(Cursor(status.st_ino, offset + len(whole))),
        "restart": restart,
        "more": len(content) == _CHUNK,
        "age": max(0.0, time.time() - status.st_mtime),
    }


def _numbers(line: bytes) -> dict[str, float]:
    """The step, curves and validation figures of a line; nothing of a line that is damaged."""
    try:
        values = json.loads(line, parse_int=float)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict) or not isinstance(values.get("step"), float):
        return {}
    wanted = {name: value for name, value in values.items() if name in _CURVES or name.startswith("valid_")}
    return {name: float(value) for name, value in wanted.items() if isinstance(value, float | bool)}


def total_steps(folder: Path) -> int | None:
    """How many steps the run's recipe asks for, if it says so."""
    try:
        recipe = parse_toml((folder / "recipe.toml").read_text("utf-8"))
        asked = recipe.get("train", {}).get("steps")
    except (OSError, ValueError, AttributeError):
        return None
    return asked if isinstance(asked, int) else None


def film_steps(folder: Path) -> list[int]:
    """The checkpoints of a film: all, or some at equal distances with the first and the last."""
    found = steps(folder)
    sizes = [_size(checkpoints_folder(folder) / f"step-{step}" / "model.safetensors") for step in found]
    most = max(1, min(_MAX_FRAMES, _MAX_FILM // max(1, *sizes, 1)))
    if len(found) <= most:
        return found
    return [found[round(at * (len(found) - 1) / (most - 1))] for at in range(most)] if most > 1 else found[-1:]


def film(model: LoadedModel, folder: Path, text: str, target: str | None) -> TracePage:
    """The attention of a text through the checkpoints; all get one target, that of the last, so that they compare."""
    parts, device = classes_of(model.description), str(model.device)
    try:
        models = {step: load(folder, device=device, step=step, parts=parts) for step in film_steps(folder)}
    except RegardError:  # its text names the folder
        raise InputError("a checkpoint went away while it was read. Try again.") from None
    if not models:
        raise InputError("this run has no checkpoints yet. Wait for the first.")
    *_, last = models.values()
    if target is None and last.shape == "encoder-decoder":
        target = last.translations([text], progress=QUIET)[0][0].text
    traces = [one.look(text, target) for one in models.values()]
    return side_by_side(*traces, labels=[f"step {step:,}" for step in models], slider=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
