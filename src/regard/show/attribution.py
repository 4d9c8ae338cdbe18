"""What a prediction depends on: gradient times input, leaving a token out; their rank correlation with attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.models.model import Network


def log_probability(network: Network, inputs: Mapping[str, Any], at: int) -> Tensor:
    """-> BN: the log-probabilities that the network gives at one position."""
    logits: Tensor = network.readout(network.hidden_states(**inputs)[:, at])
    return logits.log_softmax(-1)


def gradient_times_input(network: Network, inputs: Mapping[str, Any], at: int, predicted: Tensor, side: str) -> Tensor:
    """-> BS: |gradient · embedding| of each token of a side, for the prediction at a position (Denil 2014)."""
    embedded: list[Tensor] = []
    embed = network.source_embed if side == "source_ids" else network.embed
    hook = embed.register_forward_hook(lambda module, given, output: embedded.append(output))
    try:
        with torch.enable_grad():
            chosen = log_probability(network, inputs, at).gather(1, predicted[:, None]).sum()
    finally:
        hook.remove()
    (gradient,) = torch.autograd.grad(chosen, embedded[0])
    return (gradient * embedded[0]).sum(-1).abs().detach()


@torch.no_grad()
def leave_one_out(
    network: Network, inputs: Mapping[str, Any], at: int, predicted: Tensor, side: str, instead: int
) -> Tensor:  # fmt: skip
    """-> BS: how much the log-probability of the prediction changes if a token is replaced by another (Li 2016)."""
    before = log_probability(network, inputs, at).gather(1, predicted[:, None])
    changes = []
    for token in range(inputs[side].shape[1]):
        changed = inputs[side].clone()
        changed[:, token] = instead
        after = log_probability(network, {**inputs, side: changed}, at).gather(1, predicted[:, None])
        changes.append((before - after).abs())
    return torch.cat(changes, dim=1)


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """BS, BS -> B: Spearman's rank correlation of each row; ties are ranked in order."""
    ranks = [values.argsort(1).argsort(1).double() for values in (first, second)]
    centred = [rank - rank.mean(1, keepdim=True) for rank in ranks]
    product = (centred[0] * centred[1]).sum(1)
    sizes = (centred[0].square().sum(1) * centred[1].square().sum(1)).sqrt()
    return product / sizes.clamp_min(1e-12)
