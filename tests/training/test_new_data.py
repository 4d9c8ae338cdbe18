"""A run goes on with other text only when it is told to, with the tokenizer it has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.config.resume import filled
from regard.config.run import train
from regard.errors import CannotResume
from regard.models import zoo
from regard.models.model import Model
from regard.schema import to_dict
from regard.store.checkpoint import newest_checkpoint
from tests.training.runs import write_recipe

SETTINGS = ["train.average=1", "train.ema=0.5", "train.save_every=5"]


def lengthened(folder: Path) -> None:
    """More text, with a character that the tokenizer has not seen."""
    for side in "ab":
        path = folder / f"train.{side}"
        path.write_text(path.read_text() + "ääää\n" * 9)


def test_other_text_is_refused_unless_told_and_then_begins_at_its_beginning(tmp_path: Path):
    recipe, out = write_recipe(tmp_path), tmp_path / "run"
    train(recipe, out, settings=[*SETTINGS, "train.steps=5"])
    tokenizer = (out / "tokenizer.json").read_bytes()
    before = newest_checkpoint(out / "checkpoints", pytest.fail)
    assert before is not None
    lengthened(tmp_path)
    longer = [*SETTINGS, "train.steps=6"]
    with pytest.raises(CannotResume, match=r"train\.a, \S+train\.b changed since .* \(text\.train\)\. .*--new-data"):
        train(recipe, out, settings=longer)
    train(recipe, out, settings=longer, new_data=True)
    after = newest_checkpoint(out / "checkpoints", pytest.fail)
    assert after is not None
    assert after.step == 6
    assert after.state()["position"]["place"] == {
        "epoch": before.state()["position"]["place"]["epoch"] + 1,
        "pool": 0,
        "step": 1,
    }
    assert (out / "tokenizer.json").read_bytes() == tokenizer
    train(recipe, out, settings=[*SETTINGS, "train.steps=7"])  # the new text now goes on where it was
    last = newest_checkpoint(out / "checkpoints", pytest.fail)
    assert last is not None
    assert last.state()["position"]["place"]["step"] == 2


def test_other_validation_text_forgets_what_was_best(tmp_path: Path):
    recipe, out = write_recipe(tmp_path), tmp_path / "run"
    settings = [*SETTINGS, "train.valid_every=5"]
    train(recipe, out, settings=[*settings, "train.steps=5"])
    for side in "ab":
        (tmp_path / f"valid.{side}").write_text("abc\n")
    with pytest.raises(CannotResume, match=r"text\.valid"):
        train(recipe, out, settings=[*settings, "train.steps=10"])
    train(recipe, out, settings=[*settings, "train.steps=10"], new_data=True)
    found = newest_checkpoint(out / "checkpoints", pytest.fail)
    assert found is not None
    assert found.state()["best"]["step"] == 10


def test_a_run_goes_on_when_a_part_has_got_a_new_slot():
    now = to_dict(zoo.transformer(16, 1, 2))
    then = json.loads(json.dumps(now))
    del then["decoder"]["layers"][0][1]["see"]
    assert filled(Model, then) == now
    then["decoder"]["layers"][0][1]["heads"] = 4
    assert filled(Model, then) != now
