"""A reversible stack has the gradients of one that keeps all activations."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from regard.data.tokenize.train import Character
from regard.decode.embed import embed
from regard.layers.contract import Context
from regard.layers.reversible import Reversible, ReversibleLayers
from regard.models import zoo
from regard.models.model import Network
from regard.models.readouts import Mean, Vector, Vocabulary
from tests.laws.zoo import SMALL, VOCABULARY, WIDTH, build

NAMES = [
    "reversible", "reversible, relative bias", "gpt2, reversible", "reversible, side by side",
    "gpt2, axial, side by side", "reformer", "reformer, several rounds", "reformer, translating",
]  # fmt: skip


def gradients(network: Network, seed: int) -> tuple[float, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, VOCABULARY, (3, 11), generator=generator)
    inputs = {}
    if network.shape == "encoder-decoder":
        inputs["source_ids"] = torch.randint(3, VOCABULARY, (3, 9), generator=generator)
        inputs["source_padding"] = torch.arange(9) < torch.tensor([9, 4, 6])[:, None]
    torch.manual_seed(seed)
    loss = network.readout.loss(network.hidden_states(ids, **inputs), ids.roll(-1, 1))
    network.zero_grad()
    loss.backward()
    return loss.item(), {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("training", [False, True])
def test_gradients_equal_those_of_a_stack_that_keeps_all_activations(name: str, training: bool, monkeypatch):
    network = build(name).train(training)
    loss, found = gradients(network, seed=7)

    def keeps_activations(self, x, context, memory=None):
        assert memory is None
        pair = (x, x)
        for number, layer in enumerate(self):
            pair, _ = layer(pair, context.child(str(number)), None, None)
        return self.output(*pair), None

    if training:  # slices draw their dropout one by one, a plain run draws it at once
        for module in network.modules():
            if hasattr(module, "slice_length"):
                module.slice_length = 1000
        loss, found = gradients(network, seed=7)
    monkeypatch.setattr(ReversibleLayers, "forward", keeps_activations)
    plain_loss, plain = gradients(network, seed=7)
    assert loss == pytest.approx(plain_loss, rel=1e-5)
    assert found.keys() == plain.keys()
    for key, gradient in plain.items():
        assert (found[key] - gradient).norm() <= 1e-5 * gradient.norm().clamp_min(1e-3), key


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_concatenated_streams_share_the_final_norm_and_the_readout(side: str):
    name = {"encoder": "bert", "decoder": "gpt2"}[side]
    model = replace(getattr(zoo, name)(**SMALL), readout=Vocabulary(tied=False))
    stack = replace(getattr(model, side), join=Reversible(output="concatenated"))
    network = replace(model, **{side: stack}).build(VOCABULARY).eval()
    built = getattr(network, side)
    assert built.final_norm.weight.shape == (2 * WIDTH,)
    assert network.readout.lm_head.weight.shape == (VOCABULARY, 2 * WIDTH)
    ids, all_layers = torch.randint(3, VOCABULARY, (2, 5)), []
    states = network.hidden_states(ids, all_layers=all_layers)
    x = network.embed(ids, Context())
    pair = (x, x)
    for layer in built.layers:
        pair, _ = layer(pair, Context(), None, None)
    assert torch.equal(states, built.final_norm(torch.cat(pair, dim=-1)))
    assert [tuple(one.shape) for one in all_layers] == 3 * [(2, 5, 2 * WIDTH)]
    tied = replace(model, **{side: stack}, readout=Vocabulary()).build(VOCABULARY)
    assert tied.readout.project.weight.shape == (WIDTH, 2 * WIDTH)


def test_text_vectors_are_as_wide_as_the_output_of_the_stack():
    model = replace(zoo.bert(**SMALL), readout=Vector(Mean()))
    model = replace(model, encoder=replace(model.encoder, join=Reversible(output="concatenated")))
    assert model.vector_width == 2 * WIDTH
    tokenizer = Character().train(["abc"])
    vectors = embed(model.build(tokenizer.vocabulary).eval(), tokenizer, ["ab", "c"])
    assert vectors.shape == (2, 2 * WIDTH)


def test_the_source_and_the_position_bias_get_gradients():
    network = build("reversible, relative bias")
    _, found = gradients(network, seed=1)
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert found["source_embed.table.weight" if "source_embed.table.weight" in found else "embed.table.weight"].norm()
    assert found["decoder.position.table.weight"].norm() > 0
    assert found["encoder.position.table.weight"].norm() > 0


def test_a_second_backward_pass_is_refused():
    network, ids = build("gpt2, reversible"), torch.ones(1, 4, dtype=torch.long)
    loss = network.readout.loss(network.hidden_states(ids), ids)
    loss.backward(retain_graph=True)
    with pytest.raises((AssertionError, RuntimeError), match=r"one backward pass|second time"):
        loss.backward()


@pytest.mark.parametrize("training", [True, False])
def test_the_backward_pass_does_not_change_the_random_state(training: bool):
    network, ids = build("reformer").train(training), torch.ones(1, 4, dtype=torch.long)
    loss = network.readout.loss(network.hidden_states(ids), ids)
    torch.rand(1)
    state = torch.get_rng_state()
    loss.backward()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["gpt2, reversible", "reformer", "reformer, translating"])
def test_a_step_leaves_no_tensors_behind(name: str):
    def alive() -> int:
        gradients(network, seed=1)
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    network = build(name).train()
    gc.collect()
    gc.disable()  # it would free some of them, much later
    try:
        alive()
        assert alive() == alive()
    finally:
        gc.enable()
