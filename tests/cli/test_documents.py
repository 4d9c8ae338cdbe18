"""Documents, confidence and scoring on the command line, and what is refused."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from regard.cli import run
from regard.decode.terms import contains
from regard.errors import Note
from regard.models import zoo
from tests.small import TEXTS, save_model, small


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("documents")
    save_model(root / "translator", small(zoo.transformer(16, 1, 2), generation_config={"max_new_tokens": 8}))
    save_model(root / "gpt2", small(zoo.gpt2(16, 1, 2)))
    (root / "a.html").write_text("<p>The <b>cat</b> sat {{x}} 7.</p><pre>code</pre>\n")
    for name in ("source.txt", "reference.txt"):
        (root / name).write_text("".join(f"{text}\n" for text in TEXTS * 3))
    (root / "other.txt").write_text("".join(f"{text}\n" for text in reversed(TEXTS * 3)))
    (root / "terms.tsv").write_text("cat\tpark\n")
    (root / "odd.tsv").write_text("ca\t漢字\n")
    (root / "short.txt").write_text("one\n")
    (root / "gold.txt").write_text("0-0\n" * 12)
    return root


@pytest.fixture
def said(runs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    def go(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(runs)
        capfd.readouterr()
        code = run([*arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return go


FILES = ("--source", "source.txt", "--reference", "reference.txt")


def test_a_document_is_translated_to_a_file_or_to_standard_output(runs: Path, said):
    code, out, err = said("translate", "translator", "--file", "a.html")
    assert code == 0
    assert out.count("{{x}}") == out.count("<b>") == out.count("</b>") == 1
    assert out.endswith("</p><pre>code</pre>\n")
    assert "1 of 1 sentences should be looked at" in err
    assert "7 appears nowhere, not once" in err
    assert said("translate", "translator", "--file", "a.html", "--out", "b.html", "--language", "en")[:2] == (0, "")
    assert (runs / "b.html").read_text() == out
    assert not (runs / "b.html.part").exists()


def test_a_document_uses_a_glossary_and_avoids_terms(said):
    code, out, err = said("translate", "translator", "--file", "a.html", "--glossary", "terms.tsv", "--must-not", "ran")
    assert (code, "lacking" in err) == (0, False)
    assert contains(re.sub("</?b>", "", out), "park")
    assert not contains(out, "ran")
    code, out, err = said("translate", "translator", "--file", "a.html", "--glossary", "odd.tsv", "--glossary-prefix")
    assert code == 0
    assert 'the term "漢字" is lacking' in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "x.txt"), "--out is for a document"),
        (("--language", "de"), "--language is for a document"),
        (("--file", "a.html", "--n-best", "2"), "--n-best is for lines"),
        (("--file", "a.html", "--alignment"), "--alignment is for lines"),
        (("--file", "a.html", "--confidence"), "--confidence is for lines"),
        (("--file", "a.html", "--json"), "--json is for lines"),
        (("--file", "a.html", "--must", "dog"), "--must is for lines: not every sentence"),
        (("--file", "a.html", "--regex", "dog"), "--regex is for lines: not every sentence"),
        (("--file", "a.html", "--glossary", "short.txt"), "line 1 is no pair of terms"),
        (("--confidence", "--glossary", "terms.tsv"), "--glossary does not go together with --confidence"),
        (("--file", "a.html", "--out", "a.html"), "is the document itself"),
        (("--file", "a.html", "--out", "none/b.html"), "there is no folder"),
        (("--file", "a.pdf"), "no kind of document"),
        (("--confidence", "--n-best", "2"), "--confidence is for the best translation"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_translate(said, arguments: tuple[str, ...], message: str):
    code, _, err = said("translate", "translator", *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpt2", "--text", "source.txt", "--ter"), "--ter is for translations"),
        (("gpt2", "--text", "source.txt", "--calibrate"), "--calibrate is for translations"),
        (("translator", *FILES, "--tokenize", "13b"), 'Did you mean "13a"'),
        (("translator", *FILES, "--reference", "short.txt"), "short.txt has 1 lines, the first reference 12"),
        (("translator", *FILES, "--comet", "none"), "COMET needs the package unbabel-comet"),
        (("translator", *FILES, "--alignments", "short.txt"), "has 1 lines, and there are 12 pairs"),
        (("translator", *FILES, "--alignments", "gold.txt", "--ter"), "--alignments aligns given pairs"),
        (("translator", *FILES, "--calibrate", "--beam", "2"), "--calibrate makes none"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_evaluate(said, arguments: tuple[str, ...], message: str):
    code, _, err = said("evaluate", *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_translations_are_scored_in_every_way(said):
    code, out, _ = said("evaluate", "translator", *FILES, "--reference", "other.txt", "--tokenize", "char",
                        "--lowercase", "--ter", "--confidence", "0.5", "--json")  # fmt: skip
    found = json.loads(out)
    assert code == 0
    assert "nrefs:2|case:lc" in found["quality"]["bleu_signature"]
    assert "tok:char" in found["quality"]["bleu_signature"]
    assert found["quality"]["ter"] > 0
    assert "case:lc" in found["quality"]["ter_signature"]
    assert (found["confidence"]["calibrated"], found["confidence"]["threshold"]) == (False, 0.5)
    assert said("evaluate", "translator", *FILES, "--alignments", "gold.txt")[1].startswith("AER     ")


def test_confidence_is_raw_until_it_is_calibrated(runs: Path, said, monkeypatch: pytest.MonkeyPatch):
    def translated(*arguments: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the dog sat\n")))
        _, out, err = said("translate", "translator", "--confidence", *arguments)
        return out, err

    with pytest.warns(Note, match="raw probabilities"):
        out, _ = translated()
    assert 0 <= float(out.rpartition(" ||| ")[2]) <= 1
    code, out, _ = said("evaluate", "translator", "--calibrate", *FILES)
    assert (code, out[:14]) == (0, "| confidence |")
    out, err = translated("--json")
    assert (json.loads(out)["calibrated"], err) == (True, "")
    assert {"word", "confidence"} == set(json.loads(out)["words"][0])
    assert "confidence  calibrated" in said("evaluate", "translator", *FILES)[1]
    (runs / "translator" / "calibration.json").unlink()
