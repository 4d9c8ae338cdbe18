"""Logs: lines wait while the disk is full; progress of a run in plain lines."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from regard.training.log import Lines, Log, span
from regard.training.step import Step
from tests.training.runs import regard, write_recipe


@contextmanager
def file_size_limit(size: int = 0) -> Iterator[None]:
    """Files of this process may not grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def written(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def tensorboard_values(folder: Path) -> dict[int, dict[str, float]]:
    """The values that TensorBoard reads from the one event file."""
    (path,) = (folder / "tensorboard").iterdir()
    events = [event for event in LegacyEventFileLoader(str(path)).Load() if event.HasField("summary")]
    return {event.step: {value.tag: value.simple_value for value in event.summary.value} for event in events}


def test_lines_wait_for_room_and_are_then_written_in_order(tmp_path: Path):
    notes: list[str] = []
    log = Log(tmp_path, 0, [], notes.append)
    log.write(1, {"loss": 2.0})
    with file_size_limit(30):  # a line and a bit
        log.write(2, {"loss": 1.5})
        log.write(3, {"valid_bleu": 7.5})
    assert written(tmp_path) == [1]
    assert len(log.unlogged) == 2
    assert len(notes) == 2  # one per file
    assert all("Training continues" in note and "needs" in note and "\n" not in note for note in notes)
    log.write(4, {"loss": 1.0})
    assert log.unlogged == []
    assert written(tmp_path) == [1, 2, 3, 4]
    expected = {1: {"loss": 2.0}, 2: {"loss": 1.5}, 3: {"valid/bleu": 7.5}, 4: {"loss": 1.0}}
    assert tensorboard_values(tmp_path) == expected


def test_lines_that_remain_at_the_end_are_reported(tmp_path: Path):
    notes: list[str] = []
    log = Log(tmp_path, 0, [], notes.append)
    with file_size_limit():
        log.write(1, {"loss": 2.0})
        log.close()
    assert "1 lines could not be written" in notes[-1]
    log.close()
    assert written(tmp_path) == [1]


def test_a_resumed_log_has_each_line_up_to_the_checkpoint_once(tmp_path: Path):
    log = Log(tmp_path, 0, [], [].append)
    log.write(1, {"loss": 2.0})
    with file_size_limit():
        log.write(2, {"loss": 1.5})
        log.write(3, {"loss": 1.2})
        carried = log.unlogged  # as a checkpoint of step 3 keeps them
    Log(tmp_path, 3, carried, pytest.fail)
    assert written(tmp_path) == [1, 2, 3]
    Log(tmp_path, 3, carried, pytest.fail)
    assert written(tmp_path) == [1, 2, 3]
    Log(tmp_path, 2, carried, pytest.fail)
    assert written(tmp_path) == [1, 2]


STEP = Step(loss=1.23456, gradient_norm=1.0, learning_rate=1e-3, tokens=300, targets=150)


def printed(lines: Lines, first: int, steps: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines.start(first, steps)
    for number in range(first + 1, steps + 1):
        lines.stepped(number, STEP, 4321.0)
    return capsys.readouterr().out.splitlines()


def test_the_last_step_is_always_printed_and_others_at_intervals(capsys: pytest.CaptureFixture[str]):
    assert printed(Lines(), 0, 2000, capsys) == ["step 2,000 of 2,000: training loss 1.235, 4,321 tokens/s"]
    every = printed(Lines(every=0.0), 2, 5, capsys)
    assert [line.split(":")[0] for line in every] == ["step 3 of 5", "step 4 of 5", "step 5 of 5"]
    lines = Lines(every=0.0)
    lines.start(0, 100)
    lines.began -= 60  # a minute ago
    lines.stepped(1, STEP, 4321.0)
    assert capsys.readouterr().out == "step 1 of 100: training loss 1.235, 4,321 tokens/s, about 99 minutes left\n"


def test_a_run_without_validation_prints_its_last_step_in_a_pipe(tmp_path: Path):
    recipe = write_recipe(tmp_path)
    recipe.write_text(re.sub(r"valid +=.*\n", "", recipe.read_text()))
    code, out, err = regard("train", recipe, "--set", "train.steps=3", "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    assert re.search(r"^step 3 of 3: training loss [\d.]+, [\d,]+ tokens/s$", out, re.MULTILINE)


def test_durations_are_readable():
    given = (0.2, 1, 45, 119.4, 119.6, 150, 3600, 7199, 9000, 36_000, 172_000, 180_000, 40 * 86_400)
    assert [span(seconds) for seconds in given] == [
        "less than a second", "1 second", "45 seconds", "119 seconds", "2 minutes", "2.5 minutes", "60 minutes",
        "2 hours", "2.5 hours", "10 hours", "2 days", "2.1 days", "40 days",
    ]  # fmt: skip
