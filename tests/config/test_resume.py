"""Resume check: other text only with new_data, with the same tokenizer; new slots of a part get their defaults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.config.resume import with_defaults
from regard.config.run import train
from regard.errors import CannotResume
from regard.models import zoo
from regard.models.model import Model
from regard.schema import to_dict
from regard.store.checkpoint import newest_checkpoint
from tests.training.runs import write_recipe

SETTINGS = ["train.average=1", "train.ema=0.5", "train.save_every=5"]


def lengthened(folder: Path) -> None:
    """Append text with a character that is not in the vocabulary."""
    for side in "ab":
        path = folder / f"train.{side}"
        path.write_text(path.read_text() + "ääää\n" * 9)


def test_other_text_needs_new_data_and_is_read_from_its_start(tmp_path: Path):
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
    assert after.state()["trainer"]["cursor"] == {
        "epoch": before.state()["trainer"]["cursor"]["epoch"] + 1,
        "pool": 0,
        "step": 1,
    }
    assert (out / "tokenizer.json").read_bytes() == tokenizer
    train(recipe, out, settings=[*SETTINGS, "train.steps=7"])  # the new text continues at its cursor
    last = newest_checkpoint(out / "checkpoints", pytest.fail)
    assert last is not None
    assert last.state()["trainer"]["cursor"]["step"] == 2


def test_other_validation_text_resets_the_best_step(tmp_path: Path):
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


def test_a_run_resumes_when_a_part_has_a_new_slot():
    now = to_dict(zoo.transformer(16, 1, 2))
    saved = json.loads(json.dumps(now))
    del saved["decoder"]["layers"][0][1]["pattern"]
    assert with_defaults(Model, saved) == now
    saved["decoder"]["layers"][0][1]["heads"] = 4
    assert with_defaults(Model, saved) != now
