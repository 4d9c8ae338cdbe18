"""A log that finds no room keeps its lines until there is some, and says so once."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from regard.training.log import Log


@contextmanager
def no_room(size: int = 0) -> Iterator[None]:
    """Files of this process may not grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def written(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def shown(folder: Path) -> dict[int, dict[str, float]]:
    """What TensorBoard reads in the one file of events."""
    (path,) = (folder / "tensorboard").iterdir()
    events = [event for event in LegacyEventFileLoader(str(path)).Load() if event.HasField("summary")]
    return {event.step: {value.tag: value.simple_value for value in event.summary.value} for event in events}


def test_lines_wait_for_room_and_are_then_written_in_order(tmp_path: Path):
    notes: list[str] = []
    log = Log(tmp_path, 0, [], notes.append)
    log.write(1, {"loss": 2.0})
    with no_room(30):  # a line and a bit
        log.write(2, {"loss": 1.5})
        log.write(3, {"valid_bleu": 7.5})
    assert written(tmp_path) == [1]
    assert len(log.unlogged) == 2
    assert len(notes) == 2  # one a file
    assert all("Training goes on" in note and "needs" in note and "\n" not in note for note in notes)
    log.write(4, {"loss": 1.0})
    assert log.unlogged == []
    assert written(tmp_path) == [1, 2, 3, 4]
    assert shown(tmp_path) == {1: {"loss": 2.0}, 2: {"loss": 1.5}, 3: {"valid/bleu": 7.5}, 4: {"loss": 1.0}}


def test_what_is_left_at_the_end_is_said(tmp_path: Path):
    notes: list[str] = []
    log = Log(tmp_path, 0, [], notes.append)
    with no_room():
        log.write(1, {"loss": 2.0})
        log.close()
    assert "1 lines could not be written" in notes[-1]
    log.close()
    assert written(tmp_path) == [1]


def test_a_resumed_log_has_each_line_up_to_the_checkpoint_once(tmp_path: Path):
    log = Log(tmp_path, 0, [], [].append)
    log.write(1, {"loss": 2.0})
    with no_room():
        log.write(2, {"loss": 1.5})
        log.write(3, {"loss": 1.2})
        carried = log.unlogged  # as a checkpoint of step 3 keeps them
    Log(tmp_path, 3, carried, pytest.fail)
    assert written(tmp_path) == [1, 2, 3]
    Log(tmp_path, 3, carried, pytest.fail)
    assert written(tmp_path) == [1, 2, 3]
    Log(tmp_path, 2, carried, pytest.fail)
    assert written(tmp_path) == [1, 2]
