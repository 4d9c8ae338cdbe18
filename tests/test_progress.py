"""Progress: a bar on a terminal, a cell that updates in a notebook, lines or nothing in a pipe."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import regard
from regard.models import zoo
from regard.progress import place, progress, waiting
from tests.small import small

TEXT = "The quick brown fox jumps over the lazy dog.\n" * 40


class Handle:
    def __init__(self, shown: list[str]) -> None:
        self.shown = shown

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(data["text/plain"])


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the cell of a notebook shows, one after the other."""
    shown: list[str] = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=1)
    display.display = lambda *data, raw, display_id: Handle(shown)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr("regard.progress._SECONDS", 0.0)
    return shown


def train(folder: Path, **options: object) -> None:
    (folder / "t.txt").write_text(TEXT)
    regard.train(zoo.gpt2(8, 1, 2), text=folder / "t.txt", out=folder / "run", steps=2, **options)


def test_training_in_a_script_writes_lines_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    train(tmp_path)
    out, err = capsys.readouterr()
    assert out == ""
    assert "step 2 of 2: training loss" in err


def test_progress_can_be_turned_off(tmp_path: Path, capsys: pytest.CaptureFixture[str], notebook: list[str]):
    train(tmp_path, progress=False)
    regard.check(regard.load(tmp_path / "run"), progress=False)
    assert (*capsys.readouterr(), notebook) == ("", "", [])


def test_training_updates_the_cell_of_a_notebook(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], notebook: list[str]
):
    train(tmp_path)
    assert capsys.readouterr() == ("", "")
    steps = [lines.splitlines()[-1] for lines in notebook if "training loss" in lines]
    assert [step.partition(":")[0] for step in dict.fromkeys(steps)][:2] == ["step 1 of 2", "step 2 of 2"]
    assert "steps are" in notebook[-1]


def test_checking_counts_the_laws_in_a_notebook(tmp_path: Path, notebook: list[str]):
    train(tmp_path, progress=False)
    results = regard.check(regard.load(tmp_path / "run"))
    assert f"checking the laws: {len(results)} of " in "\n".join(notebook)
    assert notebook[-1] == ""


def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert place() == "terminal"
    with progress(10, "reading") as advance:
        advance(4)
    assert "reading" in capsys.readouterr().err


def test_a_pipe_shows_nothing(capsys: pytest.CaptureFixture[str]):
    with progress(10, "reading") as advance:
        advance(4)
    assert capsys.readouterr() == ("", "")


def test_only_those_who_wait_see_progress(notebook: list[str]):
    for seconds, expected in ((60.0, False), (0.0, True)):
        with waiting(10, "scoring", seconds) as advance:
            advance(3)
            advance(4)
        assert any("scoring: 7 of 10" in shown for shown in notebook) is expected


def test_a_model_in_a_notebook_tells_those_who_wait(notebook: list[str], monkeypatch: pytest.MonkeyPatch):
    model = small(zoo.bert(width=16, depth=1, heads=2))
    model.embed(["the cat", "a dog"])
    assert not notebook
    monkeypatch.setattr("regard.decode.text_generator.waiting", partial(waiting, seconds=0.0))
    for call, said in ((model.embed, "embedding"), (model.score, "scoring"), (model.fill, "filling")):
        call(["the <mask>" if said == "filling" else "the cat", "a <mask>" if said == "filling" else "a dog"])
        assert any(f"{said}: 2 of 2" in shown for shown in notebook), said
