"""An option that would change nothing is refused by name."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from regard.cli import run
from regard.config.recipe import read_recipe
from regard.errors import InputError
from regard.layers.positions import Learned
from regard.models import zoo
from regard.models.readouts import Label
from regard.store.folder import read_folder
from tests.small import save_model, small
from tests.training.runs import write_recipe

BERT = zoo.bert(16, 1, 2, max_positions=32)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("unused")
    save_model(root / "gpt2", small(zoo.gpt2(16, 1, 2, position=Learned(32))))
    save_model(root / "other", small(zoo.gpt2(16, 1, 2, position=Learned(32))))
    save_model(root / "translator", small(zoo.transformer(16, 1, 2)))
    save_model(root / "seq2seq", small(zoo.seq2seq(16, 1)))
    save_model(root / "bert", small(BERT))
    save_model(root / "labels", small(replace(BERT, readout=Label(("bad", "good")))))
    (root / "lines").write_text("the cat\nthe dog\n")
    (root / "gold").write_text("bad\ngood\n")
    return root


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("generate gpt2 a --beam 3", "--beam is for a search"),
        ("generate gpt2 a --temperature 0 --top-k 3", "--top-k is for sampling"),
        ("generate gpt2 a --temperature 0 --top-p 0.5", "--top-p is for sampling"),
        ("generate gpt2 a --temperature 0 --min-p 0.5", "--min-p is for sampling"),
        ("generate gpt2 a --temperature 0 --seed 3", "--seed is for sampling"),
        ("translate translator --beam 3 --temperature 1", "--beam is for a search"),
        ("translate translator --top-p 0.5", "--top-p is for sampling"),
        ("translate translator --seed 1", "--seed is for sampling"),
        ("translate translator --beam 1 --length-penalty 1", "--length-penalty ranks"),
        ("translate translator --temperature 1 --coverage-penalty 1", "--coverage-penalty ranks"),
        ("translate seq2seq --coverage-penalty 0.2 --beam 3", "no cross-attention"),
        ("translate translator --typical 0.5", "--typical is for sampling"),
        ("translate translator --epsilon 0.5", "--epsilon is for sampling"),
        ("generate gpt2 a --temperature 0 --epsilon 0.5", "--epsilon is for sampling"),
        ("generate gpt2 a --must cat", "--must is for a search"),
        ("translate translator --must cat --temperature 1", "--must is for a search"),
        ("translate translator --must cat --beam 1", "--must takes a beam search"),
        ("translate translator --must cat --regex .*", "Write the terms"),
        ("translate translator --glossary-prefix", "--glossary-prefix is for a glossary"),
        ("translate translator --weights 1", "--weights is for several models"),
        ("translate translator translator --weights 1", "one weight per model"),
        ("translate translator gpt2", "translators or of language models"),
        ("translate translator none", "none is no model folder"),
        ("translate translator translator --alignment", "several models together align no words"),
        ("translate translator --fusion-weight 1", "--fusion-weight is for shallow fusion"),
        ("translate translator --fusion seq2seq", "a translator and a language model"),
        ("translate translator --mbr-candidates 3", "--mbr-candidates is for minimum Bayes risk"),
        ("translate translator --mbr chrf --beam 4 --mbr-candidates 3", "--mbr-candidates counts samples"),
        ("translate translator --mbr ter", 'got "ter"'),
        ("translate translator --diversity 1", "--diversity is for groups of beams"),
        ("translate translator --beam 4 --beam-groups 3", "beam_groups must divide"),
        ("translate translator --beam 4 --beam-groups 2 --must cat", "--must is not honoured by groups"),
        ("translate translator --stream --beam 3", "--beam needs whole texts"),
        ("translate translator --stream --must cat", "--must needs whole texts"),
        ("translate translator --at 1", "--at is the word"),
        ("translate translator --alternatives 2", "--alternatives are for a word"),
        ("translate translator translator --alternatives 2 --at 0", "takes one model"),
        ("generate gpt2 a --stream --temperature 0 --beam 3", "--beam needs the whole text"),
        ("fill bert --top 3", "--top prints candidates"),
        ("show translator a --target b --beam 3 --out page.html", "--beam searches for a target"),
        ("show gpt2 a --beam 3 --out page.html", "--beam searches for a target"),
        ("show bert a --beam 3 --out page.html", "--beam searches for a target"),
        ("show bert a --port 8000 --out page.html", "--port is for the local server"),
        ("show bert a --browser --out page.html", "--browser is for the local server"),
        ("evaluate gpt2 --text lines --beam 3", "--beam is for translations"),
        ("evaluate gpt2 --text lines --plot p.png", "--plot is for translations"),
        ("evaluate gpt2 --text lines --pairs", "--pairs says how --source is read"),
        ("evaluate labels --source lines --reference gold --beam 2", "--beam is for translations"),
        ("evaluate labels --source lines --reference gold --window 8", "--window is for models that write text"),
        ("evaluate labels --source lines --reference gold --report r.html", "--report is for models that write text"),
        ("evaluate translator --source lines --reference lines --stride 8", "--stride"),
        ("compare gpt2 other --text lines --metric bleu", "--metric is for translations"),
        ("compare gpt2 other --text lines --unit words", "--unit is for translations"),
        ("compare gpt2 other --text lines --beam 2", "--beam is for translations"),
        ("train --out run", "--out needs a recipe"),
        ("train --set train.steps=3", "--set needs a recipe"),
    ],
)
def test_an_option_that_changes_nothing_is_refused(
    line: str, said: str, models: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(models)
    before = sorted(models.iterdir())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat\n")))
    assert run(line.split()) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
    assert sorted(models.iterdir()) == before


@pytest.mark.parametrize(
    "line",
    [
        "generate gpt2 a --beam 3 --temperature 0 --max-tokens 2",
        "translate translator --beam 2 --length-penalty 1 --coverage-penalty 0.2 --max-tokens 2",
        "translate translator --beam 1 --length-penalty 1 --json --max-tokens 2",
        "translate translator --temperature 1 --seed 3 --top-p 0.9 --max-tokens 2",
        "translate translator --temperature 1 --typical 0.9 --epsilon 0.01 --max-tokens 2",
        "translate translator --must cat --must-not dog --max-tokens 9",
        "translate translator translator --weights 1,2 --fusion gpt2 --fusion-weight 0.1 --max-tokens 2",
        "translate translator --mbr bleu --mbr-candidates 3 --max-tokens 2",
        "translate translator --mbr chrf --beam 3 --max-tokens 2",
        "translate translator --beam 4 --beam-groups 2 --diversity 1 --n-best 2 --max-tokens 2",
        "translate translator --stream --max-tokens 2",
        "generate gpt2 a --stream --regex [a-z]* --max-tokens 4",
        "show gpt2 a --beam 2 --length 2 --out page.html",
        "show bert a --no-browser --out page.html",
    ],
)
def test_an_option_that_applies_is_taken(line: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(models)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat\n")))
    assert run(line.replace("page.html", str(tmp_path / "page.html")).split()) == 0


def test_a_target_prefix_of_one_line_is_for_translations_only(
    models: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    rows = b'{"text": "the cat", "id": 1}\n{"text": "the cat", "target_prefix": "the dog"}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rows)))
    assert run(["translate", str(models / "translator"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[1])["translation"].startswith("the dog")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rows)))
    assert run(["embed", str(models / "translator"), "--json"]) == 2
    assert 'standard input line 2 has a "target_prefix", which only' in capfd.readouterr().err


def test_terms_of_one_line_are_met_or_said_to_be_impossible(
    models: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    rows = b'{"text": "the cat", "must": ["dog"]}\n{"text": "the cat", "must": "dog", "must_not": ["dog"]}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rows)))
    assert run(["translate", str(models / "translator"), "--json"]) == 0
    first, second = map(json.loads, capfd.readouterr().out.splitlines())
    assert "dog" in first["translation"].split()
    assert second["translation"] is None
    assert second["reason"] == 'it must contain "dog", and must not contain "dog"'


def test_an_impossible_line_ends_with_one_line(
    models: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat\n")))
    assert run(["translate", str(models / "translator"), "--must", "dog", "--must-not", "dog"]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert 'line 1 is impossible: it must contain "dog", and must not contain "dog".' in err


def test_a_glossary_is_used_where_its_source_term_occurs(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "terms.tsv").write_text("cat\tpark\ndog\tmat\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The Cat sat\nThe dog sat\nthe cats sat\n")))
    assert run(["translate", str(models / "translator"), "--glossary", str(tmp_path / "terms.tsv")]) == 0
    first, second, _ = capfd.readouterr().out.splitlines()
    assert "park" in first.split()
    assert "mat" in second.split()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["text.train=text.txt", "text.corpus=dates"], "either train"),
        (["text.fields=['a', 'b']"], "text.fields"),
    ],
)
def test_columns_of_files_that_have_none_are_refused(settings: list[str], said: str, tmp_path: Path):
    with pytest.raises(InputError, match=said):
        read_recipe(write_recipe(tmp_path), settings)


@pytest.mark.parametrize("key", ["valid='x'", "test='x'", "fields=['a']", "documents='line'", "control='strip'"])
def test_an_embedded_corpus_takes_no_settings_for_files(key: str):
    with pytest.raises(InputError, match=rf"has texts of its own \(--set text.{key.partition('=')[0]}"):
        read_recipe("dates", [f"text.{key}"])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("train.stepz=3", 'unknown key "stepz" (--set train.stepz=3).'),
        ("train.steps=many", "(--set train.steps=many)"),
        ("model.heads=7", "not divisible by 7 heads (--set model.heads=7)"),
        ("trian.steps=3", '"trian" (--set trian.steps=3)'),
        ("text.tokenizer.kind=bpx", "(--set text.tokenizer.kind=bpx)"),
    ],
)
def test_a_setting_is_blamed_and_not_the_file(setting: str, said: str, tmp_path: Path):
    with pytest.raises(InputError) as found:
        read_recipe("dates", ["train.seed=2", setting])
    assert said in str(found.value)
    recipe = write_recipe(tmp_path)
    recipe.write_text(recipe.read_text().replace("heads   = 2", "heads   = 7"))
    with pytest.raises(InputError) as found:
        read_recipe(recipe, ["model.depth=2"])
    assert f"({recipe}: model)" in str(found.value)


def test_a_file_is_no_folder_to_train_anew(tmp_path: Path):
    import torch

    (tmp_path / "model.pt").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"model.pt is a file, not a model folder") as found:
        read_folder(tmp_path / "model.pt", torch.device("cpu"))
    assert "regard train" not in str(found.value)


@pytest.mark.parametrize("verb", ["fill", "classify", "embed", "score"])
def test_a_model_that_cannot_is_refused_before_anything_is_read(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
):
    monkeypatch.chdir(models)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    able = verb in ("embed", "score")
    assert run([verb, "translator", *(["--json"] if verb == "embed" else [])]) == (0 if able else 2)
    assert able or f"does not {verb}" in capsys.readouterr().err
