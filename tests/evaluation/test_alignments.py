"""Alignment error rate: both forms of gold, sure and possible links, and links out of range."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.errors import InputError
from regard.evaluation.alignments import GoldAlignment, alignment_quality, evaluate_alignments, read_gold
from regard.models import zoo
from tests.small import TEXTS, small

PAIRS = ["a b c", "d e"], ["x y", "z"]


def gold(*sure: tuple[int, int], possible: tuple[tuple[int, int], ...] = ()) -> GoldAlignment:
    return GoldAlignment(frozenset(sure), frozenset(sure + possible))


EXPECTED = [gold((0, 0), (2, 1), possible=((1, 1),)), gold((1, 0))]


@pytest.mark.parametrize(
    "text",
    [
        "0-0 2-1 1?1\n1-0\n",
        "0-0 2-1 1p1\n1-0\n",
        "1 1 1 S\n1 3 2 S\n1 2 2 P\n2 2 1\n",
        "1 1 1\n1 3 2 s 0.5\n1 2 2 P\n2 2 1\n",
    ],
)
def test_both_forms_are_read(tmp_path: Path, text: str):
    (tmp_path / "gold.txt").write_text(text)
    assert read_gold(tmp_path / "gold.txt", *PAIRS) == EXPECTED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-0\n2-0\n", "pair 2 has 2 and 1 words, so it has no link 2-0"),
        ("1 1 1 S\n2 1 2 S\n", "pair 2 has 2 and 1 words, so it has no link 0-1"),
        ("1 1 1 S\n3 1 1 S\n", "line 2 is out of range"),
        ("1 0 1 S\n", "line 1 is out of range"),
        ("0-0\n", "has 1 lines, and there are 2 pairs"),
        ("0-0 1\n1-0\n", "line 1 is no alignment"),
        ("1 1 1 S\nrubbish\n", "line 2 is no alignment"),
    ],
)
def test_what_is_no_alignment_is_refused(tmp_path: Path, text: str, message: str):
    (tmp_path / "gold.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        read_gold(tmp_path / "gold.txt", *PAIRS)


def test_the_rate_is_that_of_its_definition():
    assert alignment_quality([[(0, 0), (2, 1), (1, 1)], [(1, 0)]], EXPECTED).error_rate == 0
    found = alignment_quality([[(0, 0), (1, 1), (1, 0)], []], EXPECTED)
    assert found.error_rate == pytest.approx(1 - (1 + 2) / (3 + 3))
    assert (found.precision, found.recall) == (pytest.approx(2 / 3), pytest.approx(1 / 3))


def test_a_models_own_links_have_no_error():
    model = small(zoo.transformer(16, 1, 2))
    links = model.align(TEXTS, TEXTS)
    assert evaluate_alignments(model, TEXTS, TEXTS, [gold(*one) for one in links]).error_rate == 0
