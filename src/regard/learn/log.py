"""What is written down while a model learns: metrics.jsonl for programs, TensorBoard for people."""

from __future__ import annotations

import io
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from regard.errors import DiskTrouble
from regard.store.files import disk_trouble, write_file


class Tail:
    """A file that grows by whole records; what the disk has no room for waits in memory until it has."""

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        self.path, self.note = path, note
        self.waiting: list[bytes] = []

    def add(self, record: bytes) -> None:
        """Append a record, after those that wait; trouble is said once and stops nothing."""
        try:
            self.append(b"".join([*self.waiting, record]))
            self.waiting = []
        except DiskTrouble as error:
            if not self.waiting:
                self.note(f"warning: {error} Training goes on and tries again.")
            self.waiting.append(record)

    def append(self, content: bytes) -> None:
        """All or nothing."""
        with disk_trouble(self.path, len(content)), open(self.path, "ab", buffering=0) as file:
            end, rest = file.tell(), content
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(end)
                raise


class Log:
    """Appends to metrics.jsonl and to TensorBoard; on resume both forget what came after the checkpoint.

    `unlogged` are the lines that waited for room on the disk when the checkpoint was made.
    """

    def __init__(self, folder: Path, step: int, unlogged: Sequence[str], note: Callable[[str], None]) -> None:
        self.lines = Tail(folder / "metrics.jsonl", note)
        self.board = Tail(_events(folder / "tensorboard"), note)
        self.board.add(_record(file_version="brain.Event:2"))
        self.board.add(_record(step=step + 1, session_log={"status": "START"}))  # earlier files are void from here on
        kept: list[bytes] = []
        if self.lines.path.exists():
            kept = [line for line in self.lines.path.read_bytes().splitlines(keepends=True) if _until(line, step)]
            write_file(self.lines.path, b"".join(kept))
        for line in unlogged:
            if _until(line.encode(), step) and line.encode() not in kept:
                self.append(line)

    @property
    def unlogged(self) -> list[str]:
        """The lines that wait."""
        return [line.decode() for line in self.lines.waiting if line]

    def write(self, step: int, values: dict[str, Any]) -> None:
        """One line, and one point a number."""
        self.append(json.dumps({"step": step, **values}) + "\n")

    def close(self) -> None:
        """Try a last time to write what waits, and say what is left."""
        if self.lines.waiting:
            self.lines.add(b"")
        if self.lines.waiting:
            self.lines.note(f"warning: {len(self.unlogged):,} lines could not be written to {self.lines.path}.")

    def append(self, line: str) -> None:
        """Write a line, and show it."""
        self.lines.add(line.encode())
        values = json.loads(line)
        points = [
            {"tag": name.replace("valid_", "valid/"), "simple_value": value}
            for name, value in values.items()
            if isinstance(value, (int, float)) and name not in ("step", "last")
        ]
        self.board.add(_record(step=values["step"], summary={"value": points}))


def _events(folder: Path) -> Path:
    """A file of a name by which TensorBoard knows what it holds; a process has its own."""
    with disk_trouble(folder, 0):
        folder.mkdir(exist_ok=True)
    return folder / f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.0"


def _record(**fields: Any) -> bytes:
    """An event as TensorBoard keeps it."""
    from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
    from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

    record = io.BytesIO()
    RecordWriter(record).write(Event(wall_time=time.time(), **fields).SerializeToString())
    return record.getvalue()


def _until(line: bytes, step: int) -> bool:
    """Whether a line is whole and not later than the step."""
    try:
        values = json.loads(line)
        # What was judged after the last step is judged again.
        return line.endswith(b"\n") and int(values["step"]) <= step and not values.get("last")
    except (ValueError, KeyError, TypeError):
        return False
