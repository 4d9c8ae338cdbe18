"""Text generation: order, prompts, stop strings and samples."""

from __future__ import annotations

import pytest
import torch

from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import Character
from regard.decode.generate import continue_prompts, cut_at_stop, translate
from regard.decode.options import Options
from regard.errors import InputError
from regard.layers.positions import Learned
from regard.models.model import Network
from regard.models.zoo.gpt2 import gpt2
from regard.models.zoo.transformer import transformer

LETTERS = Character().train(["abcdefghij "])


def language_model(**position: object) -> tuple[Network, Tokenizer]:
    torch.manual_seed(3)
    network = gpt2(16, 1, 2, **position).build(LETTERS.vocabulary).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return network, LETTERS


def translator() -> Network:
    torch.manual_seed(4)
    return transformer(16, 1, 2).build(LETTERS.vocabulary).eval()


def test_translations_keep_the_order_of_the_texts_whatever_their_lengths():
    network, texts = translator(), ["abcdefghij" * 3, "a", "", "abc", "jihgfedcba", "b" * 20]
    together = translate(network, (LETTERS, LETTERS), texts, Options(beam=2))
    for text, hypotheses in zip(texts, together):
        isolated = translate(network, (LETTERS, LETTERS), [text], Options(beam=2))[0]
        assert [hypothesis.text for hypothesis in hypotheses] == [hypothesis.text for hypothesis in isolated]
    assert together[2][0].text == ""


def test_a_prefix_is_kept_and_continued():
    network = translator()
    hypotheses = translate(network, (LETTERS, LETTERS), ["abc", "def"], Options(), prefixes=["ja", ""])
    assert hypotheses[0][0].text.startswith("ja")


def test_a_text_is_continued_up_to_the_stop_string():
    network, tokenizer = language_model()
    free = continue_prompts(network, tokenizer, ["ab"], Options(max_tokens=30, min_tokens=30))[0][0].text
    stop = free[8:10]
    options = Options(max_tokens=30, min_tokens=30, stop=(stop,))
    stopped = continue_prompts(network, tokenizer, ["ab"], options)[0][0].text
    assert stopped == free[: free.index(stop, 2)]
    assert cut_at_stop("one two one", 4, ("one",)) == "one two "


def test_several_samples_differ_and_are_reproduced_by_their_seed():
    network, tokenizer = language_model()
    options = Options(temperature=3.0, n_best=4, max_tokens=20, seed=5)
    first = [hypothesis.text for hypothesis in continue_prompts(network, tokenizer, ["a", "b"], options)[1]]
    assert len(set(first)) == 4
    assert first == [hypothesis.text for hypothesis in continue_prompts(network, tokenizer, ["a", "b"], options)[1]]


def test_a_prompt_that_does_not_fit_into_the_model_is_refused_by_its_number():
    network, tokenizer = language_model(position=Learned(8))
    with pytest.raises(InputError, match=r"prompt 2 has 10 tokens, this model reads 8"):
        continue_prompts(network, tokenizer, ["a", "abcdefghi"], Options())
    assert len(continue_prompts(network, tokenizer, ["abc"], Options(min_tokens=50, max_tokens=50))[0][0].tokens) == 4
