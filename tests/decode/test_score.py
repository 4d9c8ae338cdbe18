"""How likely given texts are, against logits that are read one text at a time."""

from __future__ import annotations

import pytest
import torch

from regard.data.tokenize.tokenizer import Roles, Tokenizer
from regard.data.tokenize.train import Byte, Character
from regard.decode import score as module
from regard.errors import InputError
from regard.layers.positions import Learned
from regard.models import zoo
from regard.models.readouts import BothWays
from tests.small import TEXTS, WORDS, small

READER = zoo.gpt2(16, 2, 2, position=Learned(64))


def continued(model, row: list[int]) -> list[float]:
    """The log-probability of each token of a row behind its first, from the logits of this row alone."""
    with torch.no_grad():
        logits = model.network(torch.tensor([row[:-1]]))[0].double().log_softmax(-1)
    return [float(logits[place, token]) for place, token in enumerate(row[1:])]


def test_a_text_is_scored_from_its_begin_to_its_end():
    model = small(READER)
    for text, found in zip([*TEXTS, ""], model.scores([*TEXTS, ""])):
        row = [WORDS.begin, *WORDS.encode(text), WORDS.end]
        expected = continued(model, row)
        assert [name for name, _ in found.tokens] == WORDS.token_texts(row[1:])
        assert [value for _, value in found.tokens] == pytest.approx(expected, abs=1e-4)
        assert found.total == pytest.approx(sum(expected), abs=1e-4)
    assert model.score(TEXTS) == [found.total for found in model.scores(TEXTS)]


def test_a_text_whose_model_is_given_no_opening_is_scored_from_its_first_token_on():
    unopened = Tokenizer.from_json(WORDS.to_json(), Roles(opening=()))
    assert small(READER, (unopened,)).score(TEXTS) == small(READER).score(TEXTS)


def test_a_target_is_scored_given_its_source():
    both = Character().train(TEXTS), Byte().train(TEXTS)
    model = small(zoo.transformer(16, 1, 2), both)
    sources, targets = TEXTS, [*TEXTS[1:], ""]
    for source, target, found in zip(sources, targets, model.scores(sources, targets)):
        said = [both[1].begin, *both[1].encode(target), both[1].end]
        read = torch.tensor([[*both[0].encode(source), both[0].end]])
        with torch.no_grad():
            logits = model.network(torch.tensor([said[:-1]]), source_ids=read)[0].log_softmax(-1)
        expected = [float(logits[place, token]) for place, token in enumerate(said[1:])]
        assert [value for _, value in found.tokens] == pytest.approx(expected, abs=1e-4)


def test_a_masked_model_hides_one_token_after_the_other():
    model = small(zoo.bert(16, 2, 2, max_positions=64))
    for text, found in zip([*TEXTS, ""], model.scores([*TEXTS, ""])):
        ids = WORDS.encode(text)
        expected = []
        for place, token in enumerate(ids):
            row = [WORDS.begin, *ids, WORDS.end]
            row[place + 1] = WORDS.mask
            with torch.no_grad():
                expected.append(float(model.network(torch.tensor([row]))[0, place + 1].log_softmax(-1)[token]))
        assert [value for _, value in found.tokens] == pytest.approx(expected, abs=1e-4)
        assert found.total == pytest.approx(sum(expected), abs=1e-4)


@pytest.mark.parametrize("description", [READER, zoo.bert(16, 2, 2, max_positions=64)], ids=["gpt2", "bert"])
def test_neither_batches_nor_slices_of_the_vocabulary_change_a_score(description, monkeypatch):
    model = small(description)
    together = model.score(TEXTS * 3)
    assert together == pytest.approx([model.score([text])[0] for text in TEXTS * 3], abs=1e-4)
    monkeypatch.setattr(module, "_NUMBERS", 1)
    assert model.score(TEXTS * 3) == pytest.approx(together, abs=1e-5)


def test_progress_tells_of_every_text_once():
    for description in (READER, zoo.bert(16, 1, 2, max_positions=64)):
        done: list[int] = []
        small(description).scores([*TEXTS, ""], progress=done.append)
        assert sum(done) == len(TEXTS) + 1


def test_what_cannot_be_scored_is_refused_in_a_line():
    with pytest.raises(InputError, match="text 2 has 101 tokens, this model reads 64"):
        small(READER).score(["dog", "the " * 100])
    with pytest.raises(InputError, match=r"does not score pairs. Give texts alone"):
        small(READER).score(["a"], ["b"])
    with pytest.raises(InputError, match=r"does not score plain texts. Give pairs"):
        small(zoo.transformer(16, 1, 2)).score(["a"])
    both_ways = zoo.bert(16, 1, 2, max_positions=64)
    object.__setattr__(both_ways, "readout", BothWays())
    with pytest.raises(InputError, match="does not score; it was made to embed"):
        small(both_ways).score(["a"])
