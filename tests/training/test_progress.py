"""What a run says where nobody watches it live."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from regard.training.log import Lines, span
from regard.training.step import Step
from tests.training.runs import regard, write_recipe

STEP = Step(loss=1.23456, norm=1.0, learning_rate=1e-3, tokens=300, targets=150)


def said(lines: Lines, first: int, steps: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines.begin(first, steps)
    for number in range(first + 1, steps + 1):
        lines.stepped(number, STEP, 4321.0)
    return capsys.readouterr().out.splitlines()


def test_the_last_step_is_always_said_and_others_now_and_then(capsys: pytest.CaptureFixture[str]):
    assert said(Lines(), 0, 2000, capsys) == ["step 2,000 of 2,000: training loss 1.235, 4,321 tokens/s"]
    every = said(Lines(every=0.0), 2, 5, capsys)
    assert [line.split(":")[0] for line in every] == ["step 3 of 5", "step 4 of 5", "step 5 of 5"]
    lines = Lines(every=0.0)
    lines.begin(0, 100)
    lines.began -= 60  # a minute ago
    lines.stepped(1, STEP, 4321.0)
    assert capsys.readouterr().out == "step 1 of 100: training loss 1.235, 4,321 tokens/s, about 99 minutes left\n"


def test_a_run_without_validation_says_in_a_pipe_how_it_went(tmp_path: Path):
    recipe = write_recipe(tmp_path)
    recipe.write_text(re.sub(r"valid +=.*\n", "", recipe.read_text()))
    code, out, err = regard("train", recipe, "--set", "train.steps=3", "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    assert re.search(r"^step 3 of 3: training loss [\d.]+, [\d,]+ tokens/s$", out, re.MULTILINE)


def test_times_are_said_as_people_say_them():
    given = (0.2, 1, 45, 119.4, 119.6, 150, 3600, 7199, 9000, 36_000, 172_000, 180_000, 40 * 86_400)
    assert [span(seconds) for seconds in given] == [
        "less than a second", "1 second", "45 seconds", "119 seconds", "2 minutes", "2.5 minutes", "60 minutes",
        "2 hours", "2.5 hours", "10 hours", "2 days", "2.1 days", "40 days",
    ]  # fmt: skip
