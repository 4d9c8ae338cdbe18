"""Pooling, activations and probabilities in numpy are those of torch, whatever an engine leaves in padding."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

from regard.engines.head import Activation, Head, activated, pooled, unit
from regard.layers.feedforward import activate
from regard.models.readouts import First, Label, Last, Max, Mean, MultiLabel, Pool, WeightedMean

POOLS: dict[str, Pool] = {
    "first": First(), "last": Last(), "mean": Mean(), "max": Max(), "weighted_mean": WeightedMean()
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_pooling_ignores_padding_as_in_torch(name: str):
    torch.manual_seed(1)
    states, lengths = torch.randn(3, 5, 4), torch.tensor([5, 2, 1])
    padding = torch.arange(5) < lengths[:, None]
    states[~padding] = 1e6
    expected = POOLS[name].pool(states.masked_fill(~padding[..., None], 0.0), padding)
    found = pooled(name, states.numpy(), lengths.numpy())  # type: ignore[arg-type]  # a pooling by name
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", get_args(Activation))
def test_activations_are_those_of_torch(name: Activation):
    x = torch.linspace(-6, 6, 101)
    np.testing.assert_allclose(activated(name, x.numpy()), activate(x, name).numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("several", [False, True])
def test_probabilities_are_those_of_torch(several: bool):
    logits = torch.tensor([[2.0, -1.0, 80.0], [0.0, 0.0, -90.0]])
    readout = MultiLabel(("a", "b", "c")) if several else Label(("a", "b", "c"))
    head = Head("several_labels" if several else "labels")
    np.testing.assert_allclose(head.probabilities(logits.numpy()), readout.probabilities(logits).numpy(), atol=1e-6)


def test_a_vector_of_zeros_has_no_direction():
    assert unit(np.zeros((1, 3), dtype=np.float32)).tolist() == [[0.0, 0.0, 0.0]]
