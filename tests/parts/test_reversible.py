"""A reversible stack learns what a plain one that keeps everything would learn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.models.model import Network
from regard.parts.reversible import InTurn
from tests.laws.zoo import VOCABULARY, build

NAMES = ["reversible", "reversible, relative bias", "gpt2, reversible"]


def gradients(network: Network, seed: int) -> tuple[float, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, VOCABULARY, (3, 11), generator=generator)
    inputs = {}
    if network.encoder is not None:
        inputs["source_ids"] = torch.randint(3, VOCABULARY, (3, 9), generator=generator)
        inputs["source_padding"] = torch.arange(9) < torch.tensor([9, 4, 6])[:, None]
    torch.manual_seed(seed)
    loss = network.readout.loss(network.states(ids, **inputs), ids.roll(-1, 1))
    network.zero_grad()
    loss.backward()
    return loss.item(), {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("training", [False, True])
def test_gradients_equal_those_of_a_stack_that_keeps_everything(name: str, training: bool, monkeypatch):
    network = build(name).train(training)
    loss, found = gradients(network, seed=7)

    def keeps_everything(self, x, context, memory=None):
        assert memory is None
        pair = (x, x)
        for number, layer in enumerate(self.layers):
            pair, _ = layer(pair, context.under(str(number)), None, None)
        return (pair[0] + pair[1]) * 0.5, None

    if training:  # slices draw their dropout piece by piece; a plain run draws it at once
        for module in network.modules():
            if hasattr(module, "slice_length"):
                module.slice_length = 1000
        loss, found = gradients(network, seed=7)
    monkeypatch.setattr(InTurn, "forward", keeps_everything)
    plain_loss, plain = gradients(network, seed=7)
    assert loss == pytest.approx(plain_loss, rel=1e-5)
    assert found.keys() == plain.keys()
    for key, gradient in plain.items():
        assert (found[key] - gradient).norm() <= 1e-5 * gradient.norm().clamp_min(1e-3), key


def test_the_source_and_the_bias_get_their_gradients():
    network = build("reversible, relative bias")
    _, found = gradients(network, seed=1)
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert found["source_embed.table.weight" if "source_embed.table.weight" in found else "embed.table.weight"].norm()
    assert found["decoder.bias.table.weight"].norm() > 0
    assert found["encoder.bias.table.weight"].norm() > 0


def test_going_backward_twice_is_refused():
    network, ids = build("gpt2, reversible"), torch.ones(1, 4, dtype=torch.long)
    loss = network.readout.loss(network.states(ids), ids)
    loss.backward(retain_graph=True)
    with pytest.raises((AssertionError, RuntimeError), match=r"once|second time"):
        loss.backward()
