"""Heads switched off: the same as a network whose output map does not hear them."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
import torch.nn.functional as F

from regard.api import LoadedModel
from regard.decode.options import Options
from regard.errors import InputError
from regard.layers.contract import Ablation
from regard.layers.record import Record
from regard.models import zoo
from regard.models.model import Network
from regard.show.ablation import ablations, heads_of, without
from regard.show.trace import read_once
from tests.laws.zoo import ENCODERS, LANGUAGE_MODELS, MODELS, TRANSLATORS
from tests.small import WORDS, small

BOTH = WORDS, WORDS
TEXT, TARGET = "the cat sat on the mat", "a dog ran"


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def muted(network: Network, layer: str, head: int) -> Network:
    """A copy in which what a head says is multiplied by zero."""
    stack, number, kind = layer.split(".")
    other = copy.deepcopy(network)
    attention = getattr(other, stack).wiring.layers[int(number)][kind].sublayer
    width = attention.out.in_features // attention.heads
    attention.out.weight[:, head * width : (head + 1) * width] = 0.0
    return other


def answers(network: Network, inputs: dict, said: list[int]) -> tuple[float, list[str]]:
    """What is asked for costs in the mean, and what is likeliest at each row."""
    logits = network(**inputs)[0]
    ids = inputs["ids"][0]
    if network.decoder is None:
        loss = F.cross_entropy(logits, ids)
    elif network.encoder is None:
        loss = F.cross_entropy(logits[:-1], ids[1:])
    else:
        loss = F.cross_entropy(logits, torch.tensor(said))
    return float(loss), WORDS.token_texts(logits.argmax(-1))


def studied(model: LoadedModel) -> tuple[Network, dict, list[int]]:
    inputs, _, said = read_once(model.network, BOTH, TEXT, TARGET)
    return model.network, inputs, said


@pytest.mark.parametrize("name", ["transformer", "t5", "additive score", "gpt2", "reformer, full, pre-norm", "bert"])
def test_a_head_that_is_off_is_one_that_the_output_map_does_not_hear(name: str):
    network, inputs, said = studied(small(MODELS[name]))
    done: list[float] = []
    off = ablations(network, BOTH, inputs, said, heads_of(network), progress=done.append)
    loss, was = answers(network, inputs, said)
    assert (off["loss"], off["measure"]) == (pytest.approx(loss, rel=1e-4), "nats a token")
    assert len(done) == len(off["heads"]) == sum(heads_of(network).values())
    for found in off["heads"]:
        loss, now = answers(muted(network, found["layer"], found["head"]), inputs, said)
        assert found["loss"] == pytest.approx(loss, rel=1e-4)
        assert found["changed"] == [[row, *pair] for row, pair in enumerate(zip(was, now)) if pair[0] != pair[1]]
    assert any(found["changed"] for found in off["heads"])


def test_several_heads_at_once_change_what_is_said():
    model = small(TRANSLATORS["transformer"])
    network, inputs, said = studied(model)
    heads = [("encoder.1.self", 0), ("encoder.1.self", 2), ("decoder.0.cross", 1)]
    other = network
    for layer, head in heads:
        other = muted(other, layer, head)
    options = Options(beam=2, max_tokens=9)
    found = without(network, BOTH, inputs, said, heads, options=options)
    loss, now = answers(other, inputs, said)
    assert found["loss"] == pytest.approx(loss, rel=1e-4)
    was = answers(network, inputs, said)[1]
    assert found["changed"] == [[row, *pair] for row, pair in enumerate(zip(was, now)) if pair[0] != pair[1]]
    model.network = other
    assert found["said"] == model.translate(TEXT, options=options)
    model.network = network
    unchanged = without(network, BOTH, inputs, said, [], options=options)
    assert unchanged["changed"] == []
    assert unchanged["said"] == model.translate(TEXT, options=options) != found["said"]


@pytest.mark.parametrize("name", MODELS)
def test_every_head_of_every_model_can_be_switched_off(name: str):
    network, inputs, said = studied(small(MODELS[name]))
    asked: list[str] = []
    network.hidden_states(**inputs, record=Record(lambda layer: asked.append(layer) or False))
    layers = heads_of(network)
    assert list(layers) == list(dict.fromkeys(asked))
    whole = network.hidden_states(**inputs)
    for layer, heads in layers.items():
        for head in (0, heads - 1):
            assert not torch.equal(network.hidden_states(**inputs, ablation=Ablation({layer: (head,)})), whole)
    off = json.loads(json.dumps(ablations(network, BOTH, inputs, said, layers), allow_nan=False))
    assert [(one["layer"], one["head"]) for one in off["heads"]] == [
        (layer, head) for layer, heads in layers.items() for head in range(heads)
    ]
    first = [(layer, 0) for layer in layers][:1]
    alone = without(network, BOTH, inputs, said, first, options=Options(max_tokens=3))
    json.dumps(alone, allow_nan=False)
    assert (alone["said"] is not None) == (name in TRANSLATORS)
    if layers:
        assert (alone["loss"], alone["changed"]) == (off["heads"][0]["loss"], off["heads"][0]["changed"])
    else:
        assert alone["loss"] == pytest.approx(off["loss"], abs=1e-6)


@pytest.mark.parametrize("name", ["bert, label", "gpt2, label"])
def test_a_classifier_is_judged_by_the_label_it_prefers(name: str):
    network, inputs, said = studied(small(MODELS[name]))
    off = ablations(network, BOTH, inputs, said, heads_of(network))
    values, names = network(**inputs)[0].log_softmax(-1), MODELS[name].readout.names
    best = int(values.argmax())
    assert (off["measure"], off["loss"]) == (f"nats, label {names[best]}", pytest.approx(-float(values[best])))
    for one in off["heads"]:
        states = network.hidden_states(**inputs, ablation=Ablation({one["layer"]: (one["head"],)}))
        now = network.readout(states)[0].log_softmax(-1)
        assert one["loss"] == pytest.approx(-float(now[best]), rel=1e-4)
        other = int(now.argmax())
        assert one["changed"] == ([[-1, names[best], names[other]]] if other != best else [])


def test_a_number_is_judged_by_how_far_it_moves_and_a_vector_by_how_far_it_turns():
    network, inputs, said = studied(small(ENCODERS["bert, number"]))
    off = ablations(network, BOTH, inputs, said, {"encoder.1.self": 3})
    was = float(network(**inputs))
    assert (off["loss"], off["measure"]) == (0.0, "change of the number")
    for one in off["heads"]:
        now = float(muted(network, one["layer"], one["head"])(**inputs))
        assert one["loss"] == pytest.approx(now - was, abs=1e-5)
        assert one["changed"] == [[-1, f"{was:.3g}", f"{now:.3g}"]]
    network, inputs, said = studied(small(ENCODERS["bert, vector"]))
    (first, *_) = ablations(network, BOTH, inputs, said, {"encoder.0.self": 1})["heads"]
    turned = F.cosine_similarity(network(**inputs), muted(network, "encoder.0.self", 0)(**inputs))
    assert first["loss"] == pytest.approx(1 - float(turned), abs=1e-5)


def test_tags_are_judged_token_by_token():
    network, inputs, said = studied(small(ENCODERS["bert, tags"]))
    off = ablations(network, BOTH, inputs, said, {"encoder.0.self": 2})
    values = network(**inputs)[0].log_softmax(-1)
    assert off["loss"] == pytest.approx(-float(values.max(-1).values.mean()), rel=1e-4)
    now = muted(network, "encoder.0.self", 1)(**inputs)[0].argmax(-1)
    names, best = ENCODERS["bert, tags"].readout.names, values.argmax(-1)
    changed = [[row, names[best[row]], names[now[row]]] for row in range(len(now)) if now[row] != best[row]]
    assert off["heads"][1]["changed"] == changed


def test_where_no_words_can_be_asked_for_the_states_are_compared():
    network, inputs, said = studied(small(zoo.elmo("small", width=16, inner=8)))
    off = ablations(network, BOTH, inputs, said, heads_of(network))
    assert off == {"loss": pytest.approx(0.0, abs=1e-6), "measure": "one minus the cosine", "heads": []}


def test_a_text_of_one_token_leaves_nothing_to_say():
    network = small(LANGUAGE_MODELS["gpt2"]).network
    inputs, _, said = read_once(network, BOTH, "", None)
    off = ablations(network, BOTH, inputs, said, heads_of(network))
    assert len(said) == 1
    assert not any(math.isnan(one["loss"]) for one in off["heads"])


@pytest.mark.parametrize("head", [("decoder.0.self", 3), ("decoder.0.self", -1), ("decoder.9.self", 0), ("x", 0)])
def test_a_head_that_is_not_there_is_refused(head: tuple[str, int]):
    network, inputs, said = studied(small(LANGUAGE_MODELS["gpt2"]))
    with pytest.raises(InputError, match="no head"):
        without(network, BOTH, inputs, said, [head])


def test_of_a_single_token_it_is_asked_what_would_have_followed():
    network = small(LANGUAGE_MODELS["gpt2"]).network
    ids = torch.tensor([[5]])
    found = ablations(network, BOTH, {"ids": ids}, [5], {"decoder.0.self": 3})
    wanted = network(ids)[0].argmax(-1)
    assert found["loss"] == pytest.approx(float(F.cross_entropy(network(ids)[0], wanted)), abs=1e-5)
    for one in found["heads"]:
        logits = muted(network, "decoder.0.self", one["head"])(ids)[0]
        assert one["loss"] == pytest.approx(float(F.cross_entropy(logits, wanted)), abs=1e-5)
