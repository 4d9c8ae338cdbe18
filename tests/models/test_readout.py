"""The loss that never holds all logits is the loss that does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from regard.models import readouts as readout
from regard.models.readouts import SummedCrossEntropy, Vocabulary


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 30, 31, 100])
def test_it_equals_the_plain_loss_and_its_gradients(
    rows: int, biased: bool, smoothing: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(readout, "_LEAST_ROWS", 30)
    monkeypatch.setattr(readout, "_NUMBERS", {"cpu": 0})
    torch.manual_seed(0)
    states, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((rows, 12), (50, 12), (50,)))
    targets = torch.randint(0, 50, (rows,))
    given = [states, weight, bias] if biased else [states, weight]
    ours = SummedCrossEntropy.apply(states, weight, bias if biased else None, targets, smoothing) / 7
    logits = F.linear(states, weight, bias if biased else None).double()
    plain = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing) / 7
    torch.testing.assert_close(ours.double(), plain, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(torch.autograd.grad(ours, given), torch.autograd.grad(plain, given)):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_target_that_asks_for_nothing_costs_nothing():
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
    assert module.words.weight.grad is not None
    assert module.words.weight.grad.dtype == torch.float32


def test_without_gradients_none_are_worked_out():
    module = Vocabulary(tied=False, biased=True).build(8, 20, torch.nn.Embedding(20, 8))
    states, targets = torch.randn(4, 8), torch.randint(0, 20, (4,))
    seen: list[tuple[bool, ...]] = []

    class Watched(SummedCrossEntropy):
        @staticmethod
        def forward(ctx, *given):
            seen.append(ctx.needs_input_grad)
            return SummedCrossEntropy.forward(ctx, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readout, "SummedCrossEntropy", Watched)
        with torch.inference_mode():
            module.loss(states, targets)
        module.loss(states, targets)
    assert [any(needs) for needs in seen] == [False, True]
