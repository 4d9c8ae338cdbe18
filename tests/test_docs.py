"""The code and the commands in the documents run as printed."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from regard.cli import app
from regard.config.recipe import read_recipe
from regard.data.tokenize.train import Byte
from regard.layers.lsh.attention import RankWindow
from regard.models import zoo
from regard.models.readouts import Label
from regard.training.settings import Training
from tests.small import save_model, small
from tests.training.runs import regard, write_recipe

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", ["parts.md", "recurrent.md", "sha-rnn.md"])
def test_the_python_of_the_pages_on_parts_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(ROOT / "docs" / page, "python"):
        exec(compile(block, page, "exec", dont_inherit=True), names)
    assert names["network"]


@pytest.mark.slow
def test_the_python_of_the_readme_and_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recipe = write_recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert regard("train", recipe, "--out", tmp_path / "runs" / "dates", "--set", "train.steps=7")[0] == 0
    pages = [ROOT / "README.md", *(ROOT / "docs" / name for name in ("tutorial.md", "alignment.md", "seeing.md"))]
    for path in pages:
        for block in blocks(path, "python"):
            # The run above stands for the built-in recipe, which takes minutes.
            short = block.replace('regard.train("dates", out="runs/dates")', 'regard.load("runs/dates")')
            exec(compile(short, path.name, "exec", dont_inherit=True), {})
    assert (tmp_path / "page.html").exists()
    assert (tmp_path / "time.html").exists()


def test_the_python_and_the_output_of_the_page_on_long_texts_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    book = tmp_path / "book.txt"
    book.write_text("It was the best of times, it was the worst of times.\n" * 40)
    # A small untrained model stands for the recipe's.
    model = small(zoo.reformer(32, 2, 2, buckets=8, pattern=RankWindow(16)), (Byte().train([book.read_text()]),))
    save_model(tmp_path / "runs" / "reformer", model)
    names: dict[str, object] = {}
    for block in blocks(ROOT / "docs" / "long.md", "python"):
        exec(compile(block, "long.md", "exec", dont_inherit=True), names)
    lines = capsys.readouterr().out.splitlines()
    assert "\n".join(lines[:2]) in (ROOT / "docs" / "long.md").read_text()  # the title and the head of the table
    assert lines[2].startswith("decoder.1.self  mean ")
    assert lines[-1].startswith("decoder.1.self 0.")


def test_the_python_of_the_page_on_reading_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    # Small untrained models stand for trained ones.
    bert = zoo.bert(16, 1, 2)
    models = {"bert": bert, "labels": replace(bert, readout=Label(("good", "bad"))), "gpt2": zoo.gpt2(16, 1, 2)}
    for name, description in models.items():
        save_model(tmp_path / "runs" / name, small(description))
    found = blocks(ROOT / "docs" / "reading.md", "python")
    for block in found:
        exec(compile(block, "reading.md", "exec", dont_inherit=True), {})
    assert len(found) == 4


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_in_the_documents_exists(path: Path):
    verbs = {command.callback.__name__: command.callback for command in app.registered_commands if command.callback}
    for block in blocks(path, "sh"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            for word, following in pairwise(words):
                assert word != "regard" or following in verbs, line
                if word == "--set":
                    named = words[words.index("train") + 1] if "train" in words else ""
                    shipped = (ROOT / "src" / "regard" / "config" / "recipes" / f"{named}.toml").is_file()
                    read_recipe(named if shipped else "dates", [following])


def test_every_setting_of_a_run_is_documented():
    said = (ROOT / "docs" / "recipes.md").read_text()
    assert [name for name in Training.__dataclass_fields__ if f"`{name}`" not in said] == []


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "ARCHITECTURE.md"], ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target
