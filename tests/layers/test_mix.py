"""One state of what all layers say."""

from __future__ import annotations

import torch

from regard.models.readouts import Mix


def states() -> list[torch.Tensor]:
    return [torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


def test_a_new_mix_is_the_mean():
    torch.testing.assert_close(Mix().build(3)(states()), torch.stack(states()).mean(0))


def test_states_are_weighed_by_a_softmax_and_scaled():
    mix = Mix().build(3)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.0, 2.0, -1.0]))
        mix.scale.fill_(1.5)
    odds = torch.tensor([0.0, 2.0, -1.0]).exp()
    expected = sum(1.5 * odd / odds.sum() * state for odd, state in zip(odds, states()))
    torch.testing.assert_close(mix(states()), expected)
    mix(states()).sum().backward()
    assert mix.weights.grad is not None
    assert mix.weights.grad.any()


def test_normed_states_have_mean_0_and_variance_1_token_by_token():
    mix = Mix(normed=True).build(1)
    found = mix([5 + 3 * states()[0]])
    torch.testing.assert_close(found.mean(-1), torch.zeros(2, 5), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.var(-1, unbiased=False), torch.ones(2, 5))
    torch.testing.assert_close(mix([5 + 3 * states()[0][:1]]), found[:1])
