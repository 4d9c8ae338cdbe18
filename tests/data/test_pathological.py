"""Pathological texts: every tokenizer that we train or read, and the splitter of sentences, get through them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.storm.b import patterns, pipelines

TEXTS = patterns(30_000)


@pytest.fixture(scope="module")
def encoders() -> dict[str, Callable[[str], object]]:
    return pipelines()


def test_there_are_thirty_texts_of_about_the_same_size():
    assert len(TEXTS) == 30
    assert all(29_000 < len(text.encode()) <= 30_000 for text in TEXTS.values())


@pytest.mark.parametrize("name", TEXTS)
def test_every_tokenizer_encodes_a_text_that_repeats_itself(encoders: dict[str, Callable[[str], object]], name: str):
    for kind, encode in encoders.items():
        encode(TEXTS[name])
        assert encode(TEXTS[name][:1000]) is not None, kind
