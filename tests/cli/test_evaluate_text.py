"""`evaluate --text` reads what `train` reads: tables, JSON lines, folders, compressed files, documents, fields."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from regard.cli import run
from regard.layers.positions import Rotary
from regard.models import zoo
from tests.small import TEXTS, save_model, small

RECIPE = '[model]\nname = "gpt2"\n[text]\ntrain = "nowhere.jsonl"\n{text}\n[train]\nsteps = 1\n'


@pytest.fixture
def reader(tmp_path: Path) -> Path:
    return save_model(tmp_path / "reader", small(zoo.gpt2(16, 1, 2, position=Rotary())))


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert run(["evaluate", *map(str, arguments), "--json", "--device", "cpu"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_form_of_the_same_texts_gives_the_same_numbers(reader: Path, tmp_path: Path, capsys):
    lines = "\n".join(TEXTS) + "\n"
    (tmp_path / "a.txt").write_text(lines)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text, "id": 1}) + "\n" for text in TEXTS))
    (tmp_path / "a.csv").write_text("id,body\n" + "".join(f'1,"{text}"\n' for text in TEXTS))
    (tmp_path / "folder").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "folder" / f"{number}.txt").write_text(text)
    expected = evaluated(capsys, reader, "--text", tmp_path / "a.txt", "--documents", "line")
    for arguments in (
        (tmp_path / "a.txt.gz", "--documents", "line"),
        (tmp_path / "a.jsonl", "--fields", "body"),
        (tmp_path / "a.csv", "--fields", "body"),
        (tmp_path / "folder",),
    ):
        found = evaluated(capsys, reader, "--text", *arguments)
        assert found["loss"] == pytest.approx(expected["loss"])
        assert found["tokens"] == expected["tokens"]
    twice = evaluated(capsys, reader, "--text", tmp_path / "folder", "--text", tmp_path / "folder")
    assert twice["tokens"] == 2 * expected["tokens"]


def test_texts_are_read_as_in_training(reader: Path, tmp_path: Path, capsys):
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    by_file = evaluated(capsys, reader, "--text", tmp_path / "a.txt")
    (reader / "recipe.toml").write_text(RECIPE.format(text='documents = "line"\nfields = ["body"]'))
    by_line = evaluated(capsys, reader, "--text", tmp_path / "a.txt")
    assert by_line["tokens"] == by_file["tokens"] + len(TEXTS) - 1
    assert evaluated(capsys, reader, "--text", tmp_path / "a.jsonl")["tokens"] == by_line["tokens"]
    assert evaluated(capsys, reader, "--text", tmp_path / "a.txt", "--documents", "file")["tokens"] == by_file["tokens"]


def test_pairs_in_one_file_evaluate_a_translator(tmp_path: Path, capsys):
    model = save_model(tmp_path / "model", small(zoo.transformer(16, 1, 2), generation_config={"max_new_tokens": 4}))
    (tmp_path / "pairs.tsv").write_text("the cat\tthe dog\na dog\ta cat\n")
    for side, lines in (("a", "the cat\na dog\n"), ("b", "the dog\na cat\n")):
        (tmp_path / f"pairs.{side}").write_text(lines)
    found = evaluated(capsys, model, "--text", tmp_path / "pairs.tsv")
    for files in (
        ("--text", tmp_path / "pairs.{a,b}"), ("--source", tmp_path / "pairs.a", "--reference", tmp_path / "pairs.b")
    ):  # fmt: skip
        assert evaluated(capsys, model, *files)["quality"] == found["quality"]
    assert found["quality"]["lines"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--documents", "line"], "--documents and --fields say how --text is read (regard evaluate). Give --text."),
        (["--text", "a.txt", "--documents", "lines"], '"lines" is not known (--documents). Did you mean "line"?'),
        (["--text", "a.txt", "--source", "a", "--reference", "b"], "--source and --reference are plain lines"),
        (["--text", "pairs.tsv"], "holds pairs. Give plain text as --text, or one of its --fields."),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(reader: Path, monkeypatch, capsys, arguments: list[str], said: str):
    monkeypatch.chdir(reader.parent)
    Path("a.txt").write_text("the cat\n")
    Path("pairs.tsv").write_text("the cat\ta dog\n")
    assert run(["evaluate", str(reader), *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_unknown_characters_are_reported_and_warned_of(reader: Path, tmp_path: Path, capsys):
    (tmp_path / "greek.txt").write_text("η γάτα κάθεται")
    assert run(["evaluate", str(reader), "--text", str(tmp_path / "greek.txt")]) == 0
    said = capsys.readouterr()
    assert "% of the characters unknown" in said.out
    assert said.err.startswith("warning: this model's tokenizer does not know ")
    assert said.err.count("\n") == 1
