"""What a look holds: the heads that align best, where they are known."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InputError
from regard.show.trace import Seen

WEIGHTS = {
    "encoder.0.self": torch.rand(2, 3, 3),
    "decoder.0.cross": torch.rand(2, 4, 3),
    "decoder.1.self": torch.rand(2, 4, 4),
    "decoder.1.cross": torch.rand(2, 4, 3),
}


def seen(*aligners: tuple[int, int]) -> Seen:
    return Seen(list("abc"), list("wxyz"), WEIGHTS, aligners)


def test_an_alignment_is_the_mean_of_the_heads_that_align_best():
    one, other = WEIGHTS["decoder.0.cross"], WEIGHTS["decoder.1.cross"]
    torch.testing.assert_close(seen((1, 0)).alignment(), other[0])
    torch.testing.assert_close(seen((0, 1), (1, 0), (1, 1)).alignment(), (one[1] + other[0] + other[1]) / 3)
    torch.testing.assert_close(seen().alignment(), (one.sum(0) + other.sum(0)) / 4)


def test_without_a_source_nothing_is_aligned():
    with pytest.raises(InputError, match="does not attend to a source"):
        Seen([], ["a"], {"decoder.0.self": torch.ones(1, 1, 1)}).alignment()
