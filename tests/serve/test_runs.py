"""Runs that are served: only new and whole lines of metrics, resumed runs, the checkpoints of a film."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regard.errors import InputError
from regard.serve import runs
from regard.serve.runs import Cursor, film, film_steps, metrics_of, new_metrics, total_steps
from tests.training.runs import regard, write_recipe


def write(path: Path, *lines: Any, end: str = "") -> Path:
    with open(path, "a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines) + end)
    return path


def steps_of(found: dict[str, Any]) -> list[float]:
    return [line["step"] for line in found["lines"]]


def test_only_new_lines_are_read(tmp_path: Path):
    path = write(tmp_path / "metrics.jsonl", {"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.0, "valid_bleu": 7})
    first = new_metrics(path, Cursor())
    assert first["lines"] == [{"step": 1.0, "loss": 2.5}, {"step": 2.0, "loss": 2.0, "valid_bleu": 7.0}]
    again = new_metrics(path, Cursor.parse(first["after"]))
    assert (again["lines"], again["restart"], again["after"]) == ([], False, first["after"])
    write(path, {"step": 3, "loss": 1.0})
    assert steps_of(new_metrics(path, Cursor.parse(first["after"]))) == [3]


def test_a_line_that_is_half_written_waits(tmp_path: Path):
    path = write(tmp_path / "metrics.jsonl", {"step": 1}, end='{"step": 2, "lo')
    found = new_metrics(path, Cursor())
    assert steps_of(found) == [1]
    with open(path, "a") as file:
        file.write('ss": 0.5}\n')
    assert new_metrics(path, Cursor.parse(found["after"]))["lines"] == [{"step": 2.0, "loss": 0.5}]


def test_a_resumed_run_starts_again(tmp_path: Path):
    path = write(tmp_path / "metrics.jsonl", *({"step": step} for step in range(9)))
    after = Cursor.parse(new_metrics(path, Cursor())["after"])
    other = write(tmp_path / "other", {"step": 0}, {"step": 1})
    other.rename(path)
    found = new_metrics(path, after)
    assert (found["restart"], steps_of(found)) == (True, [0, 1])
    path.write_text('{"step": 0}\n')  # in place, and shorter
    found = new_metrics(path, Cursor.parse(found["after"]))
    assert (found["restart"], steps_of(found)) == (True, [0])


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"null",
        b"[1]",
        b'{"loss": 1}',
        b'{"step": "1"}',
        b'{"step": null}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'"x"',
    ],
)
def test_damaged_lines_are_left_out(tmp_path: Path, line: bytes):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line + b'\n{"step": 4, "loss": 1, "text": "<b>", "valid_x": [1], "other": 3}\n')
    assert new_metrics(path, Cursor())["lines"] == [{"step": 4.0, "loss": 1.0}]


def test_long_metrics_come_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "_CHUNK", 200)
    path = write(tmp_path / "metrics.jsonl", *({"step": step} for step in range(50)))
    found, cursor, parts = list[float](), Cursor(), 0
    while True:
        part = new_metrics(path, cursor)
        found, cursor, parts = found + steps_of(part), Cursor.parse(part["after"]), parts + 1
        if not part["more"]:
            break
    assert found == list(range(50))
    assert parts > 3


@pytest.mark.parametrize("text", ["", "x", "1", "1-", "-1", "1-2-3", "1--2", "٣-٣", "9" * 40 + "-1", "<b>", "0x1-2"])
def test_a_cursor_of_another_kind_is_the_start(text: str):
    assert Cursor.parse(text) == Cursor()
    assert Cursor.parse("12-34") == Cursor(12, 34)


def test_a_model_that_is_not_a_run_has_no_metrics(tmp_path: Path):
    assert metrics_of(None) is None
    assert metrics_of(tmp_path) is None
    assert metrics_of(write(tmp_path / "metrics.jsonl").parent) == tmp_path / "metrics.jsonl"


@pytest.mark.parametrize("text", ["", "[train]", "[train]\nsteps = 'x'", "train = 3", "\x00"])
def test_a_recipe_may_name_no_steps(tmp_path: Path, text: str):
    assert total_steps(tmp_path) is None
    (tmp_path / "recipe.toml").write_text(text)
    assert total_steps(tmp_path) is None
    (tmp_path / "recipe.toml").write_text("[train]\nsteps = 12")
    assert total_steps(tmp_path) == 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with three checkpoints."""
    folder = tmp_path_factory.mktemp("run")
    assert regard("train", write_recipe(folder), "--out", folder / "run", "--set", "train.steps=21")[0] == 0
    return folder / "run"


def test_a_film_shows_the_checkpoints_with_one_target(run: Path):
    from regard.api import load

    model = load(run, device="cpu")
    assert film_steps(run) == [7, 14, 21]
    shown = film(model, run, "abc", None)
    assert shown.slider
    assert [label for label, _ in shown.traces] == ["step 7", "step 14", "step 21"]
    assert len({tuple(trace.target_tokens) for _, trace in shown.traces}) == 1
    assert film(model, run, "abc", "cba").traces[0][1].target_tokens[:3] == ["c", "b", "a"]


def test_a_film_of_many_checkpoints_shows_some_at_equal_distances(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "steps", lambda folder: list(range(0, 101, 5)))
    monkeypatch.setattr(runs, "_MAX_FRAMES", 5)
    assert film_steps(run) == [0, 25, 50, 75, 100]
    monkeypatch.setattr(runs, "_size", lambda path: runs._MAX_FILM // 2)
    assert film_steps(run) == [0, 100]


def test_a_checkpoint_that_goes_away_is_refused_without_its_path(run: Path, monkeypatch: pytest.MonkeyPatch):
    from regard.api import load

    monkeypatch.setattr(runs, "film_steps", lambda folder: [8])
    with pytest.raises(InputError, match="went away") as error:
        film(load(run, device="cpu"), run, "abc", None)
    assert str(run) not in str(error.value)
    monkeypatch.setattr(runs, "film_steps", lambda folder: [])
    with pytest.raises(InputError, match="no checkpoints yet"):
        film(load(run, device="cpu"), run, "abc", None)
