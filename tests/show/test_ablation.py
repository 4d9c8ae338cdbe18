"""Ablation: a head switched off equals zeroed columns of the output projection."""

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
from regard.show.ablation import ablate, ablate_each_head, attention_heads
from regard.show.trace import prepare_inputs
from tests.laws.zoo import ENCODERS, LANGUAGE_MODELS, MODELS, TRANSLATORS
from tests.small import WORDPIECE, small

pytestmark = pytest.mark.usefixtures("no_gradients")

BOTH = WORDPIECE, WORDPIECE
TEXT, TARGET = "the cat sat on the mat", "a dog ran"


def without_head(network: Network, layer: str, head: int) -> Network:
    """A copy in which the output projection of a head is zero."""
    stack, number, kind = layer.split(".")
    other = copy.deepcopy(network)
    attention = getattr(other, stack).layers[int(number)][kind].sublayer
    width = attention.out.in_features // attention.heads
    attention.out.weight[:, head * width : (head + 1) * width] = 0.0
    return other


def predictions(network: Network, inputs: dict, target_ids: list[int]) -> tuple[float, list[str]]:
    """The mean loss, and the prediction of each row."""
    logits = network(**inputs)[0]
    ids = inputs["ids"][0]
    if network.decoder is None:
        loss = F.cross_entropy(logits, ids)
    elif network.encoder is None:
        loss = F.cross_entropy(logits[:-1], ids[1:])
    else:
        loss = F.cross_entropy(logits, torch.tensor(target_ids))
    return float(loss), WORDPIECE.token_texts(logits.argmax(-1))


def example(model: LoadedModel) -> tuple[Network, dict, list[int]]:
    inputs, _, target_ids = prepare_inputs(model.network, BOTH, TEXT, TARGET)
    return model.network, inputs, target_ids


@pytest.mark.parametrize("name", ["transformer", "t5", "additive score", "gpt2", "reformer, full, pre-norm", "bert"])
def test_ablating_a_head_equals_zeroing_its_output_projection(name: str):
    network, inputs, target_ids = example(small(MODELS[name]))
    done: list[float] = []
    found = ablate_each_head(network, BOTH, inputs, target_ids, attention_heads(network), progress=done.append)
    loss, before = predictions(network, inputs, target_ids)
    assert (found["loss"], found["unit"]) == (pytest.approx(loss, rel=1e-4), "nats per token")
    assert len(done) == len(found["heads"]) == sum(attention_heads(network).values())
    for one in found["heads"]:
        loss, after = predictions(without_head(network, one["layer"], one["head"]), inputs, target_ids)
        assert one["loss"] == pytest.approx(loss, rel=1e-4)
        assert one["changed"] == [[row, *pair] for row, pair in enumerate(zip(before, after)) if pair[0] != pair[1]]
    assert any(one["changed"] for one in found["heads"])


def test_ablating_several_heads_changes_the_translation():
    model = small(TRANSLATORS["transformer"])
    network, inputs, target_ids = example(model)
    heads = [("encoder.1.self", 0), ("encoder.1.self", 2), ("decoder.0.cross", 1)]
    other = network
    for layer, head in heads:
        other = without_head(other, layer, head)
    options = Options(beam=2, max_tokens=9)
    found = ablate(network, BOTH, inputs, target_ids, heads, options=options)
    loss, after = predictions(other, inputs, target_ids)
    assert found["loss"] == pytest.approx(loss, rel=1e-4)
    before = predictions(network, inputs, target_ids)[1]
    assert found["changed"] == [[row, *pair] for row, pair in enumerate(zip(before, after)) if pair[0] != pair[1]]
    model.network = other
    assert found["output"] == model.translate(TEXT, options=options)
    model.network = network
    unchanged = ablate(network, BOTH, inputs, target_ids, [], options=options)
    assert unchanged["changed"] == []
    assert unchanged["output"] == model.translate(TEXT, options=options) != found["output"]


@pytest.mark.parametrize("name", MODELS)
def test_every_head_of_every_model_can_be_switched_off(name: str):
    network, inputs, target_ids = example(small(MODELS[name]))
    layer_names: list[str] = []
    network.hidden_states(**inputs, record=Record(lambda layer: layer_names.append(layer) or False))
    layers = attention_heads(network)
    assert list(layers) == list(dict.fromkeys(layer_names))
    whole = network.hidden_states(**inputs)
    for layer, heads in layers.items():
        for head in (0, heads - 1):
            assert not torch.equal(network.hidden_states(**inputs, ablation=Ablation({layer: (head,)})), whole)
    found = json.loads(json.dumps(ablate_each_head(network, BOTH, inputs, target_ids, layers), allow_nan=False))
    assert [(one["layer"], one["head"]) for one in found["heads"]] == [
        (layer, head) for layer, heads in layers.items() for head in range(heads)
    ]
    heads_off = [(layer, 0) for layer in layers][:1]
    first = ablate(network, BOTH, inputs, target_ids, heads_off, options=Options(max_tokens=3))
    json.dumps(first, allow_nan=False)
    assert (first["output"] is not None) == (name in TRANSLATORS)
    if layers:
        assert (first["loss"], first["changed"]) == (found["heads"][0]["loss"], found["heads"][0]["changed"])
    else:
        assert first["loss"] == pytest.approx(found["loss"], abs=1e-6)


