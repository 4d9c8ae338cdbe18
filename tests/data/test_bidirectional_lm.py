"""Bidirectional language model: targets are the next and the previous token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching import IGNORE_INDEX
from regard.data.read.corpus import Corpus
from regard.data.tasks.bidirectional_lm import BidirectionalLM
from regard.data.tokenize.tokenizer import BOS, EOS
from regard.data.tokenize.train import Byte
from regard.errors import InputError

BYTE = Byte().train([])


@given(texts=st.lists(st.text("abc", max_size=12), min_size=1, max_size=9), length=st.integers(3, 9))
def test_targets_are_the_next_and_the_previous_token(texts: list[str], length: int) -> None:
    if not any(texts):
        return
    samples = BidirectionalLM(length).samples(Corpus(texts, None, ("t",)), (BYTE, None))
    batch = samples.batch(range(len(samples)))
    inner: dict[int, list[int]] = {}
    for index, owner in enumerate(batch.samples):
        size = int(samples.lengths[index, 0])
        assert size <= length
        ids, targets = batch.inputs["ids"][index].tolist(), batch.targets[index].tolist()
        assert (ids[0], ids[size - 1]) == (BOS, EOS)
        assert targets[:size] == [
            [*pair] for pair in zip([*ids[1:size], IGNORE_INDEX], [IGNORE_INDEX, *ids[: size - 1]])
        ]
        assert targets[size:] == [[IGNORE_INDEX, IGNORE_INDEX]] * (len(ids) - size)
        inner.setdefault(owner, []).extend(ids[1 : size - 1])
    assert inner == {index: BYTE.encode(text) for index, text in enumerate(texts) if text}
    assert batch.tokens == sum(2 * (int(size) - 1) for size in samples.lengths[:, 0])


def test_an_empty_batch_and_wrong_settings() -> None:
    samples = BidirectionalLM().samples(Corpus(["ab"], None, ("t",)), (BYTE, None))
    assert samples.batch(np.zeros(0, np.int64)).targets.shape == (0, 0, 2)
    with pytest.raises(InputError, match=r"text\.task\.length"):
        BidirectionalLM(2)
