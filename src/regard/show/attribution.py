"""What a prediction depends on: gradient times input, leaving a token out; their rank correlation with attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.classify import label_names
from regard.errors import InputError
from regard.models.model import Network
from regard.models.readouts import Label, MultiLabel
from regard.progress import QUIET, Progress
from regard.show.generation import IGNORED, Tokenizers, label_ids, mask_id

MAX_TOKENS = 128  # of both sides together
_ROWS = 1 << 22  # numbers of hidden states or logits that exist at once, about


def prediction_scores(network: Network, inputs: Mapping[str, Any], at: Tensor) -> Tensor:
    """BP -> BPN: log-probabilities of tokens or labels at these positions; of a text as a whole, P is 1.

    Of a regression, its number instead.
    """
    readout, states = network.description.readout, network.hidden_states(**inputs)
    if readout.tokenwise:
        logits: Tensor = network.readout(states.gather(1, at[..., None].expand(-1, -1, states.shape[-1])))
    else:
        logits = network.readout(states, inputs.get("padding"))[:, None]
    logits = logits.float()
    if readout.outputs == "numbers":
        return logits
    if isinstance(readout, Label | MultiLabel):  # whose labels may exclude each other or not
        return readout.probabilities(logits).log()
    return logits.log_softmax(-1)


def gradient_times_input(network: Network, inputs: Mapping[str, Any], at: Tensor, chosen: Tensor, side: str) -> Tensor:
    """-> BS: |gradient · embedding| of each token of a side, for the prediction chosen at one position of each text.

    `at`, `chosen`: B (Denil 2014).
    """
    embedded: list[Tensor] = []

    embed = network.source_embed if side == "source_ids" else network.embed
    with torch.inference_mode(False), torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        given = {name: one.clone() if isinstance(one, Tensor) else one for name, one in inputs.items()}
        hook = embed.register_forward_hook(lambda module, inputs, output: embedded.append(output.requires_grad_()))
        try:
            scores = prediction_scores(network, given, at.clone()[:, None])[:, 0]
        finally:
            hook.remove()
        (gradient,) = torch.autograd.grad(scores.gather(1, chosen.clone()[:, None]).sum(), embedded[0])
        return (gradient * embedded[0]).sum(-1).abs().detach().float()


@torch.no_grad()
def leave_one_out(
    network: Network, inputs: Mapping[str, Any], at: Tensor, chosen: Tensor, side: str, instead: int
) -> Tensor:  # fmt: skip
    """-> BPS: how much the chosen predictions BP change if a token is replaced by another (Li 2016)."""

    def score(given: Mapping[str, Any]) -> Tensor:
        return prediction_scores(network, given, at).gather(2, chosen[..., None])[..., 0]

    before, changes = score(inputs), []
    for token in range(inputs[side].shape[1]):
        changed = inputs[side].clone()
        changed[:, token] = instead
        changes.append((before - score({**inputs, side: changed})).abs())
    return torch.stack(changes, dim=-1)


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """BS, BS -> B: Spearman's rank correlation of each row; equal values share their mean rank. 0 if all are equal."""
    ranks = [
        (values[:, :, None] > values[:, None]).double().sum(-1)
        + (values[:, :, None] == values[:, None]).double().sum(-1) / 2
        for values in (first, second)
    ]
    centred = [rank - rank.mean(1, keepdim=True) for rank in ranks]
    product = (centred[0] * centred[1]).sum(1)
    sizes = (centred[0].square().sum(1) * centred[1].square().sum(1)).sqrt()
    return product / sizes.clamp_min(1e-12)


@dataclass(frozen=True)
class Attribution:
    """What each prediction for a text depends on, token by token of one side: P predictions, S tokens."""

    side: str  # of the S tokens: "source", or "decoder_input"
    rows: tuple[int, ...]  # P: the query that predicts
    shares: Tensor | None  # T: how much each query counts in the only prediction; None: `rows` says which one counts
    chosen: tuple[str, ...]  # P: what is predicted, or given
    scores: Tensor  # P: its log-probability, or the number
    gradient: Tensor  # PS
    left_out: Tensor  # PS
    instead: str  # the token that stands for the one left out