@pytest.mark.parametrize("name", ["bert, label", "gpt2, label"])
def test_a_classifier_is_measured_by_its_predicted_label(name: str):
    network, inputs, target_ids = example(small(MODELS[name]))
    found = ablate_each_head(network, BOTH, inputs, target_ids, attention_heads(network))
    values, names = network(**inputs)[0].log_softmax(-1), MODELS[name].readout.labels
    best = int(values.argmax())
    assert (found["unit"], found["loss"]) == (f"nats, label {names[best]}", pytest.approx(-float(values[best])))
    for one in found["heads"]:
        states = network.hidden_states(**inputs, ablation=Ablation({one["layer"]: (one["head"],)}))
        after = network.readout(states)[0].log_softmax(-1)
        assert one["loss"] == pytest.approx(-float(after[best]), rel=1e-4)
        other = int(after.argmax())
        assert one["changed"] == ([[-1, names[best], names[other]]] if other != best else [])


def test_a_number_is_measured_by_its_change_and_a_vector_by_cosine_distance():
    network, inputs, target_ids = example(small(ENCODERS["bert, number"]))
    found = ablate_each_head(network, BOTH, inputs, target_ids, {"encoder.1.self": 3})
    before = float(network(**inputs))
    assert (found["loss"], found["unit"]) == (0.0, "change of the number")
    for one in found["heads"]:
        after = float(without_head(network, one["layer"], one["head"])(**inputs))
        assert one["loss"] == pytest.approx(after - before, abs=1e-5)
        assert one["changed"] == [[-1, f"{before:.3g}", f"{after:.3g}"]]
    network, inputs, target_ids = example(small(ENCODERS["bert, vector"]))
    (first, *_) = ablate_each_head(network, BOTH, inputs, target_ids, {"encoder.0.self": 1})["heads"]
    turned = F.cosine_similarity(network(**inputs), without_head(network, "encoder.0.self", 0)(**inputs))
    assert first["loss"] == pytest.approx(1 - float(turned), abs=1e-5)


def test_tags_are_measured_per_token():
    network, inputs, target_ids = example(small(ENCODERS["bert, tags"]))
    found = ablate_each_head(network, BOTH, inputs, target_ids, {"encoder.0.self": 2})
    values = network(**inputs)[0].log_softmax(-1)
    assert found["loss"] == pytest.approx(-float(values.max(-1).values.mean()), rel=1e-4)
    after = without_head(network, "encoder.0.self", 1)(**inputs)[0].argmax(-1)
    names, best = ENCODERS["bert, tags"].readout.labels, values.argmax(-1)
    changed = [[row, names[best[row]], names[after[row]]] for row in range(len(after)) if after[row] != best[row]]
    assert found["heads"][1]["changed"] == changed


def test_without_token_predictions_the_hidden_states_are_compared():
    network, inputs, target_ids = example(small(zoo.elmo("small", width=16, inner=8)))
    found = ablate_each_head(network, BOTH, inputs, target_ids, attention_heads(network))
    assert found == {"loss": pytest.approx(0.0, abs=1e-6), "unit": "cosine distance", "heads": []}


def test_the_loss_of_a_text_of_one_token_is_finite():
    network = small(LANGUAGE_MODELS["gpt2"]).network
    inputs, _, target_ids = prepare_inputs(network, BOTH, "", None)
    found = ablate_each_head(network, BOTH, inputs, target_ids, attention_heads(network))
    assert len(target_ids) == 1
    assert not any(math.isnan(one["loss"]) for one in found["heads"])


@pytest.mark.parametrize("head", [("decoder.0.self", 3), ("decoder.0.self", -1), ("decoder.9.self", 0), ("x", 0)])
def test_an_unknown_head_is_refused(head: tuple[str, int]):
    network, inputs, target_ids = example(small(LANGUAGE_MODELS["gpt2"]))
    with pytest.raises(InputError, match="no head"):
        ablate(network, BOTH, inputs, target_ids, [head])


def test_a_single_token_is_measured_by_the_prediction_after_it():
    network = small(LANGUAGE_MODELS["gpt2"]).network
    ids = torch.tensor([[5]])
    found = ablate_each_head(network, BOTH, {"ids": ids}, [5], {"decoder.0.self": 3})
    wanted = network(ids)[0].argmax(-1)
    assert found["loss"] == pytest.approx(float(F.cross_entropy(network(ids)[0], wanted)), abs=1e-5)
    for one in found["heads"]:
        logits = without_head(network, "decoder.0.self", one["head"])(ids)[0]
        assert one["loss"] == pytest.approx(float(F.cross_entropy(logits, wanted)), abs=1e-5)
