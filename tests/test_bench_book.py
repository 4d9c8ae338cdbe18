"""A book read in one window costs what `score` says it does, byte by byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import book
from regard.data.tokenize.train import Byte
from regard.layers.lsh.masks import RankWindow
from regard.layers.positions import Axial
from regard.models import zoo
from tests.small import small

TEXT = "It was on a hot evening early in July. " * 9


@pytest.fixture(scope="module")
def model():
    reformer = zoo.reformer(16, 2, 2, pattern=RankWindow(4), buckets=4, position=Axial((40, 10)))
    return small(reformer, [Byte().train([TEXT])])


def test_bits_are_those_of_the_text_at_once(model, monkeypatch):
    monkeypatch.setattr(book, "_AT_ONCE", 50)
    bits = book.read(model, TEXT)
    assert len(bits) == len(TEXT.encode())
    scored = model.scores([TEXT])[0]
    assert bits == pytest.approx(-np.array([log for _, log in scored.tokens])[: len(bits)] / np.log(2), rel=1e-4)


def test_parts_and_plot(tmp_path: Path):
    bits = np.arange(10.0)
    ends, means = book.parts(bits, 4)
    assert ends.tolist() == [2, 5, 7, 10]
    assert means.tolist() == [0.5, 3.0, 5.5, 8.0]
    book.plot(bits, "a book", tmp_path / "book.svg")
    assert "bits per byte" in (tmp_path / "book.svg").read_text()
