"""Detection of languages with a classifier of texts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regard.data.tokenize.train import Byte
from regard.decode.language import LanguageDetector
from regard.errors import InputError
from regard.layers.convolution import Convolution, ScaledResidual
from regard.layers.embedding import Embed
from regard.models import zoo
from regard.models.model import Model, Stack
from regard.models.readouts import Label, Mean, Number, Tags, Vector
from tests.small import TEXTS, small

CODES = ("cs", "de", "en")
CONVOLUTIONS = Model(
    24, Embed(), encoder=Stack(((Convolution(5),),), ScaledResidual()), readout=Label(CODES, Mean(), dropout=0.0)
)
BYTES = Byte().train([])


@pytest.fixture
def detector() -> LanguageDetector:
    return LanguageDetector(small(CONVOLUTIONS, (BYTES,)))


def test_languages_come_best_first_in_percent_as_the_classifier_says(detector: LanguageDetector):
    predictions = small(CONVOLUTIONS, (BYTES,)).classify(TEXTS)
    for found, predicted in zip(detector.detect(TEXTS), predictions):
        assert found[0][0] == predicted.label
        assert dict(found) == pytest.approx({code: 100 * p for code, p in predicted.probabilities.items()}, rel=1e-4)
        assert [share for _, share in found] == sorted((share for _, share in found), reverse=True)


def test_only_the_languages_asked_for_share_the_confidence(detector: LanguageDetector):
    for whole, some in zip(detector.detect(TEXTS), detector.detect(TEXTS, among=("en", "cs", "fr"))):
        shares = dict(whole)
        assert {code for code, _ in some} == {"en", "cs"}
        assert sum(share for _, share in some) == pytest.approx(100)
        assert dict(some)["en"] == pytest.approx(100 * shares["en"] / (shares["en"] + shares["cs"]))
    assert detector.detect(TEXTS, among=["de"]) == [[("de", 100.0)]] * len(TEXTS)
    with pytest.raises(InputError, match="knows none of fr, it"):
        detector.detect(TEXTS, among=("fr", "it"))


def test_a_text_without_letters_has_no_language(detector: LanguageDetector):
    nothing = [("cs", 0.0), ("de", 0.0), ("en", 0.0)]
    found = detector.detect(["", " \n", "12 + 3_4 = ?", TEXTS[0]])
    assert found[:3] == [nothing] * 3
    assert dict(found[3]) == pytest.approx(dict(detector.detect([TEXTS[0]])[0]))
    assert detector.detect([]) == []


def test_long_texts_are_read_as_far_as_the_model_reads():
    bert = replace(zoo.bert(24, 1, 2, max_positions=32), readout=Label(CODES))
    detector = LanguageDetector(small(bert, (BYTES,)))
    long = "1. " + TEXTS[0] * 100_000
    assert detector.detect([long])[0][0][1] > 0
    assert detector.detect([long]) == detector.detect([TEXTS[0] * 3])
    short = small(CONVOLUTIONS, (BYTES,))
    assert LanguageDetector(short).detect([TEXTS[0] * 1000]) == LanguageDetector(short).detect([TEXTS[0] * 1001])


@pytest.mark.parametrize(
    "model",
    [
        zoo.transformer(16, 1, 2),
        zoo.gpt2(16, 1, 2),
        zoo.bert(16, 1, 2),
        zoo.bert(16, 1, 2, next_sentence=True),
        *(replace(zoo.bert(16, 1, 2), readout=readout) for readout in (Number(), Tags(CODES), Vector())),
    ],
    ids=["translator", "language model", "masked", "next sentence", "regression", "tagger", "vectors"],
)
def test_a_model_that_labels_no_texts_is_refused(model: Model):
    with pytest.raises(InputError, match=r"labels no texts.*regard train languages"):
        LanguageDetector(small(model))
