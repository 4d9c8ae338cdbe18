"""The walk: its tensors are those that the model computes, for every family."""

from __future__ import annotations

import pytest
import torch

from regard.models import zoo
from regard.models.model import Model
from regard.show.walk import MAX_TOKENS, walk
from tests.laws.zoo import MODELS
from tests.small import small

NAMES = [
    "seq2seq",
    "bahdanau",
    "luong",
    "transformer",
    "bert",
    "gpt2",
    "t5",
    "reformer, several rounds",
    "elmo",
    "convs2s",
]


def walked(name: str | Model, text: str = "the dog runs"):
    model = small(MODELS[name] if isinstance(name, str) else name)
    example = model.look(text).example
    assert example is not None
    tokenizer = example.tokenizers[0 if example.network.shape == "encoder" else 1]
    return example, walk(example.network, tokenizer, example.collector.inputs, example.target_ids)


@pytest.mark.parametrize("name", [name for name in NAMES if name in MODELS])
def test_weighted_sums_of_values_are_the_outputs_of_heads(name: str):
    example, found = walked(name)
    assert found is not None
    assert set(found.values) == set(example.collector.shapes)
    for layer, values in found.values.items():
        weights = example.collector.matrix(layer)
        torch.testing.assert_close(weights @ values.float(), found.outputs[layer].float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["transformer", "gpt2", "bert"])
def test_states_and_logits_are_those_of_the_forward_pass(name: str):
    example, found = walked(name)
    assert found is not None
    states = example.network.hidden_states(**example.collector.inputs)[0]
    torch.testing.assert_close(found.states[-1], states)
    best = example.network.readout(states).topk(found.logits.shape[1], dim=-1).values
    torch.testing.assert_close(found.logits, best)


@pytest.mark.parametrize("name", ["transformer", "gpt2"])
def test_embedding_plus_position_is_what_the_first_layer_reads(name: str):
    _, found = walked(name)
    for one in found.embeddings:
        torch.testing.assert_close(one.table + one.position, one.read)


CHARACTERS = {
    "elmo": zoo.elmo(width=16, inner=20, clip=None),
    "elmo, words": MODELS["elmo, words"],
    "gpt2": MODELS["gpt2"],
}


@pytest.mark.parametrize("name", CHARACTERS)
def test_a_walk_tells_whether_vectors_are_made_from_characters(name: str):
    _, found = walked(CHARACTERS[name])
    assert found is not None
    assert found.characters is (name == "elmo")


def test_a_long_text_has_no_walk():
    assert walked("gpt2", "the dog runs " * MAX_TOKENS)[1] is None
