"""What a loaded model can be asked, and what it says when asked the wrong thing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from regard.api import LoadedModel, load
from regard.data.tokenize.tokenizer import Roles, Tokenizer
from regard.data.tokenize.train import WordPiece
from regard.decode.generate import extend, translate
from regard.decode.inputs import verbs
from regard.decode.options import Options
from regard.errors import InputError
from regard.layers.positions import Learned
from regard.models import zoo
from regard.models.readouts import BothWays, Label, Number, Tags, Vector
from tests.small import TEXTS, WORDS, kept, small

BERT = zoo.bert(16, 1, 2, max_positions=64)
SPANS = WordPiece(80, sentinels=3).train(TEXTS * 4)
ABILITIES = {
    "gpt2": (zoo.gpt2(16, 1, 2), WORDS, ("generate", "score", "embed")),
    "transformer": (zoo.transformer(16, 1, 2), WORDS, ("translate", "score", "embed")),
    "t5": (zoo.t5(16, 1, 2), SPANS, ("translate", "score", "embed", "fill")),
    "bert": (BERT, WORDS, ("fill", "score", "embed")),
    "elmo": (replace(BERT, readout=BothWays()), WORDS, ("embed",)),
    "label": (replace(BERT, readout=Label(("a", "b"))), WORDS, ("classify", "embed")),
    "number": (replace(BERT, readout=Number()), WORDS, ("classify", "embed")),
    "tags": (replace(zoo.gpt2(16, 1, 2), readout=Tags(("a", "b"))), WORDS, ("classify", "embed")),
    "vector": (replace(BERT, readout=Vector()), WORDS, ("embed",)),
}


def asked(model: LoadedModel, verb: str) -> object:
    pairs = model.network.encoder is not None and model.network.decoder is not None
    return {
        "translate": lambda: model.translate(["the cat"], options=Options(max_tokens=5)),
        "generate": lambda: model.generate("the cat", max_tokens=5),
        "fill": lambda: model.fill("the [MASK] sat"),
        "classify": lambda: model.classify(["the cat"]),
        "embed": lambda: model.embed(["the cat"]),
        "score": lambda: model.score(["the cat"], ["a dog"] if pairs else None),
    }[verb]()


@pytest.mark.parametrize("name", ABILITIES)
@pytest.mark.parametrize("verb", ["translate", "generate", "fill", "classify", "embed", "score"])
def test_a_model_does_what_it_was_made_for_and_names_that_when_asked_for_something_else(name: str, verb: str):
    description, tokenizer, known = ABILITIES[name]
    model = small(description, (tokenizer,))
    assert verbs(model.description, model.tokenizer) == known
    if verb in known:
        assert len(asked(model, verb)) if verb != "fill" else asked(model, verb)
    else:
        said = f"^this model does not {verb}; it was made to {known[0]}. Try: regard {known[0]}.$"
        with pytest.raises(InputError, match=said):
            asked(model, verb)


@pytest.mark.parametrize("name", ABILITIES)
def test_every_model_shows_what_it_attends_to(name: str):
    description, tokenizer, _ = ABILITIES[name]
    found = small(description, (tokenizer,), generation={"max_new_tokens": 5}).look("the cat")
    assert found.weights
    html = found.html()
    assert all(f'"{layer}"' in html for layer in found.weights)


def test_a_model_says_the_same_from_its_folder(tmp_path: Path):
    model = small(BERT)
    again = load(kept(tmp_path / "bert", model), device="cpu")
    np.testing.assert_allclose(again.embed(TEXTS), model.embed(TEXTS), rtol=1e-5)
    assert again.fill("the [MASK] sat").text == model.fill("the [MASK] sat").text
    assert again.score(TEXTS) == pytest.approx(model.score(TEXTS))


def test_a_prompt_begins_as_the_tokenizer_says_and_an_empty_one_begins_all_the_same():
    bare = Tokenizer.from_json(WORDS.to_json(), Roles(opening=()))
    network = small(zoo.gpt2(16, 1, 2)).network
    options = Options(max_tokens=6, min_tokens=6)
    ours, theirs = (extend(network, one, ["", "the cat"], options) for one in (WORDS, bare))
    assert ours[0][0].tokens == theirs[0][0].tokens
    assert theirs[1][0].text.startswith("the cat")
    assert ours[1][0].log_probability != pytest.approx(theirs[1][0].log_probability, rel=1e-3)
    assert theirs[1][0].text == bare.decode([*bare.encode("the cat"), *theirs[1][0].tokens])


def test_a_line_is_named_by_its_number_in_the_whole_input():
    network = small(zoo.transformer(16, 1, 2, position=Learned(8))).network
    with pytest.raises(InputError, match="line 2,050 has 12 tokens"):
        translate(network, (WORDS, WORDS), ["a", "the " * 11], Options(), first=2049)


def test_how_many_choices_must_be_some():
    with pytest.raises(InputError, match=r"top must be 1 or more, got 0 \(--top\)"):
        small(BERT).fill("the [MASK]", top=0)
