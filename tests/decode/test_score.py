"""Log-probabilities of texts, against the logits of each isolated text."""

from __future__ import annotations

import pytest
import torch

from regard.data.tokenize.tokenizer import SpecialTokens, Tokenizer
from regard.data.tokenize.train import Byte, Character
from regard.decode import score as module
from regard.errors import InputError
from regard.layers.positions import Learned
from regard.models import zoo
from regard.models.readouts import BidirectionalVocabulary
from tests.small import TEXTS, WORDPIECE, small

LANGUAGE_MODEL = zoo.gpt2(16, 2, 2, position=Learned(64))


def token_log_probabilities(model, row: list[int]) -> list[float]:
    """The log-probability of each token of a row after the first, from the logits of this isolated row."""
    with torch.no_grad():
        logits = model.network(torch.tensor([row[:-1]]))[0].double().log_softmax(-1)
    return [float(logits[index, token]) for index, token in enumerate(row[1:])]


def test_a_text_is_scored_from_bos_to_eos():
    model = small(LANGUAGE_MODEL)
    for text, found in zip([*TEXTS, ""], model.scores([*TEXTS, ""])):
        row = [WORDPIECE.bos, *WORDPIECE.encode(text), WORDPIECE.eos]
        expected = token_log_probabilities(model, row)
        assert [name for name, _ in found.tokens] == WORDPIECE.token_texts(row[1:])
        assert [value for _, value in found.tokens] == pytest.approx(expected, abs=1e-4)
        assert found.total == pytest.approx(sum(expected), abs=1e-4)
    assert model.score(TEXTS) == [found.total for found in model.scores(TEXTS)]


def test_a_text_without_a_prompt_prefix_is_scored_from_its_first_token_on():
    without_prefix = Tokenizer.from_json(WORDPIECE.to_json(), SpecialTokens(single=((-1, 0),), pair=((-1, 0), (-2, 0))))
    assert small(LANGUAGE_MODEL, (without_prefix,)).score(TEXTS) == small(LANGUAGE_MODEL).score(TEXTS)


def test_a_target_is_scored_given_its_source():
    both = Character().train(TEXTS), Byte().train(TEXTS)
    model = small(zoo.transformer(16, 1, 2), both)
    sources, targets = TEXTS, [*TEXTS[1:], ""]
    for source, target, found in zip(sources, targets, model.scores(sources, targets)):
        target_ids = [both[1].bos, *both[1].encode(target), both[1].eos]
        source_ids = torch.tensor([[*both[0].encode(source), both[0].eos]])
        with torch.no_grad():
            logits = model.network(torch.tensor([target_ids[:-1]]), source_ids=source_ids)[0].log_softmax(-1)
        expected = [float(logits[index, token]) for index, token in enumerate(target_ids[1:])]
        assert [value for _, value in found.tokens] == pytest.approx(expected, abs=1e-4)


def test_a_masked_language_model_masks_one_token_at_a_time():
    model = small(zoo.bert(16, 2, 2, max_positions=64))
    for text, found in zip([*TEXTS, ""], model.scores([*TEXTS, ""])):
        ids = WORDPIECE.encode(text)
        expected = []
        for index, token in enumerate(ids):
            row = [WORDPIECE.bos, *ids, WORDPIECE.eos]
            row[index + 1] = WORDPIECE.mask
            with torch.no_grad():
                expected.append(float(model.network(torch.tensor([row]))[0, index + 1].log_softmax(-1)[token]))
        assert [value for _, value in found.tokens] == pytest.approx(expected, abs=1e-4)
        assert found.total == pytest.approx(sum(expected), abs=1e-4)


@pytest.mark.parametrize("description", [LANGUAGE_MODEL, zoo.bert(16, 2, 2, max_positions=64)], ids=["gpt2", "bert"])
def test_neither_batches_nor_slices_of_the_vocabulary_change_a_score(description, monkeypatch):
    model = small(description)
    together = model.score(TEXTS * 3)
    assert together == pytest.approx([model.score([text])[0] for text in TEXTS * 3], abs=1e-4)
    monkeypatch.setattr(module, "_LOGITS", 1)
    assert model.score(TEXTS * 3) == pytest.approx(together, abs=1e-5)


def test_progress_counts_every_text_once():
    for description in (LANGUAGE_MODEL, zoo.bert(16, 1, 2, max_positions=64)):
        done: list[int] = []
        small(description).scores([*TEXTS, ""], progress=done.append)
        assert sum(done) == len(TEXTS) + 1


def test_texts_that_cannot_be_scored_are_refused():
    with pytest.raises(InputError, match="text 2 has 101 tokens, this model reads 64"):
        small(LANGUAGE_MODEL).score(["dog", "the " * 100])
    with pytest.raises(InputError, match=r"does not score pairs. Give texts alone"):
        small(LANGUAGE_MODEL).score(["a"], ["b"])
    with pytest.raises(InputError, match=r"does not score plain texts. Give pairs"):
        small(zoo.transformer(16, 1, 2)).score(["a"])
    bidirectional = zoo.bert(16, 1, 2, max_positions=64)
    object.__setattr__(bidirectional, "readout", BidirectionalVocabulary())
    with pytest.raises(InputError, match="does not score; it was made to embed"):
        small(bidirectional).score(["a"])
