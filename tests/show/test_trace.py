"""What a look holds: the heads that align best, where they are known."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InputError
from regard.models import zoo
from regard.show.trace import Seen
from regard.text.tokenizer import Roles, Tokenizer
from tests.small import WORDS, small

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


def test_an_encoder_alone_looks_at_its_text_in_its_frame():
    model = small(zoo.bert(16, 2, 2, longest=32))
    found = model.look("the cat sat")
    row = [WORDS.begin, *WORDS.encode("the cat sat"), WORDS.end]
    assert (found.source_tokens, found.target_tokens) == (WORDS.token_texts(row), [])
    assert [tuple(weights.shape) for weights in found.encoder_attentions] == [(1, 2, len(row), len(row))] * 2
    torch.testing.assert_close(found.encoder_attentions[0].sum(-1), torch.ones(1, 2, len(row)))
    assert (found.decoder_attentions, found.cross_attentions) == ((), ())
    html = found.html()
    assert "text looks at text" in html
    assert "All layers and heads together" in html
    with pytest.raises(InputError, match="does not attend to a source"):
        found.alignment()


def test_a_prompt_is_looked_at_with_what_opens_it():
    bare = Tokenizer.from_json(WORDS.to_json(), Roles(opening=()))
    texts = [small(zoo.gpt2(16, 1, 2), (one,)).look("the cat").target_tokens for one in (WORDS, bare)]
    assert texts[0] == [*WORDS.token_texts([WORDS.begin]), *texts[1]]
