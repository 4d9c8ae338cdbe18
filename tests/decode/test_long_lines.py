"""Lines longer than those of the training: cut, translated piece by piece, put together."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from regard.api import LoadedModel
from regard.data.tokenize.tokenizer import word_offsets
from regard.decode.terms import Constraints
from regard.errors import InputError, Note
from regard.layers.positions import Learned
from regard.models import zoo
from regard.store.loading import TRAINED_LENGTH
from tests.small import small

SENTENCES = ["the cat sat on the mat.", "a dog ran, and the cat sat;", "a cat ran on the mat."]
LINE = " ".join(SENTENCES)


@pytest.fixture(scope="module", params=[zoo.transformer(16, 1, 2, position=Learned(40)), zoo.luong(16, 1)])
def model(request: pytest.FixtureRequest) -> LoadedModel:
    found = small(request.param)
    longest = max(len(found.tokenizer.encode(text)) for text in SENTENCES) + 2
    return small(request.param, config={TRAINED_LENGTH: longest})


def test_a_long_line_is_the_translations_of_its_sentences(model: LoadedModel):
    with pytest.warns(Note, match=r"line 2 has \d+ tokens, .* It is cut at sentences and clauses into \d pieces"):
        short, long = model.translations([SENTENCES[0], LINE])
    pieces = [one[0] for one in model.translations(SENTENCES)]
    assert short[0].tokens == pieces[0].tokens
    assert long[0].text.split() == " ".join(one.text for one in pieces).split()
    assert long[0].tokens == tuple(token for one in pieces for token in one.tokens)
    assert long[0].log_probability == pytest.approx(sum(one.log_probability for one in pieces))


def test_words_of_an_alignment_are_counted_from_the_start_of_the_line(model: LoadedModel):
    (found,) = model.translations([LINE], alignment=True)[0]
    pieces = [one[0] for one in model.translations(SENTENCES, alignment=True)]
    expected, source, target = [], 0, 0
    for text, one in zip(SENTENCES, pieces):
        expected += [(here + source, there + target) for here, there in one.alignment or ()]
        source, target = source + len(word_offsets(text)), target + len(word_offsets(one.text))
    assert found.alignment == tuple(expected)


def test_a_line_longer_than_the_positions_is_translated_too():
    model = small(zoo.transformer(16, 1, 2, position=Learned(40)))
    with pytest.raises(InputError, match="this model reads 40"):
        model.translate(" ".join(40 * SENTENCES))
    model = small(zoo.transformer(16, 1, 2, position=Learned(40)), config={TRAINED_LENGTH: 20})
    assert model.translate(" ".join(40 * SENTENCES)).split()


def test_what_is_about_a_line_as_a_whole_keeps_it_whole(model: LoadedModel):
    options = model.defaults()
    for changed in ({"n_best": 2, "beam": 2}, {"temperature": 1.0}, {"max_tokens": 5}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Note)
            found = model.translations([LINE], replace(options, **changed))[0]  # type: ignore[arg-type]
        assert len(found) == changed.get("n_best", 1)
        assert len(found[0].tokens) <= changed.get("max_tokens", 10_000)
    begun = model.translations([LINE], replace(options, max_tokens=None), prefixes=["the"])[0][0]
    assert begun.text.startswith("the")
    constraints = [Constraints(must_not=("cat",))]
    assert len(model.translations([LINE], options, constraints=constraints)[0]) == 1


def test_constraints_of_one_line_keep_only_that_line_whole(model: LoadedModel):
    constraints = [Constraints(must_not=("cat",)), Constraints()]
    kept, long = model.translations([SENTENCES[0], LINE], constraints=constraints)
    assert "cat" not in kept[0].text.split()
    assert long[0].tokens == model.translations([LINE])[0][0].tokens


def test_progress_counts_lines_not_pieces(model: LoadedModel):
    counted: list[float] = []
    model.translations([LINE, SENTENCES[0]], progress=counted.append)
    assert sum(counted) == pytest.approx(2)


def test_a_line_of_white_space_or_one_endless_word_is_no_trouble(model: LoadedModel):
    assert model.translations([" " * 400])[0][0].text == ""
    assert len(model.translations(["cat" * 60])) == 1
