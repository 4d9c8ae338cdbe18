"""Classifiers judged, against counts made by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from regard.data.read.corpus import Corpus
from regard.data.tasks.bidirectional_lm import BidirectionalLM
from regard.data.tasks.masked_lm import MaskedLM
from regard.data.tasks.span_corruption import SpanCorruption
from regard.data.tokenize.train import WordPiece
from regard.errors import InputError
from regard.evaluation.evaluate import LabelEvaluation, evaluate
from regard.metrics import agreement, correlation
from regard.models import zoo
from regard.models.readouts import BidirectionalVocabulary, Label, Number, Tags, Vector
from tests.small import TEXTS, small

BERT = zoo.bert(16, 2, 2, max_positions=64)
NAMES = ("bad", "good", "so so")


def test_names_are_judged_by_accuracy_f1_and_matthews():
    model = small(replace(BERT, readout=Label(NAMES)))
    texts = [" ".join(words) for words in combinations(["the", "cat", "sat", "on", "a", "dog", "park"], 2)]
    said = [found.label for found in model.classify(texts)]
    assert len(set(said)) > 1
    right = [said[place] if place % 3 else "good" for place in range(len(texts))]
    found = evaluate(model, Corpus(texts, [f" {name} " for name in right], ("f", "g")))
    assert isinstance(found, LabelEvaluation)
    assert found.scores["accuracy"] == pytest.approx(np.mean([a == b for a, b in zip(said, right)]))
    scores = []
    for name in sorted({*said, *right}):
        both = sum(a == b == name for a, b in zip(said, right))
        precision = both / max(1, said.count(name))
        recall = both / max(1, right.count(name))
        scores.append(2 * precision * recall / (precision + recall) if both else 0.0)
        (row,) = [row for row in found.by_label if row.name == name]
        assert (row.count, row.precision, row.recall) == (right.count(name), precision, recall)
    assert found.scores["f1"] == pytest.approx(np.mean(scores))
    names = sorted({*said, *right})
    mine, theirs = (np.array([[name == one for name in names] for one in of], dtype=float) for of in (said, right))
    mine, theirs = mine - mine.mean(0), theirs - theirs.mean(0)
    expected = (mine * theirs).sum() / math.sqrt((mine**2).sum() * (theirs**2).sum())
    assert found.scores["matthews"] == pytest.approx(expected)
    assert f"{found.scores['matthews']:.4f}" in found.text()
    assert json.loads(json.dumps(found.to_json()))["lines"] == len(texts)


def test_matthews_is_pearsons_of_two_names_and_nothing_where_all_are_one():
    rng = np.random.default_rng(3)
    said, right = rng.integers(0, 2, 50), rng.integers(0, 2, 50)
    assert agreement(said, right)["matthews"] == pytest.approx(np.corrcoef(said, right)[0, 1])
    assert agreement(np.zeros(4, int), np.array([0, 1, 0, 1]))["matthews"] == 0


def test_numbers_are_judged_by_correlation():
    model = small(replace(BERT, readout=Number()))
    said = np.array([found.number for found in model.classify(TEXTS)])
    right = [1.0, 2.0, 2.0, -1.5]
    found = evaluate(model, Corpus(TEXTS, [str(number) for number in right], ("f", "g")))
    assert found.scores["pearson"] == pytest.approx(np.corrcoef(said, right)[0, 1], rel=1e-4)
    ranks = [[sum(o < one for o in of) + (sum(o == one for o in of) - 1) / 2 for one in of] for of in (said, right)]
    assert found.scores["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert found.scores["mean squared error"] == pytest.approx(float(((said - right) ** 2).mean()), rel=1e-4)
    assert correlation(said, said)["spearman"] == pytest.approx(1)


def test_tags_are_judged_word_by_word():
    model = small(replace(BERT, readout=Tags(("X", "Y", "Z"))))
    said = [found.tags for found in model.classify(TEXTS)]
    right = [" ".join(tags) for tags in said]
    right[2] = "X X X"
    found = evaluate(model, Corpus(TEXTS, right, ("f", "g")))
    words = sum(map(len, said))
    wrong = 3 - said[2].count("X")
    assert found.predictions == words
    assert found.scores["accuracy"] == pytest.approx(1 - wrong / words)
    right[1] = "X"
    with pytest.raises(InputError, match=r"f:2: 8 words have 1 tags \(--reference\)"):
        evaluate(model, Corpus(TEXTS, right, ("f", "g")))


def test_pairs_are_read_together():
    model = small(replace(BERT, readout=Label(NAMES)))
    pairs = list(zip(TEXTS, TEXTS[::-1]))
    said = [found.label for found in model.classify(pairs)]
    joined = ["\t".join(pair) for pair in pairs]
    assert evaluate(model, Corpus(joined, said, ("f", "g"), paired_sources=True)).scores["accuracy"] == 1
    with pytest.raises(InputError, match="f:1 is one text, not two"):
        evaluate(model, Corpus(TEXTS, said, ("f", "g"), paired_sources=True))


def test_a_line_without_an_answer_is_left_out():
    model = small(replace(BERT, readout=Label(NAMES)))
    done: list[int] = []
    found = evaluate(model, Corpus(TEXTS, ["bad", "", "good", " "], ("f", "g")), progress=done.append)
    assert (found.lines, found.dropped, sum(done)) == (2, {"no label": 2}, 4)
    with pytest.raises(InputError, match="g holds no label"):
        evaluate(model, Corpus(TEXTS, [""] * 4, ("f", "g")))


def test_answers_that_cannot_be_are_named_by_their_line():
    with pytest.raises(InputError, match=r'f:3: this model has no label "god" \(--reference\). Did you mean "good"'):
        evaluate(small(replace(BERT, readout=Label(NAMES))), Corpus(TEXTS, ["bad", "bad", "god", "x"], ("f", "g")))
    with pytest.raises(InputError, match='f:2: "many" is no number'):
        evaluate(small(replace(BERT, readout=Number())), Corpus(TEXTS, ["1", "many", "3", "4"], ("f", "g")))


def test_text_and_model_must_fit():
    plain, pairs = Corpus(TEXTS, None, ("f",)), Corpus(TEXTS, TEXTS, ("f", "g"))
    with pytest.raises(InputError, match=r"classifies, f is plain text. Give --source and --reference"):
        evaluate(small(replace(BERT, readout=Label(NAMES))), plain)
    with pytest.raises(InputError, match="Give plain text as --text"):
        evaluate(small(BERT), pairs)
    with pytest.raises(InputError, match=r"outputs vectors.*regard embed"):
        evaluate(small(replace(BERT, readout=Vector())), pairs)


@pytest.mark.parametrize("kind", ["masked", "both ways", "spans"])
def test_models_that_read_a_text_as_a_whole_are_measured_on_what_they_learn(kind: str):
    corpus = Corpus(TEXTS * 3, None, ("f",))
    model, task = {
        "masked": (small(BERT), MaskedLM(64)),
        "both ways": (small(replace(BERT, readout=BidirectionalVocabulary())), BidirectionalLM(64)),
        "spans": (small(zoo.t5(16, 1, 2), (WordPiece(80, sentinels=20).train(TEXTS * 4),)), SpanCorruption(128)),
    }[kind]
    samples = task.samples(corpus, (model.tokenizer, None))
    total = tokens = 0.0
    for place in range(len(samples)):
        batch = samples.batch([place])
        with torch.no_grad():
            total += float(model.network.loss(batch.inputs, batch.targets))
        tokens += batch.tokens
    found = evaluate(model, corpus)
    assert found.tokens == tokens
    assert found.loss == pytest.approx(total / tokens, rel=1e-4)
    assert found.bits_per_byte is None
    assert "bits per byte" not in found.text()
    assert found.loss == evaluate(model, corpus).loss
