"""Embeddings of texts, against the hidden states of each isolated text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.api import LoadedModel
from regard.errors import InputError
from regard.models import zoo
from regard.models.model import Model
from regard.models.readouts import First, Vector
from tests.small import TEXTS, WORDPIECE, small

DESCRIPTIONS = {
    "bert": zoo.bert(16, 2, 2, max_positions=64),
    "gpt2": zoo.gpt2(16, 2, 2),
    "transformer": zoo.transformer(16, 2, 2),
}
SEVERAL = [*TEXTS, "", "a"]
POOLS = {
    "mean": lambda states: states.mean(0),
    "first": lambda states: states[0],
    "last": lambda states: states[-1],
    "max": lambda states: states.amax(0),
}


def with_special_tokens(name: str, text: str) -> list[int]:
    ids = WORDPIECE.encode(text)
    return {
        "bert": [WORDPIECE.bos, *ids, WORDPIECE.eos],
        "gpt2": [WORDPIECE.bos, *ids],
        "transformer": [*ids, WORDPIECE.eos],
    }[name]


def states(model: LoadedModel, name: str, text: str) -> Tensor:
    """The last hidden states of an isolated text."""
    ids = torch.tensor([with_special_tokens(name, text)])
    with torch.no_grad():
        return (model.network.hidden_states(ids) if name == "gpt2" else model.network.encode(ids))[0]


@pytest.mark.parametrize("name", DESCRIPTIONS)
@pytest.mark.parametrize("pool", POOLS)
def test_a_vector_is_the_pooling_of_the_last_hidden_states(name: str, pool: str):
    model = small(DESCRIPTIONS[name])
    found = model.embed(SEVERAL, pool=pool)
    assert (found.shape, found.dtype) == ((len(SEVERAL), 16), np.float32)
    for text, vector in zip(SEVERAL, found):
        expected = POOLS[pool](states(model, name, text)).numpy()
        np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=1e-5)
    if pool == "mean":
        np.testing.assert_array_equal(found, model.embed(SEVERAL))


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_every_token_has_a_vector(name: str):
    model = small(DESCRIPTIONS[name])
    for text, (tokens, vectors) in zip(SEVERAL, model.embed(SEVERAL, tokens=True)):
        assert tokens == WORDPIECE.token_texts(with_special_tokens(name, text))
        np.testing.assert_allclose(vectors, states(model, name, text).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_layers_count_from_the_embedding_and_mix_is_their_mean(name: str):
    model = small(DESCRIPTIONS[name])
    every = np.stack([model.embed(TEXTS, layer=layer) for layer in range(3)])
    np.testing.assert_allclose(model.embed(TEXTS, layer="mix"), every.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(every[2], model.embed(TEXTS), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model.embed(TEXTS, layer=-1), every[2])
    assert not np.allclose(every[0], every[1], atol=1e-2)
    with pytest.raises(InputError, match=r"no layer 3 \(--layer\). Use 0 to 2, or mix"):
        model.embed(TEXTS, layer=3)


def test_layer_0_is_the_sum_of_token_and_position_embeddings():
    model = small(DESCRIPTIONS["gpt2"])
    embed = model.network.embed
    (tokens, vectors), *_ = model.embed(["the dog"], tokens=True, layer=0)
    ids = torch.tensor(with_special_tokens("gpt2", "the dog"))
    expected = embed.table.weight[ids] + embed.position.weight[: len(tokens)]
    np.testing.assert_allclose(vectors, expected.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("normalised", [False, True])
def test_a_vector_model_uses_its_own_readout(normalised: bool):
    vector = Vector(First(), "tanh", normalised)
    model = small(replace(DESCRIPTIONS["bert"], readout=vector))
    for text, found in zip(SEVERAL, model.embed(SEVERAL)):
        ids = torch.tensor([with_special_tokens("bert", text)])
        with torch.no_grad():
            expected = model.network(ids)[0].numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert (abs(np.linalg.norm(found) - 1) < 1e-5) == normalised
    plain = small(DESCRIPTIONS["bert"])
    for name, parameter in plain.network.named_parameters():
        if name in dict(model.network.named_parameters()):
            parameter.data.copy_(dict(model.network.named_parameters())[name])
    np.testing.assert_allclose(model.embed(TEXTS, pool="max"), plain.embed(TEXTS, pool="max"), rtol=1e-4, atol=1e-5)


def test_a_decoder_with_a_vector_readout_reads_bos_and_eos():
    model = small(replace(DESCRIPTIONS["gpt2"], readout=Vector()))
    with torch.no_grad():
        expected = model.network(torch.tensor([with_special_tokens("bert", "the dog")]))[0].numpy()
    np.testing.assert_allclose(model.embed(["the dog"])[0], expected, rtol=1e-4, atol=1e-5)


def test_normalised_vectors_have_length_1():
    model = small(DESCRIPTIONS["bert"])
    np.testing.assert_allclose(np.linalg.norm(model.embed(SEVERAL, normalised=True), axis=1), 1, rtol=1e-5)
    (_, vectors), *_ = model.embed(["the dog"], tokens=True, normalised=True)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


def test_errors_name_the_option_or_the_text():
    model = small(DESCRIPTIONS["bert"])
    with pytest.raises(InputError, match=r'"men" is not known \(--pool\). Did you mean "mean"'):
        model.embed(["a"], pool="men")
    with pytest.raises(InputError, match="takes a list"):
        model.embed("a")
    with pytest.raises(InputError, match="Leave out --pool"):
        model.embed(["a"], pool="mean", tokens=True)
    with pytest.raises(InputError, match="text 2 has 102 tokens, this model reads 64"):
        model.embed(["a", "the " * 100])


def test_an_empty_list_has_no_vectors():
    description: Model = DESCRIPTIONS["bert"]
    assert small(description).embed([]).shape == (0, 16)
    assert small(description).embed([], tokens=True) == []
