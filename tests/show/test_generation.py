"""Generation steps against the logits, and the beam search tree against the search's best hypothesis."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from regard.api import LoadedModel
from regard.data.tokenize.tokenizer import SpecialTokens, Tokenizer
from regard.decode.options import Options
from regard.errors import InputError
from regard.layers.contract import Context
from regard.layers.embedding import CharacterCNN
from regard.layers.positions import Rotary
from regard.models import zoo
from regard.models.readouts import Vocabulary
from regard.show import generation as module
from regard.show.generation import beam_tree, generation_steps
from regard.show.trace import prepare_inputs
from tests.laws.zoo import ENCODERS, GENERATORS, LANGUAGE_MODELS, MODELS, TRANSLATORS
from tests.small import WORDPIECE, small

pytestmark = pytest.mark.usefixtures("no_gradients")

BOTH = WORDPIECE, WORDPIECE
TEXT, TARGET = "the cat sat on the mat", "a dog ran"


def eager(name: str) -> LoadedModel:
    """A model whose end token is about as probable as its favourite tokens: hypotheses have many lengths."""
    model = small(GENERATORS[name])
    lm_head = model.network.readout.lm_head
    _, best = beam_tree(model.network, BOTH, TEXT, Options(max_tokens=5))
    likely = list(best.tokens[1::3])
    lm_head.weight[WORDPIECE.eos] = lm_head.weight[likely].mean(dim=0)
    if lm_head.bias is not None:
        lm_head.bias[WORDPIECE.eos] = lm_head.bias[likely].max()
    return model


@pytest.mark.parametrize("name", MODELS)
def test_every_step_of_every_model_has_the_probabilities_of_its_logits(name: str):
    network = small(MODELS[name]).network
    inputs, _, target_ids = prepare_inputs(network, BOTH, TEXT, TARGET)
    found = json.loads(
        json.dumps(generation_steps(network, WORDPIECE, inputs, target_ids, candidates=4), allow_nan=False)
    )
    if name not in GENERATORS and (MODELS[name].readout.outputs != "tokens" or MODELS[name].readout.directions > 1):
        assert found == []
        return
    probabilities = network(**inputs)[0].softmax(-1)
    best = probabilities.topk(4)
    if name in TRANSLATORS:
        expected = target_ids
    elif name in LANGUAGE_MODELS:
        expected = [*target_ids[1:], int(best.indices[-1, 0])]
    else:
        expected = inputs["ids"][0].tolist()
    assert [step["row"] for step in found] == list(range(len(probabilities)))
    assert [step["chosen"][0] for step in found] == WORDPIECE.token_texts(expected)
    for row, step in enumerate(found):
        assert step["chosen"][1] == pytest.approx(float(probabilities[row, expected[row]]), rel=1e-4)
        assert [text for text, _ in step["candidates"]] == WORDPIECE.token_texts(best.indices[row])
        assert [share for _, share in step["candidates"]] == pytest.approx(best.values[row].tolist(), rel=1e-4)


def test_a_masked_text_has_steps_at_its_masks_only():
    network = small(ENCODERS["bert"]).network
    inputs, _, target_ids = prepare_inputs(network, BOTH, TEXT, None)
    inputs["ids"][0, [2, 5]] = WORDPIECE.mask
    found = generation_steps(network, WORDPIECE, inputs, target_ids)
    assert [step["row"] for step in found] == [2, 5]
    for step in found:
        values, numbers = network(**inputs)[0, step["row"]].softmax(-1).topk(10)
        assert step["chosen"] == step["candidates"][0]
        assert step["chosen"] == [WORDPIECE.token_texts(numbers)[0], pytest.approx(float(values[0]))]


def test_a_vocabulary_without_a_mask_has_steps_at_all_tokens():
    plain = json.loads(WORDPIECE.to_json().replace("<mask>", "mask!"))
    plain["added_tokens"] = [token for token in plain["added_tokens"] if token["content"] != "mask!"]
    unmasked = Tokenizer.from_json(json.dumps(plain), SpecialTokens())
    network = small(ENCODERS["bert"]).network
    inputs, source, _ = prepare_inputs(network, BOTH, TEXT, None)
    assert len(generation_steps(network, unmasked, inputs, [])) == len(source)


@pytest.mark.parametrize("name", ["transformer", "reformer, several rounds", "lstm-lm", "bert"])
def test_logits_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch, name: str):
    network = small(MODELS[name]).network
    inputs, _, target_ids = prepare_inputs(network, BOTH, TEXT, TARGET)
    whole, sizes = generation_steps(network, WORDPIECE, inputs, target_ids), []
    monkeypatch.setattr(module, "_MAX_LOGITS", 2 * network.vocabulary)
    network.readout.register_forward_hook(lambda module, given, logits: sizes.append(len(logits)))
    found = generation_steps(network, WORDPIECE, inputs, target_ids)
    assert max(sizes) == 2
    assert [step["row"] for step in found] == [step["row"] for step in whole]
    assert [step["chosen"][1] for step in found] == pytest.approx([step["chosen"][1] for step in whole], rel=1e-4)


def test_a_character_model_has_steps_at_its_tokens():
    embed = CharacterCNN(character_width=4, filters=((1, 8), (2, 8)), copies=1)
    model = replace(zoo.bert(16, 1, 2, position=Rotary()), embed=embed, readout=Vocabulary(tied=False))
    network = small(model).network
    inputs, source, _ = prepare_inputs(network, BOTH, TEXT, None)
    found = generation_steps(network, WORDPIECE, inputs, source)
    assert [step["chosen"][0] for step in found] == WORDPIECE.token_texts(source)
    assert generation_steps(network, WORDPIECE, inputs, []) == []


def best_path(nodes: list[dict]) -> list[dict]:
    """The nodes of the best hypothesis, in order; each is a child of the one before it."""
    path = [index for index, node in enumerate(nodes) if node["best"]]
    assert [nodes[index]["parent"] for index in path] == [-1, *path][: len(path)]
    return [nodes[index] for index in path]


@pytest.mark.parametrize("beam", [1, 3, 5])
@pytest.mark.parametrize("more", [
    {"length_penalty": 0.6}, {"length_penalty": -1.0}, {"length_penalty": 2.0},
    {"normalization": "length", "early_stopping": False, "length_penalty": 1.0},
])  # fmt: skip
@pytest.mark.parametrize("name", ["transformer", "luong", "convs2s", "seq2seq", "t5", "gpt2", "lstm-lm", "reformer"])
def test_the_best_path_of_a_tree_is_the_best_hypothesis(name: str, more: dict, beam: int):
    model, options = eager(name), Options(beam=beam, max_tokens=9, **more)
    nodes, best = beam_tree(model.network, BOTH, TEXT, options)
    json.dumps(nodes, allow_nan=False)
    generate = model.translations if name in TRANSLATORS else model.continuations
    assert best == generate([TEXT], options)[0][0]
    path = best_path(nodes)
    assert [node["text"] for node in path] == WORDPIECE.token_texts([*best.tokens, *[WORDPIECE.eos] * best.ended])
    assert path[-1]["score"] == best.log_probability
    assert all(node["kept"] for node in path)
    (end,) = WORDPIECE.token_texts([WORDPIECE.eos])
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


def test_the_score_of_a_node_is_the_log_probability_of_its_path():
    model = eager("transformer")
    nodes, _ = beam_tree(model.network, BOTH, TEXT, Options(beam=3, max_tokens=6))
    numbers = {text: number for number, text in enumerate(WORDPIECE.token_texts(range(WORDPIECE.vocabulary)))}
    source = model.network.encode_source(torch.tensor([[*WORDPIECE.encode(TEXT), WORDPIECE.eos]]))
    for node in nodes:
        target_ids, at, total = [numbers[node["text"]]], node["parent"], 0.0
        while at >= 0:
            target_ids, at = [numbers[nodes[at]["text"]], *target_ids], nodes[at]["parent"]
        states, _ = model.network.decode(torch.tensor([[WORDPIECE.bos, *target_ids[:-1]]]), Context(source=source))
        values = model.network.readout(states[0]).log_softmax(-1)
        total = float(values[torch.arange(len(target_ids)), torch.tensor(target_ids)].sum())
        assert node["score"] == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        Options(beam=3, max_tokens=12, stop=("a",)),
        Options(beam=4, n_best=4, max_tokens=8, coverage_penalty=0.4),
        Options(beam=3, max_tokens=8, min_tokens=4, no_repeat_ngram=1),
        Options(beam=3, max_tokens=8, extra_eos=(7, 8, 9)),
        Options(beam=3, max_tokens=5, min_tokens=4, forced_eos=(WORDPIECE.eos,)),
        Options(temperature=1.0, seed=5, max_tokens=8),
    ],
    ids=["stop", "coverage", "rules", "several ends", "a forced end", "sampling"],
)
def test_the_best_path_is_the_best_hypothesis_under_all_options(options: Options):
    model = eager("transformer")
    nodes, best = beam_tree(model.network, BOTH, TEXT, options, prefix="the dog")
    json.dumps(nodes, allow_nan=False)
    assert best == model.translations([TEXT], options, prefixes=["the dog"])[0][0]
    path = best_path(nodes)
    texts = WORDPIECE.token_texts(best.tokens)
    assert [node["text"] for node in path][: len(texts)] == texts
    assert len(path) - len(texts) in (0, 1)
    assert path[-1]["score"] == best.log_probability


def test_a_model_that_does_not_generate_has_no_tree():
    with pytest.raises(InputError, match="made to fill"):
        beam_tree(small(ENCODERS["bert"]).network, BOTH, TEXT, Options())


def test_no_tokens_make_an_empty_tree():
    nodes, best = beam_tree(small(zoo.gpt2(16, 1, 2)).network, BOTH, TEXT, replace(Options(), max_tokens=0))
    assert (nodes, best.tokens) == ([], ())
