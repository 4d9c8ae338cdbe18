"""Contrastive learning: pairs of texts as rows of one batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.data.batching import IGNORE_INDEX
from regard.data.read.cache import Cache
from regard.data.tasks.contrastive import Contrastive
from regard.data.tokenize.tokenizer import BOS, EOS
from tests.data.rows import BYTE, labelled


@pytest.fixture(params=["memory", "cached"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache" if request.param == "cached" else None)


def test_partners_are_rows_of_one_batch(cache: Cache) -> None:
    corpus = labelled([("a cat", "eine Katze"), ("x", "y"), ("too long a text", "z"), ("dog", "")])
    samples = Contrastive(max_length=12).samples(corpus, (BYTE, None), cache)
    assert samples.left_out.counts() == {"empty": 1, "longer than 12 tokens": 1}
    batch = samples.batch([1, 0])
    assert batch.targets.tolist() == [2, 3, IGNORE_INDEX, IGNORE_INDEX]
    assert batch.samples == (1, 0)
    rows = [row[mask].tolist() for row, mask in zip(batch.inputs["ids"], batch.inputs["padding"])]
    assert rows == [[BOS, *BYTE.encode(text), EOS] for text in ("x", "a cat", "y", "eine Katze")]
    assert samples.lengths.tolist() == [[12, 12], [3, 3]]
    assert samples.batch([0]).inputs["ids"].shape == (2, 12)
