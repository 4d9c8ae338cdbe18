"""The Python interface: the capabilities of a loaded model, and its errors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import regard
from regard.api import LoadedModel, load
from regard.data.tokenize.tokenizer import SpecialTokens, Tokenizer
from regard.data.tokenize.train import Character, WordPiece
from regard.decode.generate import continue_prompts, translate
from regard.decode.inputs import capabilities
from regard.decode.options import Options
from regard.errors import InputError
from regard.layers.contract import Context, Facts, Memory, Sublayer
from regard.layers.positions import Learned
from regard.models import zoo
from regard.models.readouts import BidirectionalVocabulary, Label, Number, Tags, Vector
from tests.laws.zoo import MODELS
from tests.small import TEXTS, WORDPIECE, save_model, small

BERT = zoo.bert(16, 1, 2, max_positions=64)
SPANS = WordPiece(80, sentinels=3).train(TEXTS * 4)
CAPABILITIES = {
    "gpt2": (zoo.gpt2(16, 1, 2), WORDPIECE, ("generate", "score", "embed")),
    "transformer": (zoo.transformer(16, 1, 2), WORDPIECE, ("translate", "score", "embed")),
    "t5": (zoo.t5(16, 1, 2), SPANS, ("translate", "score", "embed", "fill")),
    "bert": (BERT, WORDPIECE, ("fill", "score", "embed")),
    "elmo": (replace(BERT, readout=BidirectionalVocabulary()), WORDPIECE, ("embed",)),
    "label": (replace(BERT, readout=Label(("a", "b"))), WORDPIECE, ("classify", "embed")),
    "number": (replace(BERT, readout=Number()), WORDPIECE, ("classify", "embed")),
    "tags": (replace(zoo.gpt2(16, 1, 2), readout=Tags(("a", "b"))), WORDPIECE, ("classify", "embed")),
    "vector": (replace(BERT, readout=Vector()), WORDPIECE, ("embed",)),
}


def run(model: LoadedModel, verb: str) -> object:
    pairs = model.network.encoder is not None and model.network.decoder is not None
    return {
        "translate": lambda: model.translate(["the cat"], options=Options(max_tokens=5)),
        "generate": lambda: model.generate("the cat", max_tokens=5),
        "fill": lambda: model.fill("the [MASK] sat"),
        "classify": lambda: model.classify(["the cat"]),
        "embed": lambda: model.embed(["the cat"]),
        "score": lambda: model.score(["the cat"], ["a dog"] if pairs else None),
    }[verb]()


@pytest.mark.parametrize("name", CAPABILITIES)
@pytest.mark.parametrize("verb", ["translate", "generate", "fill", "classify", "embed", "score"])
def test_a_model_does_what_it_was_trained_for_and_refuses_other_commands(name: str, verb: str):
    description, tokenizer, known = CAPABILITIES[name]
    model = small(description, (tokenizer,))
    assert capabilities(model.description, model.tokenizer) == known
    if verb in known:
        assert len(run(model, verb)) if verb != "fill" else run(model, verb)
    else:
        message = f"^this model does not {verb}; it was made to {known[0]}. Try: regard {known[0]}.$"
        with pytest.raises(InputError, match=message):
            run(model, verb)


@pytest.mark.parametrize("name", CAPABILITIES)
def test_every_model_shows_its_attention_weights(name: str):
    description, tokenizer, _ = CAPABILITIES[name]
    found = small(description, (tokenizer,), generation_config={"max_new_tokens": 5}).look("the cat")
    assert found.weights
    html = found.html()
    assert all(f'"{layer}"' in html for layer in found.weights)


def test_a_model_gives_the_same_outputs_from_its_folder(tmp_path: Path):
    model = small(BERT)
    again = load(save_model(tmp_path / "bert", model), device="cpu")
    np.testing.assert_allclose(again.embed(TEXTS), model.embed(TEXTS), rtol=1e-5)
    assert again.fill("the [MASK] sat").text == model.fill("the [MASK] sat").text
    assert again.score(TEXTS) == pytest.approx(model.score(TEXTS))


def test_a_prompt_starts_with_the_prompt_prefix_and_an_empty_one_with_bos():
    bare = Tokenizer.from_json(WORDPIECE.to_json(), SpecialTokens(single=((-1, 0),), pair=((-1, 0), (-2, 0))))
    network = small(zoo.gpt2(16, 1, 2)).network
    options = Options(max_tokens=6, min_tokens=6)
    ours, theirs = (continue_prompts(network, one, ["", "the cat"], options) for one in (WORDPIECE, bare))
    assert ours[0][0].tokens == theirs[0][0].tokens
    assert theirs[1][0].text.startswith("the cat")
    assert ours[1][0].log_probability != pytest.approx(theirs[1][0].log_probability, rel=1e-3)
    assert theirs[1][0].text == bare.decode([*bare.encode("the cat"), *theirs[1][0].tokens])


def test_a_line_is_named_by_its_number_in_the_whole_input():
    network = small(zoo.transformer(16, 1, 2, position=Learned(8))).network
    with pytest.raises(InputError, match="line 2,050 has 12 tokens"):
        translate(network, (WORDPIECE, WORDPIECE), ["a", "the " * 11], Options(), first_line=2049)


def test_top_must_be_positive():
    with pytest.raises(InputError, match=r"top must be 1 or more, got 0 \(--top\)"):
        small(BERT).fill("the [MASK]", top=0)


@dataclass(frozen=True)
class Scale:
    """A layer of the caller's own: one trainable factor."""

    initial: float = 1.0
    name: ClassVar[str] = "scale"
    facts: ClassVar[Facts] = Facts(constant_memory=True, packs=True)

    def build(self, width: int, source_width: int | None = None) -> Sublayer:
        layer = ScaleLayer()
        layer.factor = nn.Parameter(Tensor([self.initial]))
        return layer


