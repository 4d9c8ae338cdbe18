"""Labels, numbers and tags, against the logits of each isolated text."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tokenizers import normalizers

from regard.data.read.corpus import Corpus
from regard.data.tasks.classification import Classification
from regard.data.tasks.tagging import Tagging
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.classify import NO_TAG, LabelPrediction, NumberPrediction, TagPrediction
from regard.errors import InputError
from regard.models import zoo
from regard.models.readouts import Label, Last, Number, Tags
from tests.small import TEXTS, WORDPIECE, small

BERT = zoo.bert(16, 2, 2, max_positions=64)
NAMES = ("bad", "good", "so so")


def logits(model, row: list[int], segments: list[int] | None = None):
    given = {} if segments is None else {"segments": torch.tensor([segments])}
    with torch.no_grad():
        return model.network(torch.tensor([row]), **given)[0]


@pytest.mark.parametrize("description", [BERT, zoo.gpt2(16, 2, 2)], ids=["bert", "gpt2"])
def test_the_most_likely_label_is_predicted(description):
    model = small(replace(description, readout=Label(NAMES, Last())))
    for text, found in zip(TEXTS, model.classify(TEXTS)):
        expected = logits(model, [WORDPIECE.bos, *WORDPIECE.encode(text), WORDPIECE.eos]).softmax(-1).tolist()
        assert isinstance(found, LabelPrediction)
        assert found.label == NAMES[expected.index(max(expected))]
        assert list(found.probabilities) == list(NAMES)
        assert list(found.probabilities.values()) == pytest.approx(expected, rel=1e-3)


def test_a_pair_is_read_as_two_segments():
    model = small(replace(BERT, readout=Label(NAMES)))
    pairs = list(pairwise(TEXTS))
    for (one, other), found in zip(pairs, model.classify(pairs)):
        first = [WORDPIECE.bos, *WORDPIECE.encode(one), WORDPIECE.eos]
        second = [*WORDPIECE.encode(other), WORDPIECE.eos]
        expected = logits(model, first + second, [0] * len(first) + [1] * len(second)).softmax(-1)
        assert list(found.probabilities.values()) == pytest.approx(expected.tolist(), rel=1e-3)
    with pytest.raises(InputError, match="some are texts and some are pairs"):
        model.classify(["a", ("b", "c")])


def test_inputs_are_those_of_training():
    """Training batches give the same outputs, so special tokens and segments are the same."""
    model = small(replace(BERT, readout=Label(NAMES)))
    for joined in (False, True):
        sources = [f"{one}\t{other}" for one, other in zip(TEXTS, TEXTS[::-1])] if joined else TEXTS
        corpus = Corpus(sources, ["good"] * 4, ("f",), paired_sources=joined)
        batch = Classification(labels=NAMES).samples(corpus, (WORDPIECE, None)).batch(range(4))
        with torch.no_grad():
            outputs = model.network(**batch.inputs).softmax(-1).tolist()
        texts = [tuple(source.split("\t")) for source in sources] if joined else sources
        for found, expected in zip(model.classify(texts), outputs, strict=True):
            assert list(found.probabilities.values()) == pytest.approx(expected, rel=1e-3)


def test_a_number_is_predicted_without_scaling():
    model = small(replace(BERT, readout=Number()))
    for text, found in zip(TEXTS, model.classify(TEXTS)):
        expected = float(logits(model, [WORDPIECE.bos, *WORDPIECE.encode(text), WORDPIECE.eos])[0])
        assert isinstance(found, NumberPrediction)
        assert found.number == pytest.approx(expected, abs=1e-4)


def test_the_tag_of_a_word_is_that_of_its_first_token():
    model = small(replace(BERT, readout=Tags(NAMES)))
    texts = [*TEXTS, ""]
    found = model.classify(texts)
    assert [[word for word, _ in one.words] for one in found] == [text.split() for text in texts]
    # Training predicts the tags at the same tokens.
    corpus = Corpus(TEXTS, [" ".join(["good"] * len(text.split())) for text in TEXTS], ("f",))
    samples = Tagging(labels=NAMES).samples(corpus, (WORDPIECE, None))
    for index, one in enumerate(found[:-1]):
        batch = samples.batch([index])
        with torch.no_grad():
            outputs = model.network(**batch.inputs)[0].argmax(-1)[batch.targets[0] >= 0]
        assert isinstance(one, TagPrediction)
        assert one.tags == tuple(NAMES[number] for number in outputs.tolist())
    with pytest.raises(InputError, match="not of two"):
        model.classify([("a", "b")])


def test_a_word_without_a_token_has_no_tag():
    plain = json.loads(WORDPIECE.to_json())
    plain["normalizer"] = json.loads(normalizers.BertNormalizer(lowercase=False).__getstate__())
    cleaning = Tokenizer.from_json(json.dumps(plain))
    model = small(replace(BERT, readout=Tags(NAMES)), (cleaning,))
    (found,) = model.classify(["the \x02 dog"])
    assert [word for word, _ in found.words] == ["the", "\x02", "dog"]
    assert found.tags[1] == NO_TAG
    assert {found.tags[0], found.tags[2]} <= set(NAMES)


def test_a_model_that_predicts_tokens_does_not_classify():
    with pytest.raises(InputError, match=r"does not classify; it was made to fill. Try: regard fill"):
        small(BERT).classify(["a"])
    with pytest.raises(InputError, match="takes a list"):
        small(replace(BERT, readout=Number())).classify("a")
