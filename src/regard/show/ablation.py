"""Ablation: switch attention heads off, and measure how the loss and the predictions change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decode.classify import label_names
from regard.decode.generate import generate_texts, translation_request
from regard.decode.options import Options
from regard.errors import InputError
from regard.layers.contract import Ablation, Context, facts_of
from regard.models.model import Network
from regard.progress import QUIET, Progress
from regard.show.generation import IGNORED, Tokenizers, label_ids, token_probabilities

Head = tuple[str, int]
"""The name of a layer, and the index of a head."""

Changes = list[list[Any]]
"""Row, prediction before, prediction after; the row of a prediction about the whole text is -1."""

Measure = Callable[[Tensor], tuple[float, Changes]]
"""The hidden states 1TD of the ablated model -> its loss, and the predictions that change."""


def attention_heads(network: Network) -> dict[str, int]:
    """The number of heads of each attention layer, by its name."""
    return {
        f"{name}.{number}.{part.name}": heads
        for name, stack in network.description.stacks.items()
        for number, layer in enumerate(stack.layers)
        for part in layer
        if (heads := facts_of(part).heads)
    }


@torch.inference_mode()
def ablate_each_head(
    network: Network,
    tokenizers: Tokenizers,
    inputs: Mapping[str, Any],
    target_ids: Sequence[int],
    layers: Mapping[str, int],
    *,
    progress: Progress = QUIET,
) -> dict[str, Any]:
    """The loss with each single head of these layers switched off, and the predictions that change.

    Tokens: the mean negative log-likelihood, in nats per token, of the target or else of the text (of a text of one
    token: of the unablated model's prediction). Labels: that of the unablated model's label. Numbers: the difference.
    Vectors: the cosine distance.
    """
    states = _hidden_states(network, inputs)
    baseline = states(())
    unit, measure = _measure(network, tokenizers, inputs, target_ids, baseline)
    heads = []
    for layer, head in ((layer, head) for layer, count in layers.items() for head in range(count)):
        loss, changed = measure(states([(layer, head)]))
        heads.append({"layer": layer, "head": head, "loss": loss, "changed": changed})
        progress(1)
    return {"loss": measure(baseline)[0], "unit": unit, "heads": heads}


@torch.inference_mode()
def ablate(
    network: Network,
    tokenizers: Tokenizers,
    inputs: Mapping[str, Any],
    target_ids: Sequence[int],
    heads: Sequence[Head],
    *,
    options: Options = Options(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """The loss with all of these heads switched off at once; of an encoder-decoder also its new translation.

    `options`: how to search for the translation.
    """
    known = attention_heads(network)
    for layer, head in heads:
        if not 0 <= head < known.get(layer, 0):
            raise InputError(f'this model has no head {head} in "{layer}". Name one that it has.')
    states = _hidden_states(network, inputs)
    _, measure = _measure(network, tokenizers, inputs, target_ids, states(()))
    loss, changed = measure(states(heads))
    output = None
    if "source_ids" in inputs:
        request = translation_request(network, tokenizers[1], tuple(inputs["source_ids"][0].tolist()), options)
        output = generate_texts(network, tokenizers[1], [request], options, ablation=_ablation(heads))[0][0].text
    return {"loss": loss, "changed": changed, "output": output}


def _ablation(heads: Iterable[Head]) -> Ablation:
    off: dict[str, tuple[int, ...]] = {}
    for layer, head in heads:
        off[layer] = (*off.get(layer, ()), head)
    return Ablation(off)


def _hidden_states(network: Network, inputs: Mapping[str, Any]) -> Callable[[Sequence[Head]], Tensor]:
    """Heads -> the hidden states 1TD without them; the source is encoded again only if an encoder head is off."""
    source = None
    if inputs.keys() == {"ids", "source_ids"} and network.mix is None:
        source = network.encode_source(inputs["source_ids"])

    def states(heads: Sequence[Head]) -> Tensor:
        ablation = _ablation(heads)
        if source is None or any(layer.startswith("encoder.") for layer, _ in heads):
            return network.hidden_states(**inputs, ablation=ablation)
        return network.decode(inputs["ids"], Context(source=source, ablation=ablation))[0]

    return states


def _measure(
    network: Network, tokenizers: Tokenizers, inputs: Mapping[str, Any], target_ids: Sequence[int], baseline: Tensor
) -> tuple[str, Measure]:
    """The unit of the loss, and the function that compares an ablated model with the baseline's hidden states."""
    readout = network.description.readout
    names = label_names(network) if readout.outputs == "labels" else ()
    if readout.outputs == "numbers":
        return "change of the number", _number_change(network, baseline)
    if readout.outputs == "labels" and not readout.tokenwise:
        return _label_loss(network, baseline, names)
    # Of tags, the labels are those that the unablated model predicts.
    labels = network.readout(baseline)[0].argmax(-1) if names else label_ids(network, inputs, target_ids)
    if labels is None:
        return "cosine distance", _vector_distance(network, baseline)
    tokenizer = tokenizers[network.shape == "encoder-decoder"]

    def texts(numbers: list[int]) -> list[str]:
        return [names[n] for n in numbers] if names else tokenizer.token_texts(numbers)

    return "nats per token", _token_loss(network, baseline, labels, texts)


def _token_loss(network: Network, baseline: Tensor, labels: Tensor, texts: Callable[[list[int]], list[str]]) -> Measure:
    """The mean negative log-likelihood of the labels, in nats per token."""
    labelled = labels != IGNORED
    before = token_probabilities(network, baseline[0], labels, 1)[2][:, 0]
    if not bool(labelled.any()):  # a text of one token has no next token: take the baseline's prediction
        labels, labelled = before, torch.ones_like(labelled)

    def measure(states: Tensor) -> tuple[float, Changes]:
        logs, _, best = token_probabilities(network, states[0], labels, 1)
        rows = (best[:, 0] != before).nonzero().flatten()
        pairs = zip(rows.tolist(), texts(before[rows].tolist()), texts(best[rows, 0].tolist()))
        return float(-logs[labelled].mean()), [list(pair) for pair in pairs]

    return measure


def _label_loss(network: Network, baseline: Tensor, names: Sequence[str]) -> tuple[str, Measure]:
    """The negative log-likelihood of the label that the unablated model predicts, in nats."""

    def values(states: Tensor) -> Tensor:
        logits: Tensor = network.readout(states)[0]
        return logits.float().log_softmax(-1)

    before = int(values(baseline).argmax())

    def measure(states: Tensor) -> tuple[float, Changes]:
        found = values(states)
        after = int(found.argmax())
        return float(-found[before]), [[-1, names[before], names[after]]] if after != before else []

    return f"nats, label {names[before]}", measure


def _number_change(network: Network, baseline: Tensor) -> Measure:
    """The change of the predicted number."""
    before = float(network.readout(baseline))

    def measure(states: Tensor) -> tuple[float, Changes]:
        after = float(network.readout(states))
        texts = f"{before:.3g}", f"{after:.3g}"
        return after - before, [[-1, *texts]] if texts[0] != texts[1] else []

    return measure


def _vector_distance(network: Network, baseline: Tensor) -> Measure:
    """The cosine distance of the text's vector, or the mean over hidden states where no token is predicted."""

    def vectors(states: Tensor) -> Tensor:
        found: Tensor = network.readout(states) if network.description.readout.outputs == "vectors" else states
        return found

    before = vectors(baseline)
    return lambda states: (float(1 - F.cosine_similarity(vectors(states), before, dim=-1).mean()), [])