class ScaleLayer(Sublayer):
    position_wise = True

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        return x * self.factor, None


def test_a_model_with_a_layer_of_the_caller_is_loaded_with_parts_and_refused_without(tmp_path: Path):
    gpt2 = zoo.gpt2(16, 1, 2)
    model = small(replace(gpt2, decoder=replace(gpt2.decoder, layers=((*gpt2.decoder.layers[0], Scale(0.5)),))))
    folder = save_model(tmp_path / "own", model, parts=[Scale])
    loaded = regard.load(folder, device="cpu", parts=[Scale])
    assert loaded.description == model.description
    assert loaded.score(TEXTS) == model.score(TEXTS)
    assert [result.text() for result in regard.check(loaded) if not result.holds] == []
    with pytest.raises(InputError, match=r'unknown kind "scale".*parts=\[...\]'):
        regard.load(folder, device="cpu")


def test_all_public_names_are_listed_and_found():
    assert dir(regard) == sorted(regard.__all__)
    assert all(hasattr(regard, name) for name in dir(regard))


def test_a_model_tells_its_shape_and_size():
    model = small(zoo.gpt2(16, 1, 2))
    count = sum(parameter.numel() for parameter in model.network.parameters())
    assert model.shape == "decoder"
    assert repr(model) == f"<decoder model, {count:,} parameters, on cpu>"


