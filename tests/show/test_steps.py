"""What might have been said, and the tree of a search: against the logits, and against the search's own answer."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from regard.api import LoadedModel
from regard.data.tokenize.tokenizer import Roles, Tokenizer
from regard.decode.options import Options
from regard.errors import InputError
from regard.layers.character_cnn import Spelled
from regard.layers.contract import Context
from regard.layers.positions import Rotary
from regard.models import zoo
from regard.models.readouts import Vocabulary
from regard.show import generation as steps
from regard.show.generation import beam_tree, generation
from regard.show.trace import read_once
from tests.laws.zoo import ENCODERS, LANGUAGE_MODELS, MODELS, SPEAKERS, TRANSLATORS
from tests.small import WORDS, small

BOTH = WORDS, WORDS
TEXT, TARGET = "the cat sat on the mat", "a dog ran"


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def eager(name: str) -> LoadedModel:
    """A model to which ending is about as likely as what it likes to say, so that answers of many lengths come out."""
    model = small(SPEAKERS[name])
    words = model.network.readout.words
    _, answer = beam_tree(model.network, BOTH, TEXT, Options(max_tokens=5))
    liked = list(answer.tokens[1::3])
    words.weight[WORDS.end] = words.weight[liked].mean(dim=0)
    if words.bias is not None:
        words.bias[WORDS.end] = words.bias[liked].max()
    return model


@pytest.mark.parametrize("name", MODELS)
def test_every_row_of_every_model_says_what_its_logits_say(name: str):
    network = small(MODELS[name]).network
    inputs, _, said = read_once(network, BOTH, TEXT, TARGET)
    found = json.loads(json.dumps(generation(network, WORDS, inputs, said, candidates=4), allow_nan=False))
    if name not in SPEAKERS and (MODELS[name].readout.says != "words" or MODELS[name].readout.sides > 1):
        assert found == []
        return
    shares = network(**inputs)[0].softmax(-1)
    best = shares.topk(4)
    if name in TRANSLATORS:
        expected = said
    elif name in LANGUAGE_MODELS:
        expected = [*said[1:], int(best.indices[-1, 0])]
    else:
        expected = inputs["ids"][0].tolist()
    assert [step["row"] for step in found] == list(range(len(shares)))
    assert [step["chosen"][0] for step in found] == WORDS.token_texts(expected)
    for row, step in enumerate(found):
        assert step["chosen"][1] == pytest.approx(float(shares[row, expected[row]]), rel=1e-4)
        assert [text for text, _ in step["candidates"]] == WORDS.token_texts(best.indices[row])
        assert [share for _, share in step["candidates"]] == pytest.approx(best.values[row].tolist(), rel=1e-4)


def test_where_there_are_masks_they_alone_are_asked_and_the_likeliest_is_chosen():
    network = small(ENCODERS["bert"]).network
    inputs, _, said = read_once(network, BOTH, TEXT, None)
    inputs["ids"][0, [2, 5]] = WORDS.mask
    found = generation(network, WORDS, inputs, said)
    assert [step["row"] for step in found] == [2, 5]
    for step in found:
        values, numbers = network(**inputs)[0, step["row"]].softmax(-1).topk(10)
        assert step["chosen"] == step["candidates"][0]
        assert step["chosen"] == [WORDS.token_texts(numbers)[0], pytest.approx(float(values[0]))]


def test_a_vocabulary_without_a_mask_is_asked_at_all_tokens():
    plain = json.loads(WORDS.to_json().replace("<mask>", "mask!"))
    plain["added_tokens"] = [token for token in plain["added_tokens"] if token["content"] != "mask!"]
    unmasked = Tokenizer.from_json(json.dumps(plain), Roles())
    network = small(ENCODERS["bert"]).network
    inputs, source, _ = read_once(network, BOTH, TEXT, None)
    assert len(generation(network, unmasked, inputs, [])) == len(source)


@pytest.mark.parametrize("name", ["transformer", "reformer, several rounds", "lstm-lm", "bert"])
def test_rows_are_read_out_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch, name: str):
    network = small(MODELS[name]).network
    inputs, _, said = read_once(network, BOTH, TEXT, TARGET)
    whole, sizes = generation(network, WORDS, inputs, said), []
    monkeypatch.setattr(steps, "_NUMBERS", 2 * network.vocabulary)
    network.readout.register_forward_hook(lambda module, given, logits: sizes.append(len(logits)))
    found = generation(network, WORDS, inputs, said)
    assert max(sizes) == 2
    assert [step["row"] for step in found] == [step["row"] for step in whole]
    assert [step["chosen"][1] for step in found] == pytest.approx([step["chosen"][1] for step in whole], rel=1e-4)


def test_letters_are_asked_for_the_tokens_they_spell():
    embed = Spelled(inner=4, filters=((1, 8), (2, 8)), copies=1)
    model = replace(zoo.bert(16, 1, 2, position=Rotary()), embed=embed, readout=Vocabulary(tied=False))
    network = small(model).network
    inputs, source, _ = read_once(network, BOTH, TEXT, None)
    found = generation(network, WORDS, inputs, source)
    assert [step["chosen"][0] for step in found] == WORDS.token_texts(source)
    assert generation(network, WORDS, inputs, []) == []


def best_path(nodes: list[dict]) -> list[dict]:
    """The nodes marked as the best, in order; each the child of the one before it."""
    path = [place for place, node in enumerate(nodes) if node["best"]]
    assert [nodes[place]["parent"] for place in path] == [-1, *path][: len(path)]
    return [nodes[place] for place in path]


@pytest.mark.parametrize("beam", [1, 3, 5])
@pytest.mark.parametrize("more", [{"length_penalty": 0.6}, {"length_penalty": -1.0}, {"length_penalty": 2.0},
                                  {"normalization": "length", "ending": "likely", "length_penalty": 1.0}])  # fmt: skip
@pytest.mark.parametrize("name", ["transformer", "luong", "seq2seq", "t5", "gpt2", "lstm-lm", "reformer"])
def test_the_best_path_of_a_tree_is_the_answer_of_the_search(name: str, more: dict, beam: int):
    model, options = eager(name), Options(beam=beam, max_tokens=9, **more)
    nodes, answer = beam_tree(model.network, BOTH, TEXT, options)
    json.dumps(nodes, allow_nan=False)
    speak = model.translations if name in TRANSLATORS else model.continuations
    assert answer == speak([TEXT], options)[0][0]
    path = best_path(nodes)
    assert [node["text"] for node in path] == WORDS.token_texts([*answer.tokens, *[WORDS.end] * answer.ended])
    assert path[-1]["score"] == answer.log_probability
    assert all(node["kept"] for node in path)
    (end,) = WORDS.token_texts([WORDS.end])
    for node in nodes:
        parent = nodes[node["parent"]] if node["parent"] >= 0 else {"step": -1, "score": 0.0, "kept": True}
        assert (parent["step"], parent["kept"]) == (node["step"] - 1, True)
        assert parent.get("text") != end
        assert node["score"] <= parent["score"]
    for step in range(nodes[-1]["step"] + 1):
        here = [node for node in nodes if node["step"] == step]
        assert [node["score"] for node in here] == sorted((node["score"] for node in here), reverse=True)
        assert len(here) == (1 if beam == 1 else 2 * beam)
        assert beam <= sum(node["kept"] for node in here) <= 2 * beam


def test_the_score_of_a_node_is_the_sum_of_what_its_path_says():
    model = eager("transformer")
    nodes, _ = beam_tree(model.network, BOTH, TEXT, Options(beam=3, max_tokens=6))
    numbers = {text: number for number, text in enumerate(WORDS.token_texts(range(WORDS.vocabulary)))}
    source = model.network.encode_source(torch.tensor([[*WORDS.encode(TEXT), WORDS.end]]))
    for node in nodes:
        said, at, total = [numbers[node["text"]]], node["parent"], 0.0
        while at >= 0:
            said, at = [numbers[nodes[at]["text"]], *said], nodes[at]["parent"]
        states, _ = model.network.decode(torch.tensor([[WORDS.begin, *said[:-1]]]), Context(source=source))
        values = model.network.readout(states[0]).log_softmax(-1)
        total = float(values[torch.arange(len(said)), torch.tensor(said)].sum())
        assert node["score"] == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        Options(beam=3, max_tokens=12, stop=("a",)),
        Options(beam=4, n_best=4, max_tokens=8, coverage_penalty=0.4),
        Options(beam=3, max_tokens=8, min_tokens=4, no_repeat_ngram=1),
        Options(beam=3, max_tokens=8, also_end=(7, 8, 9)),
        Options(beam=3, max_tokens=5, min_tokens=4, last=(WORDS.end,)),
        Options(temperature=1.0, seed=5, max_tokens=8),
    ],
    ids=["stop", "coverage", "rules", "several ends", "a forced end", "a draw"],
)
def test_whatever_the_options_the_best_path_is_the_answer(options: Options):
    model = eager("transformer")
    nodes, answer = beam_tree(model.network, BOTH, TEXT, options, prefix="the dog")
    json.dumps(nodes, allow_nan=False)
    assert answer == model.translations([TEXT], options, prefixes=["the dog"])[0][0]
    path = best_path(nodes)
    texts = WORDS.token_texts(answer.tokens)
    assert [node["text"] for node in path][: len(texts)] == texts
    assert len(path) - len(texts) in (0, 1)
    assert path[-1]["score"] == answer.log_probability


def test_a_model_that_does_not_speak_has_no_tree():
    with pytest.raises(InputError, match="made to fill"):
        beam_tree(small(ENCODERS["bert"]).network, BOTH, TEXT, Options())


def test_nothing_grows_where_nothing_may_be_said():
    nodes, answer = beam_tree(small(zoo.gpt2(16, 1, 2)).network, BOTH, TEXT, replace(Options(), max_tokens=0))
    assert (nodes, answer.tokens) == ([], ())