def attribution(
    network: Network, tokenizers: Tokenizers, inputs: Mapping[str, Any], target_ids: Sequence[int],
    progress: Progress = QUIET,
) -> Attribution | None:  # fmt: skip
    """The attribution of each prediction of one text; None for long texts and models that predict nothing of a kind.

    Tokens: each target token as given, or the best one at a mask. Labels: the best one. Numbers: the number itself.
    """
    side = "source_ids" if "source_ids" in inputs else "ids"
    tokenizer = tokenizers[0 if network.shape != "decoder" else 1]
    tokens = sum(ids.shape[1] for name, ids in inputs.items() if name in ("ids", "source_ids"))
    instead = _replacement(network, tokenizer)
    if instead is None or tokens > MAX_TOKENS or inputs[side].dim() != 2 or network.description.embed.characters:
        return None
    found = _predictions(network, tokenizers, inputs, target_ids)
    if found is None:
        return None
    rows, chosen, texts = found
    left_out = leave_one_out(network, inputs, rows[None], chosen[None], side, instead)[0]
    progress(0)
    gradients, size = [], max(1, _ROWS // (tokens * network.description.width))
    for at, wanted in zip(rows.split(size), chosen.split(size)):
        copies = {name: one.expand(len(at), *one.shape[1:]) if isinstance(one, Tensor) else one
                  for name, one in inputs.items()}  # fmt: skip
        gradients.append(gradient_times_input(network, copies, at, wanted, side))
        progress(0)
    with torch.no_grad():
        scores = prediction_scores(network, inputs, rows[None])[0].gather(1, chosen[:, None])[:, 0]
        shares = None if network.description.readout.tokenwise else network.readout.shares(inputs["ids"].shape[1])[0]
    return Attribution(
        "decoder_input" if network.shape == "decoder" else "source", tuple(rows.tolist()), shares, texts, scores,
        torch.cat(gradients), left_out, tokenizer.token_texts([instead])[0],
    )  # fmt: skip


def _replacement(network: Network, tokenizer: Tokenizer) -> int | None:
    """The token that stands for one left out: a mask if the model reads masks, else an unknown or empty one."""
    for role in (*(("mask",) if network.shape == "encoder" else ()), "unk", "pad", "bos"):
        with suppress(InputError):
            found: int = getattr(tokenizer, role)
            return found
    return None


def _predictions(
    network: Network, tokenizers: Tokenizers, inputs: Mapping[str, Any], target_ids: Sequence[int]
) -> tuple[Tensor, Tensor, tuple[str, ...]] | None:
    """-> P, P, P: the rows that predict, what each predicts, and its text."""
    readout, ids = network.description.readout, inputs["ids"]
    every = torch.arange(ids.shape[1], device=ids.device)
    rows = every if readout.tokenwise else every[:1]
    if readout.outputs == "vectors" or readout.directions > 1:
        return None
    with torch.inference_mode():
        best = prediction_scores(network, inputs, rows[None])[0].argmax(-1)
    if readout.outputs == "numbers":
        return rows, best, ("the number",)
    if readout.outputs == "labels":
        names = label_names(network)
        return rows, best, tuple(names[label] for label in best.tolist())
    labels = label_ids(network, inputs, target_ids)
    if labels is None:
        return None
    tokenizer = tokenizers[0 if network.shape == "encoder" else 1]
    if network.shape == "encoder":
        masked = labels == mask_id(tokenizer)
        labels = labels.masked_fill(masked, IGNORED)
        rows = masked.nonzero().flatten() if bool(masked.any()) else rows
    chosen = torch.where(labels == IGNORED, best, labels)[rows]
    return rows, chosen, tuple(tokenizer.token_texts(chosen.tolist()))