def test_a_network_built_by_hand_is_saved_and_loaded(tmp_path: Path):
    tokenizer = Character().train(["hello world"])
    network = zoo.gpt2(8, 1, 2).build(tokenizer.vocabulary)
    saved = regard.save(network, tokenizer, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.generate("he", max_tokens=3, seed=1) == saved.generate("he", max_tokens=3, seed=1)
    assert all(torch.equal(one, other) for one, other in zip(network.parameters(), loaded.network.parameters()))
    with pytest.raises(InputError, match="holds a model already"):
        regard.save(network, tokenizer, tmp_path / "model")
    with pytest.raises(InputError, match=r"takes a network, as model\.network is; got LoadedModel"):
        regard.save(saved, tokenizer, tmp_path / "other")
    with pytest.raises(InputError, match=r"the tokenizer has 13 tokens, the network 5"):
        regard.save(zoo.gpt2(8, 1, 2).build(5), tokenizer, tmp_path / "other")
    with pytest.raises(InputError, match="takes a tokenizer"):
        regard.save(network, "tokenizer.json", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_translator_built_by_hand_is_saved_with_both_tokenizers(tmp_path: Path):
    source, target = Character().train(["hello"]), Character().train(["guten tag"])
    network = zoo.transformer(8, 1, 2).build(target.vocabulary, source.vocabulary)
    regard.save(network, (source, target), tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert (loaded.tokenizer.digest, loaded.target_tokenizer.digest) == (source.digest, target.digest)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (zoo.gpt2, r"gpt2 is a function: call it, as in zoo\.gpt2\(\)"),
        (zoo.gpt2(8, 1, 2).build(5), r"Give network\.description"),
        (3, "takes a recipe or a model .*got int"),
    ],
)
def test_training_what_is_no_model_says_what_to_give(recipe: object, message: str):
    with pytest.raises(InputError, match=message):
        regard.train(recipe, text="t.txt")


def test_generate_takes_one_text_and_a_list_of_stops():
    model = small(zoo.gpt2(16, 1, 2))
    with pytest.raises(InputError, match=r"generate takes one text, got a list\."):
        model.generate(["the cat"])
    with pytest.raises(InputError, match="stop takes a list of terms"):  # not the stops "t", "h" and "e"
        model.generate("the cat", stop="the")
    with pytest.raises(InputError, match="stop takes a list of terms"):
        model.stream("the cat", stop="the")


def test_settings_are_a_list():
    with pytest.raises(InputError, match=r'settings takes a list: settings=\["train\.steps=3"\]'):
        regard.train("dates", settings="train.steps=3")


def test_public_names_are_listed_without_importing_torch():
    names = {"load", "save", "train", "check", "zoo", "InputError", "RegardError", "RunFailed", "CannotResume"}
    assert names <= {*dir(regard)}
    assert issubclass(regard.InputError, regard.RegardError)
    code = "import sys, regard; dir(regard); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_model_with_next_sentence_prediction_classifies_pairs():
    model = small(zoo.bert(8, 1, 2, max_positions=64, next_sentence=True))
    assert capabilities(model.description, model.tokenizer)[-1] == "classify"
    (found,) = model.classify([("a dog runs", "it barks")])
    assert set(found.probabilities) == {"next", "elsewhere"}
    with pytest.raises(InputError, match="tells whether one text follows another"):
        model.classify(["a dog runs"])


NO_TEXTS: list[tuple[Any, str]] = [
    (["a", None], r"got None at index 1\. Give strings\."),
    ([b"a"], r'got bytes at index 0\. Decode bytes: \.decode\("utf-8"\)\.'),
    (("a", "b", 3), "got an int at index 2"),
    (None, "got None"),
    (b"a", "got bytes"),
    (3, "got an int"),
    ({"a": "b"}, "got a dict"),
    ((text for text in "ab"), "got a generator"),
]


@pytest.mark.parametrize(("texts", "message"), NO_TEXTS)
def test_what_is_no_list_of_texts_is_refused_by_its_place(texts: Any, message: str):
    translator, encoder, writer = small(MODELS["pre-norm"]), small(zoo.bert(16, 1, 2)), small(zoo.gpt2(16, 1, 2))
    for call in (
        translator.translate, small(MODELS["t5"]).translate, regard.ensemble([translator]).translate,
        translator.translations, encoder.fill, encoder.embed, encoder.score, writer.scores, encoder.classify,
        lambda texts: writer.continuations(texts, writer.defaults()), lambda texts: translator.score(texts, ["a"]),
        lambda texts: translator.align(["a"], texts), lambda texts: translator.align(texts, texts),
        lambda texts: translator.translate("a", must=texts), lambda texts: writer.generate("a", stop=texts),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message) as error:
            call(texts)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", [None, b"a", ["a"], 3])
def test_what_is_no_text_is_refused(text: Any):
    translator, writer = small(MODELS["pre-norm"]), small(zoo.gpt2(16, 1, 2))
    for call in (
        writer.generate, writer.stream, translator.stream, translator.look, translator.lsh_recall,
        lambda text: translator.look("a", text or 3), lambda text: translator.confidences("a", text),
        lambda text: translator.alternatives(text, "a", 0),
    ):  # fmt: skip
        with pytest.raises(InputError, match=r"takes one text, got (None|bytes|a list|an int)\."):
            call(text)
    with pytest.raises(InputError, match="translate_document takes a file or a text"):
        translator.translate_document(text, kind="text")
    with pytest.raises(InputError, match="a glossary is a dictionary"):
        translator.translate("a", glossary=text or 3)


def test_what_is_no_model_no_number_and_no_term_is_refused():
    model = small(MODELS["pre-norm"])
    for call, message in (
        (lambda: regard.ensemble(["runs/a"]), r"ensemble takes models that are loaded, got 'runs/a'"),
        (lambda: model.fuse(None), "fuse takes models that are loaded, got None"),
        (lambda: model.translate("a", beam="5"), "beam must be a number, got '5'"),
        (lambda: model.translate("a", must=["\ud800"]), "unpaired surrogate"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            call()


def test_a_pair_has_two_texts():
    model = small(zoo.bert(8, 1, 2, max_positions=64, next_sentence=True))
    for pair, message in (
        (("a",), r"got 1 at index 1\. Give two"), (("a", None), "got None at index 1, part 1"), ("ab", "Give pairs"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            model.classify([("a", "b"), pair])
