"""Readouts: the chunked cross entropy against the plain one, and the mix of layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from regard.models import readouts
from regard.models.readouts import ChunkedCrossEntropy, LayerMix, Vocabulary


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 30, 31, 100])
def test_chunked_cross_entropy_has_the_loss_and_gradients_of_the_plain_one(
    rows: int, biased: bool, smoothing: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(readouts, "_LEAST_ROWS", 30)
    monkeypatch.setattr(readouts, "_CHUNK_LOGITS", {"cpu": 0})
    torch.manual_seed(0)
    states, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((rows, 12), (50, 12), (50,)))
    targets = torch.randint(0, 50, (rows,))
    inputs = [states, weight, bias] if biased else [states, weight]
    ours = ChunkedCrossEntropy.apply(states, weight, bias if biased else None, targets, smoothing) / 7
    logits = F.linear(states, weight, bias if biased else None).double()
    plain = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing) / 7
    torch.testing.assert_close(ours.double(), plain, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(plain, inputs)):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_ignored_targets_cost_nothing():
    torch.manual_seed(0)
    module = Vocabulary(tied=False, biased=True).build(8, 20, torch.nn.Embedding(20, 8))
    states, targets = torch.randn(2, 5, 8), torch.randint(0, 20, (2, 5))
    targets[0, 3:] = -100
    expected = F.cross_entropy(module(states).flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
    torch.testing.assert_close(module.loss(states, targets), expected)


def test_it_works_in_mixed_precision():
    torch.manual_seed(0)
    module = Vocabulary(tied=False).build(8, 20, torch.nn.Embedding(20, 8))
    states, targets = torch.randn(40, 8, requires_grad=True), torch.randint(0, 20, (40,))
    exact = module.loss(states, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = module.loss(states.bfloat16(), targets)
    rough.backward()
    torch.testing.assert_close(rough, exact, rtol=2e-2, atol=0.0)
    assert module.lm_head.weight.grad is not None
    assert module.lm_head.weight.grad.dtype == torch.float32


def test_gradients_are_not_computed_when_none_are_needed():
    module = Vocabulary(tied=False, biased=True).build(8, 20, torch.nn.Embedding(20, 8))
    states, targets = torch.randn(4, 8), torch.randint(0, 20, (4,))
    needed: list[tuple[bool, ...]] = []

    class Observed(ChunkedCrossEntropy):
        @staticmethod
        def forward(ctx, *inputs):
            needed.append(ctx.needs_input_grad)
            return ChunkedCrossEntropy.forward(ctx, *inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readouts, "ChunkedCrossEntropy", Observed)
        with torch.inference_mode():
            module.loss(states, targets)
        module.loss(states, targets)
    assert [any(needs) for needs in needed] == [False, True]


def layer_states() -> list[torch.Tensor]:
    return [torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


def test_a_new_layer_mix_is_the_mean():
    torch.testing.assert_close(LayerMix().build(3)(layer_states()), torch.stack(layer_states()).mean(0))


def test_a_layer_mix_is_a_scaled_softmax_weighted_sum():
    mix = LayerMix().build(3)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.0, 2.0, -1.0]))
        mix.scale.fill_(1.5)
    weights = torch.tensor([0.0, 2.0, -1.0]).exp()
    expected = sum(1.5 * weight / weights.sum() * state for weight, state in zip(weights, layer_states()))
    torch.testing.assert_close(mix(layer_states()), expected)
    mix(layer_states()).sum().backward()
    assert mix.weights.grad is not None
    assert mix.weights.grad.any()


def test_normed_states_have_mean_0_and_variance_1_per_token():
    mix = LayerMix(normed=True).build(1)
    found = mix([5 + 3 * layer_states()[0]])
    torch.testing.assert_close(found.mean(-1), torch.zeros(2, 5), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.var(-1, unbiased=False), torch.ones(2, 5))
    torch.testing.assert_close(mix([5 + 3 * layer_states()[0][:1]]), found[:1])
