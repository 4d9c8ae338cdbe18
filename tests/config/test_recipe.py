"""Recipes: keys, settings, and the error messages for invalid ones."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from regard.cli.options import trained_on_pairs
from regard.config import builtin_recipes
from regard.config.init import recipe_for
from regard.config.recipe import override, parse_recipe, read_recipe, zoo_functions, zoo_model
from regard.config.resume import difference
from regard.data.tasks.translation import Translation
from regard.errors import InputError
from regard.layers.join import PreNorm
from regard.layers.scores import ReducedRank
from regard.models import zoo
from regard.schema import to_toml
from regard.serve.runs import total_steps
from regard.store.languages import folder_languages
from regard.training.optimizers import AdamW, Cosine, InverseSquareRoot


@pytest.mark.parametrize("name", builtin_recipes())
def test_every_built_in_recipe_is_valid(name: str):
    assert read_recipe(name).name == name


def test_names_that_are_not_utf8_are_refused_and_that_of_a_recipe_is_replaced(tmp_path: Path):
    path = tmp_path / os.fsdecode(b"r\xe9.toml")
    path.write_text(builtin_recipes()["dates"])
    assert read_recipe(path).name == "r?"
    with pytest.raises(InputError, match=r"the name text.train=\\udce9.txt is not UTF-8 \(--set\)"):
        read_recipe("dates", ["text.train=\udce9.txt"])
    with pytest.raises(InputError, match=r"the name \\udce9.txt is not UTF-8 \(text\)"):
        recipe_for([Path("\udce9.txt")])


def test_the_base_recipe_trains_as_the_paper_does():
    recipe = read_recipe("transformer-base")
    assert recipe.model == zoo.transformer()
    settings = recipe.train
    assert settings.optimizer == AdamW(betas=(0.9, 0.98), epsilon=1e-9, weight_decay=0.0)
    assert (settings.label_smoothing, settings.average, settings.steps) == (0.1, 5, 100_000)
    assert (recipe.decode.beam, recipe.decode.length_penalty) == (4, 0.6)
    for step in (1, 100, 4000, 4001, 100_000):
        paper = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert settings.learning_rate * settings.schedule.factor(step, settings.steps) == pytest.approx(paper)


def test_slots_take_tables_bare_kinds_and_settings():
    settings = ["model.score={kind='reduced_rank', rank=4}", "model.join=pre_norm", "train.schedule.kind=cosine"]
    recipe = read_recipe("dates", [*settings, "train.schedule.floor=0.1", "train.schedule.warmup=7"])
    assert recipe.model.encoder.layers[0][0].score == ReducedRank(4)
    assert recipe.model.encoder.join == PreNorm()
    assert recipe.train.schedule == Cosine(7, 0.1)
    assert read_recipe("dates", ["text.task.max_length=300"]).text.task == Translation(300)


def test_files_take_the_place_of_an_embedded_corpus():
    text = read_recipe("languages", ["text.train=lines.tsv", "text.valid=0.05"]).text
    assert (text.corpus, text.train, text.valid) == (None, "lines.tsv", 0.05)
    assert read_recipe("languages").text.corpus == "languages"


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"text": {}}, "either train"),
        ({"text": {"corpus": "dates", "train": "x"}}, "either train"),
        ({"model": {"heds": 2}, "text": {"corpus": "dates"}}, 'Did you mean "heads"'),
        ({"model": {"score": "dott"}, "text": {"corpus": "dates"}}, 'Did you mean "dot"'),
        ({"model": {"join": {"kind": "replace"}}, "text": {"corpus": "dates"}}, "unknown kind"),
        ({"text": {"corpus": "dates"}, "train": {"steps": 0}}, "1 or more"),
        ({"text": {"corpus": "dates"}, "train": {"label_smoothing": 1.5}}, "label_smoothing"),
        ({"text": {"corpus": "dates"}, "train": {"steps": True}}, "whole number"),
        ({"text": {"corpus": "dates"}, "train": {"best": "blue"}}, 'Did you mean "bleu"'),
        ({"text": 3}, "must be a table"),
        ({"model": {"width": 0}, "text": {"corpus": "dates"}}, "model"),
        ({"model": {"width": -8}, "text": {"corpus": "dates"}}, "model"),
        ({"model": {"dropout": 2.0}, "text": {"corpus": "dates"}}, "dropout"),
        ({"model": {"depth": 0}, "text": {"corpus": "dates"}}, "depth must be 1 or more"),
        ({"model": {"name": [1]}, "text": {"corpus": "dates"}}, "no model is called"),
        ({"model": {"score": {"kind": "reduced_rank", "rank": 0}}, "text": {"corpus": "dates"}}, "rank must be 1"),
        ({"model": {"position": {"kind": "relative_bias", "buckets": 2}}, "text": {"corpus": "dates"}}, "buckets"),
        ({"text": {"corpus": "dates"}, "train": {"optimizer": {"betas": [0.9]}}}, "expected 2 values"),
        ({"text": {"corpus": "dates"}, "train": {"learning_rate": float("nan")}}, "nan"),
        ({"text": {"corpus": "dates"}, "train": {"learning_rate": float("inf")}}, "learning_rate"),
        ({"text": {"corpus": "dates"}, "train": {"patience": 0}}, "patience"),
        ({"text": {"corpus": "dates"}, "train": {"seed": 10**23}}, "seed"),
        ({"text": {"corpus": "dates"}, "decode": {"beam": 0}}, "beam"),
    ],
)
def test_invalid_recipes_are_refused_with_a_hint(tables: dict, message: str):
    with pytest.raises(InputError, match=message):
        parse_recipe(tables, name="x", where="x.toml")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.learning_rate=abc", 'expected a number, got "abc" (r.toml: train.learning_rate).'),
        ('model.heads="x"', 'expected a whole number, got "x" (r.toml: model.heads).'),
        ("model.heads=0", "heads must be 1 or more, got 0 (r.toml: model.heads)."),
        ("model.inner=-4", "inner must be 1 or more, got -4 (r.toml: model.inner)."),
        ("model.position={kind='alibi', slopes=3}", 'unknown key "slopes" (r.toml: model.position). Leave it out.'),
        ("train.rate=1", 'unknown key "rate" (r.toml: train). Did you mean "learning_rate"?'),
        ("model.position={kind='learned', max_positions=-4}", "-4 is too small (r.toml: model.position.max_positions). "
         "Use 1 or more."),
        ("model.heads=12", "width 128 is not divisible by 12 heads (r.toml: model). Try width 120 or 132."),
        ("model.nam=gpt2", 'unknown key "nam" (r.toml: model). Did you mean "name"?'),
        ("train.steps=0", "steps must be 1 or more, got 0 (r.toml: train.steps)."),
        ("train.batch_tokens=fits", 'expected a whole number or "fit", got "fits" (r.toml: train.batch_tokens).'),
        ("train.schedule.kind=foo", 'unknown kind "foo" (r.toml: train.schedule). Known: constant, cosine, '
         "inverse_square_root, linear. A class of your own: parts=[...] or --parts FILE.py."),
        ("train.schedule=3", 'expected a table like { kind = "inverse_square_root" }, got 3 (r.toml: train.schedule). '
         'Write kind = "inverse_square_root", "cosine", "linear" or "constant".'),
        ("train.schedule={warmup=5}", "a kind is missing (r.toml: train.schedule). "
         'Write kind = "inverse_square_root", "cosine", "linear" or "constant".'),
        ("train.schedule={kind='linear', warmup=-1}",
         "warmup must be 0 or more, got -1 (r.toml: train.schedule.warmup)."),
        ("train.best=blue", '"blue" is not a choice (r.toml: train.best). Did you mean "bleu"?'),
        ("train.gradient_checkpointing=yes",
         'expected true or false, got "yes" (r.toml: train.gradient_checkpointing).'),
        ("text.tokenizer={kind='bpe', size=-3}", "asked for -3 tokens, special ones and single characters need 261 "
         "(r.toml: text.tokenizer.size). Use size = 261 or more."),
        ("text.task={kind='translation', max_length=0}",
         "max_length = 0 leaves no room for a token (r.toml: text.task.max_length). Use 1 or more."),
        ("text.train=7", "expected text or a list, got 7 (r.toml: text.train)."),
        ("text.train=['a', {path='b', weight=-1}]", "weight must lie between 0 and 1000, got -1.0 "
         "(r.toml: text.train[1].weight)."),
        ("text.train=[1]", "expected text or a table, got 1 (r.toml: text.train[0])."),
        ("text.train=['a', {weight=1}]", 'missing key "path" (r.toml: text.train[1]). Add path = ... there.'),
        ("decode.beam=0", "beam must be 1 to 1024, got 0 (r.toml: decode.beam)."),
        ("train=3", "[train] must be a table (r.toml). Set its keys, as in train.steps = 2000."),
        ("train.steps.x=3", "train.steps is 2000, not a table (--set train.steps.x=3). Set train.steps as a whole."),
    ],
)  # fmt: skip
def test_the_message_of_a_wrong_setting_names_its_key(
    setting: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text('model.width = 128\nmodel.heads = 4\ntext.corpus = "dates"\ntrain.steps = 2000\n')
    with pytest.raises(InputError) as caught:
        read_recipe("r.toml", [setting])
    assert str(caught.value) == re.sub(r"\(r\.toml(: [^)]*)?\)", lambda _: f"(--set {setting})", message)
    if "--set" not in message:  # in the file itself, the message names the file and the key
        tables = tomllib.loads(Path("r.toml").read_text())
        override(tables, setting)
        with pytest.raises(InputError) as caught:
            parse_recipe(tables, name="r", where="r.toml")
        assert str(caught.value) == message


def test_a_setting_of_several_lines_is_refused_and_not_cut():
    tables: dict = {}
    with pytest.raises(InputError, match="several lines"):
        override(tables, "train.steps=2\nseed=3")
    override(tables, "train.betas=[0.9,\n0.99]")
    assert tables["train"]["betas"] == [0.9, 0.99]


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path):
    for content in ("[model\n", f"x = {'[' * 10_000}", f"x = {'9' * 5000}"):
        (tmp_path / "x.toml").write_text(content)
        with pytest.raises(InputError, match="is not TOML"):
            read_recipe(tmp_path / "x.toml")
    with open(tmp_path / "x.toml", "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(InputError, match="a recipe has at most"):
        read_recipe(tmp_path / "x.toml")


@pytest.mark.parametrize("value", ["[" * 10_000, "9" * 5000])
def test_a_setting_that_is_too_deep_or_too_long_is_refused(value: str):
    with pytest.raises(InputError, match=r"expected a whole number"):
        read_recipe("dates", [f"train.steps={value}"])


def test_recipes_are_written_as_they_are_read():
    for name in builtin_recipes():
        tables = read_recipe(name).tables
        assert tomllib.loads(to_toml(tables)) == tables
    odd = {"train": {"clip": float("inf"), "name": 'a"b\\c\n'}}
    assert tomllib.loads(to_toml(odd)) == odd


def test_schedules_rise_then_fall():
    for schedule in (InverseSquareRoot(10), Cosine(10)):
        values = [schedule.factor(step, 100) for step in range(1, 101)]
        assert max(values) == values[9] == 1.0
        assert values[:10] == sorted(values[:10])
        assert values[9:] == sorted(values[9:], reverse=True)
    assert Cosine(10, floor=0.1).factor(100, 100) == pytest.approx(0.1)


def test_the_first_difference_is_found_by_its_path():
    assert difference({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "x") == ("x.a.b[1]", 2, 3)
    assert difference({"a": 1}, {"a": 1}, "x") is None
    assert difference({"a": 1, "c": 2}, {"a": 1}, "x") == ("x.c", 2, None)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "transformer", "width": 10, "heads": 3, "dropout": 0}, "heads"),
        ({"name": "bahdanau", "width": 15, "dropout": 0}, "even width"),
    ],
)
def test_a_valid_setting_is_not_blamed(table: dict[str, object], message: str):
    with pytest.raises(InputError, match=message) as found:
        zoo_model(table, where="model")
    assert "model.dropout" not in str(found.value)


def test_only_functions_of_the_zoo_are_models():
    assert set(zoo_functions()) == {
        "seq2seq", "bahdanau", "luong", "convs2s", "transformer", "gpt2", "bert", "t5", "elmo", "reformer", "lstm_lm",
        "sha_rnn",
    }  # fmt: skip


@pytest.mark.parametrize(
    "content", [b"text = 5", b"[text]\nfields = 7", b"[text]\ntrain = 3", b"\xff", b"x = " + b"[" * 10_000]
)
def test_whatever_a_model_folder_calls_its_recipe_is_no_error(tmp_path: Path, content: bytes):
    (tmp_path / "recipe.toml").write_bytes(content)
    assert not trained_on_pairs(tmp_path)
    assert folder_languages(tmp_path) is None
    assert total_steps(tmp_path) is None
