"""Resume check: other text only with new_data, with the same tokenizer; new slots of a part get their defaults."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from regard.config.resume import with_defaults
from regard.config.run import train
from regard.errors import CannotResume, InputError
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


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_a_finished_run_can_be_given_more_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str], schedule: str):
    recipe, out = write_recipe(tmp_path), tmp_path / "run"
    settings = ["train.average=1", f"train.schedule={schedule}"]
    train(recipe, out, settings=[*settings, "train.steps=4"])
    train(recipe, out, settings=[*settings, "train.steps=4"])
    finished = f"{out} is finished at step 4. Give it more steps to continue: --set train.steps=8."
    assert finished in capsys.readouterr().err
    train(recipe, out, settings=[*settings, "train.steps=8"])
    said = capsys.readouterr().err
    assert "train.steps was 4: from step 5 on, the learning rate follows the schedule of 8 steps (" in said
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rates = {row["step"]: row["learning_rate"] for row in rows if "learning_rate" in row}
    train(recipe, tmp_path / "long", settings=[*settings, "train.steps=8"])
    rows = [json.loads(line) for line in (tmp_path / "long" / "metrics.jsonl").read_text().splitlines()]
    long = {row["step"]: row["learning_rate"] for row in rows if "learning_rate" in row}
    assert {step: rates[step] for step in (5, 6, 7, 8)} == {step: long[step] for step in (5, 6, 7, 8)}


def test_a_run_says_how_often_it_reads_its_text_and_what_it_does_not_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    recipe, settings = write_recipe(tmp_path), ["train.average=1", "train.schedule.warmup=1000"]
    train(recipe, tmp_path / "run", settings=[*settings, "train.steps=20"])
    said = capsys.readouterr().err
    assert re.search(r"^20 steps are [\d.]+ epochs of \d+ steps\.$", said, re.MULTILINE)
    assert "the warm-up of 1,000 steps is longer than the run; it is shortened to 2, a tenth of the steps" in said
    assert "validated" not in said
    unjudged = recipe.with_name("unjudged.toml")
    unjudged.write_text(re.sub("valid     = .*", "", recipe.read_text()))
    train(unjudged, tmp_path / "unjudged", settings=["train.average=1", "train.steps=2"])
    assert "nothing is validated, so the last weights are kept" in capsys.readouterr().err
    for key, value in (("patience", "3"), ("best", "bleu")):
        with pytest.raises(InputError, match=rf"nothing is validated \(train\.{key}\)"):
            train(unjudged, tmp_path / key, settings=[f"train.{key}={value}"])


def test_a_run_that_stops_early_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    settings = ["train.average=1", "train.steps=30", "train.valid_every=1", "train.patience=2", "train.learning_rate=9"]
    train(write_recipe(tmp_path), tmp_path / "run", settings=settings)
    line = r"stopped early at step (\d+) of 30: 2 validations in a row were no better than that of step (\d+) "
    said = re.search(line, capsys.readouterr().err)
    assert int(said[1]) == int(said[2]) + 2


def test_text_of_blank_lines_is_refused(tmp_path: Path):
    (tmp_path / "blank.txt").write_text("\n  \n\n")
    with pytest.raises(InputError, match=r"blank\.txt (holds only blank lines|has 0)"):
        train(zoo.gpt2(8, 1, 2), tmp_path / "run", text=tmp_path / "blank.txt", steps=2)
