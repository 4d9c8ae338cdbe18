"""Labels, numbers and tags, against the logits of each text alone."""

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
from regard.decode.classify import UNSAID, Labelled, Numbered, Tagged
from regard.errors import InputError
from regard.models import zoo
from regard.models.readouts import Label, Last, Number, Tags
from tests.small import TEXTS, WORDS, small

BERT = zoo.bert(16, 2, 2, max_positions=64)
NAMES = ("bad", "good", "so so")


def logits(model, row: list[int], segments: list[int] | None = None):
    given = {} if segments is None else {"segments": torch.tensor([segments])}
    with torch.no_grad():
        return model.network(torch.tensor([row]), **given)[0]


@pytest.mark.parametrize("description", [BERT, zoo.gpt2(16, 2, 2)], ids=["bert", "gpt2"])
def test_a_label_is_the_likeliest_name(description):
    model = small(replace(description, readout=Label(NAMES, Last())))
    for text, found in zip(TEXTS, model.classify(TEXTS)):
        expected = logits(model, [WORDS.begin, *WORDS.encode(text), WORDS.end]).softmax(-1).tolist()
        assert isinstance(found, Labelled)
        assert found.label == NAMES[expected.index(max(expected))]
        assert list(found.probabilities) == list(NAMES)
        assert list(found.probabilities.values()) == pytest.approx(expected, rel=1e-3)


def test_a_pair_is_read_as_two_segments():
    model = small(replace(BERT, readout=Label(NAMES)))
    pairs = list(pairwise(TEXTS))
    for (one, other), found in zip(pairs, model.classify(pairs)):
        first, second = [WORDS.begin, *WORDS.encode(one), WORDS.end], [*WORDS.encode(other), WORDS.end]
        expected = logits(model, first + second, [0] * len(first) + [1] * len(second)).softmax(-1)
        assert list(found.probabilities.values()) == pytest.approx(expected.tolist(), rel=1e-3)
    with pytest.raises(InputError, match="some are texts and some are pairs"):
        model.classify(["a", ("b", "c")])


def test_what_is_read_is_what_was_learnt_from():
    """The batches of training give the same answers, so that no frame differs."""
    model = small(replace(BERT, readout=Label(NAMES)))
    for joined in (False, True):
        sources = [f"{one}\t{other}" for one, other in zip(TEXTS, TEXTS[::-1])] if joined else TEXTS
        corpus = Corpus(sources, ["good"] * 4, ("f",), joined=joined)
        batch = Classification(names=NAMES).samples(corpus, (WORDS, None)).batch(range(4))
        with torch.no_grad():
            said = model.network(**batch.inputs).softmax(-1).tolist()
        texts = [tuple(source.split("\t")) for source in sources] if joined else sources
        for found, expected in zip(model.classify(texts), said, strict=True):
            assert list(found.probabilities.values()) == pytest.approx(expected, rel=1e-3)


def test_a_number_is_said_as_it_is():
    model = small(replace(BERT, readout=Number()))
    for text, found in zip(TEXTS, model.classify(TEXTS)):
        expected = float(logits(model, [WORDS.begin, *WORDS.encode(text), WORDS.end])[0])
        assert isinstance(found, Numbered)
        assert found.number == pytest.approx(expected, abs=1e-4)


def test_the_tag_of_a_word_is_that_of_its_first_token():
    model = small(replace(BERT, readout=Tags(NAMES)))
    texts = [*TEXTS, ""]
    found = model.classify(texts)
    assert [[word for word, _ in one.words] for one in found] == [text.split() for text in texts]
    # Where training asks, and for which word, is the same.
    corpus = Corpus(TEXTS, [" ".join(["good"] * len(text.split())) for text in TEXTS], ("f",))
    samples = Tagging(names=NAMES).samples(corpus, (WORDS, None))
    for place, one in enumerate(found[:-1]):
        batch = samples.batch([place])
        with torch.no_grad():
            said = model.network(**batch.inputs)[0].argmax(-1)[batch.targets[0] >= 0]
        assert isinstance(one, Tagged)
        assert one.tags == tuple(NAMES[number] for number in said.tolist())
    with pytest.raises(InputError, match="not of two"):
        model.classify([("a", "b")])


def test_a_word_without_a_token_has_no_tag():
    plain = json.loads(WORDS.to_json())
    plain["normalizer"] = json.loads(normalizers.BertNormalizer(lowercase=False).__getstate__())
    cleaning = Tokenizer.from_json(json.dumps(plain))
    model = small(replace(BERT, readout=Tags(NAMES)), (cleaning,))
    (found,) = model.classify(["the \x02 dog"])
    assert [word for word, _ in found.words] == ["the", "\x02", "dog"]
    assert found.tags[1] == UNSAID
    assert {found.tags[0], found.tags[2]} <= set(NAMES)


def test_who_says_words_does_not_classify():
    with pytest.raises(InputError, match=r"does not classify; it was made to fill. Try: regard fill"):
        small(BERT).classify(["a"])
    with pytest.raises(InputError, match="takes a list"):
        small(replace(BERT, readout=Number())).classify("a")
