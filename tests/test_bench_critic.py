"""The critic's claim is put to the test fairly: the same text, the same time, models of the same size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import critic
from regard.config.recipe import read_recipe
from regard.errors import InputError
from regard.layers.positions import Rotary
from regard.models import zoo

TASK = critic.Task(width=16, depth=2, minutes=0.05)
TEXT = "".join(f"It was on a hot evening early in July {number}.\n" for number in range(400))


def test_the_transformer_is_as_large_as_the_model_with_one_head():
    task = critic.Task()
    one = critic.size(zoo.sha_rnn(task.width, task.depth))
    inner = task.matching(one)
    assert critic.size(zoo.gpt2(task.width, task.depth, 4, inner=inner, position=Rotary())) == pytest.approx(
        one, rel=0.01
    )


def test_recipes_differ_in_the_model_and_its_problem_only(tmp_path: Path):
    recipes = []
    for name, tables in TASK.contestants().items():
        path = tmp_path / f"{len(name)}.toml"
        path.write_text(TASK.recipe(tables, tmp_path))
        recipes.append(read_recipe(str(path), ()))
    assert len({recipe.train for recipe in recipes}) == 1
    assert len({repr(recipe.model) for recipe in recipes}) == len(recipes)


def test_what_is_read_in_the_end_neither_was_learnt_from_nor_chose_the_weights(tmp_path: Path):
    (tmp_path / "book.txt").write_text(TEXT)
    critic.prepare(str(tmp_path / "book.txt"), tmp_path)
    learnt, chosen, read = ((tmp_path / f"{side}.txt").read_text() for side in ("train", "valid", "test"))
    assert learnt + chosen + read == TEXT
    assert all(side.endswith("\n") for side in (learnt, chosen))
    assert len(chosen) == pytest.approx(len(TEXT) / 20, rel=0.1)
    assert len(read) == pytest.approx(len(TEXT) / 20, rel=0.1)
    with pytest.raises(InputError, match="no such file"):
        critic.prepare(str(tmp_path / "no.txt"), tmp_path)


def test_a_step_is_timed_and_weighed(tmp_path: Path):
    (tmp_path / "book.txt").write_text(TEXT)
    critic.prepare(str(tmp_path / "book.txt"), tmp_path)
    (tmp_path / "recipe.toml").write_text(TASK.recipe(TASK.contestants()["LSTM, one head"], tmp_path))
    found = critic.effort(tmp_path / "recipe.toml")
    assert found.seconds > 0
    assert found.parameters == critic.size(zoo.sha_rnn(TASK.width, TASK.depth))
    assert found.memory > 16 * found.parameters  # weights, gradients, and what the optimizer keeps


@pytest.mark.slow
def test_each_learns_for_its_time_and_is_judged(tmp_path: Path):
    (tmp_path / "book.txt").write_text(TEXT)
    folder = tmp_path / "runs"
    folder.mkdir()
    for name, tables in TASK.contestants().items():  # planned before, as when a run goes on: 3 seconds hold 30 steps
        run = critic.run_folder(folder, name)
        run.with_suffix(".json").write_text(json.dumps({"seconds": 0.1, "memory": 9, "parameters": 7}))
        run.with_suffix(".toml").write_text(TASK.recipe(tables, folder))
    said: list[str] = []
    found = critic.measure(TASK, str(tmp_path / "book.txt"), folder, 2, said.append)
    assert all(outcome.steps == 30 and 1 < outcome.bits < 8 for outcome in found.values())
    assert len(said) == 2 * len(found)
    assert critic.table(found).count("\n") == 1 + len(found)
