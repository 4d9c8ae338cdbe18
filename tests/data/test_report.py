"""The data report: counts that add up, duplicates, and misaligned pairs."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import regard
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus, find_shift
from regard.data.read.report import report_on
from regard.data.tasks.language_model import LanguageModel
from regard.data.tasks.translation import Translation
from regard.show.html import data_page
from tests.data.rows import BYTE
from tests.training.runs import write_recipe


def corpus_of(count: int, seed: int) -> Corpus:
    """Pairs whose lengths correlate about as those of translations."""
    draw = random.Random(seed)
    sizes = [max(2, int(draw.lognormvariate(3.5, 0.5))) for _ in range(count)]
    other = [max(2, int(size * draw.lognormvariate(0.05, 0.25))) for size in sizes]
    return Corpus(["x" * size for size in sizes], ["y" * size for size in other], ("t.de", "t.en"))


def lengths(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    assert corpus.targets is not None
    return np.array([len(text) for text in corpus.sources]), np.array([len(text) for text in corpus.targets])


def test_shifts_by_one_line_are_found_in_95_of_100_corpora() -> None:
    draw, found, near = random.Random(3), 0, 0
    for seed in range(100):
        sources, targets = lengths(corpus_of(10_000, seed))
        line = draw.randrange(200, 9_800)
        if seed % 2:
            sources = np.delete(sources, line)
            targets = targets[:-1]
        else:
            targets = np.append(np.delete(targets, line), 30)
        shift = find_shift(sources, targets)
        found += shift is not None
        near += shift is not None and abs(shift.line - line) < 100
        assert shift is None or (shift.before > 0.7 and shift.after < 0.4 and shift.shifted > 0.6)
    assert found >= 95
    assert near >= 90


def test_clean_corpora_have_no_shift() -> None:
    assert sum(find_shift(*lengths(corpus_of(10_000, 1000 + seed))) is not None for seed in range(20)) == 0
    draw = np.random.default_rng(0)
    for _ in range(20):  # lengths that have nothing to do with each other say nothing
        assert find_shift(draw.integers(1, 90, 10_000), draw.integers(1, 90, 10_000)) is None
    same = np.full(10_000, 7)
    assert find_shift(same, same) is None
    for seed in range(20):  # sorted by length, lines fit their neighbours as well as their own
        sources, targets = lengths(corpus_of(10_000, 2000 + seed))
        order = np.argsort(sources, kind="stable")
        assert find_shift(sources[order], targets[order]) is None


def test_a_block_in_the_middle_that_is_shifted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sources, targets = lengths(corpus_of(9_000, 5))
    targets[3_000:5_000] = np.roll(targets[3_000:5_000], 1)
    whole = find_shift(sources, targets)
    assert whole is not None
    assert abs(whole.line - 3_000) < 60
    assert abs(whole.last - 5_000) < 60
    monkeypatch.setattr("regard.data.read.corpus._BLOCK", 700)
    assert find_shift(sources, targets) == whole


def test_the_counts_add_up_and_warnings_name_the_problems(tmp_path: Path) -> None:
    texts = [("ein Hund", "a dog"), ("", "x"), ("ein Hund", "a dog"), ("lang" * 30, "long"), ("Katze", "cat")]
    corpus = Corpus([one for one, _ in texts], [other for _, other in texts], ("t.de", "t.en"))
    valid = Corpus(["Katze", "neu"], ["cat", "new"], ("v.de", "v.en"))
    for cache in (Cache(), Cache(tmp_path), Cache(tmp_path)):
        samples = Translation(max_length=20).samples(corpus, (BYTE, None), cache)
        report = report_on(corpus, samples, {"valid": valid}, cache)
        assert report.left_out == {"empty": 1, "longer than 20 tokens": 1}
        assert report.kept + sum(report.left_out.values()) == report.texts == 5
        assert (report.duplicates, report.shift) == (1, None)
        assert [(one.split, one.same, one.texts) for one in report.overlaps] == [("valid", 1, 2)]
        assert [sum(side.counts) for side in report.sides] == [5, 5]
        assert report.sides[0].max_length == 120
        assert report.sides[0].edges[-1] == 121
    warnings = report.warnings(listed="left-out.tsv")
    assert [warning.split(":")[0] for warning in warnings] == ["warning", "warning"]
    assert "t.de: 2 of 5 left out: 1 empty, 1 longer than 20 tokens. They are listed in left-out.tsv." in warnings[0]
    assert "1 of 2 validation lines also occur in training" in warnings[1]
    assert f"{'  used':36}{3:>12}" in report.text()
    page = data_page(report, ["<script>alert(1)</script>"])
    assert "<script>" not in page
    assert "longer than 20 tokens" in page


def test_planted_duplicates_are_all_found() -> None:
    draw = random.Random(2)
    lines = [f"line {number} {draw.random()}" for number in range(50_000)]
    planted = [draw.choice(lines) for _ in range(1_234)]
    corpus = Corpus([*lines, *planted], None, ("t.txt",))
    samples = LanguageModel().samples(corpus, (BYTE, None))
    assert report_on(corpus, samples, {}).duplicates == 1_234


def warnings_about(corpus: Corpus, test: Corpus) -> list[str]:
    task = LanguageModel() if corpus.targets is None else Translation()
    return report_on(corpus, task.samples(corpus, (BYTE, None)), {"test": test}).warnings()


def test_a_test_text_in_the_training_text_is_reported() -> None:
    corpus = Corpus(["ein Hund", "Katze", "Kuh"], ["a dog", "cat", "cow"], ("t.de", "t.en"))
    (warning,) = warnings_about(corpus, Corpus(["Katze", "Kuh"], ["cat", "cow"], ("test.de", "test.en")))
    assert "2 of 2 test lines also occur in training" in warning
    assert "test.de" in warning
    (warning,) = warnings_about(corpus, Corpus(["Katze", "Maus"], ["the cat", "cow"], ("test.de", "test.en")))
    assert "1 of 2 test lines have a source that also occurs in training" in warning
    assert not warnings_about(corpus, Corpus(["Maus"], ["cow"], ("test.de", "test.en")))


def test_a_test_document_that_stands_in_a_training_document_is_reported() -> None:
    lines = [f"line {number} of a book that is long enough to be no accident\n" for number in range(200)]
    book = Corpus(["".join(lines)], None, ("book.txt",))
    (warning,) = warnings_about(book, Corpus(["".join(lines[90:120])], None, ("test.txt",)))
    assert "30 of 30 long test lines also occur in training" in warning
    other = "".join(line.replace("book", "film") for line in lines)
    assert not warnings_about(book, Corpus([other + "".join(lines[:9])], None, ("test.txt",)))


@pytest.mark.parametrize("both", [True, False])
def test_a_run_reports_that_its_test_text_stands_in_its_training_text(tmp_path: Path, both: bool) -> None:
    recipe = write_recipe(tmp_path)
    for side in "ab":
        (tmp_path / f"test.{side}").write_text((tmp_path / f"train.{side if both else 'a'}").read_text())
    settings = ["train.average=1", "train.steps=1", f"text.test={tmp_path}/test.{{a,b}}"]
    regard.train(recipe, tmp_path / "run", settings=settings)
    said = "test lines also occur in training" if both else "test lines have a source that also occurs in training"
    assert said in (tmp_path / "run" / "data.txt").read_text()
