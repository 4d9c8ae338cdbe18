"""Validation: the loss on held-out text, and metrics of what the model predicts or generates for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.data.batching import IGNORE_INDEX, BatchSampler
from regard.data.read.corpus import Corpus
from regard.data.read.texts import text_parts
from regard.data.samples import Samples
from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.unknown import UnknownText
from regard.decode.generate import QUIET, Progress, continue_prompts, translate
from regard.decode.options import Options
from regard.errors import InputError
from regard.layers.contract import CarriedMemory
from regard.metrics import agreement, bits_per_byte, correlation, perplexity, quality
from regard.models.model import Model, Network


@dataclass(frozen=True)
class Sample:
    """An output of the model, with its input and the reference."""

    source: str
    output: str
    reference: str


@dataclass(frozen=True)
class Validation:
    """The metrics of a validation by name, and a few samples."""

    metrics: dict[str, float]
    samples: list[Sample] = field(default_factory=list)


@dataclass
class Predictions:
    """The loss of a network on all samples, and its predictions with their targets."""

    loss: float = 0.0  # summed over the targets
    targets: int = 0
    predicted: list[Tensor] = field(default_factory=list)
    expected: list[Tensor] = field(default_factory=list)
    auxiliary_predicted: list[Tensor] = field(default_factory=list)
    auxiliary_expected: list[Tensor] = field(default_factory=list)


def require_metric(name: str, model: Model, *, pairs: bool) -> None:
    """Refuse to choose the best weights by a metric that validations of this model do not have."""
    metrics = {"labels": ("accuracy", "f1", "matthews"), "numbers": ("pearson", "spearman"), "vectors": ()}
    of_tokens = ("accuracy",) if model.shape == "encoder" else ("bleu", "chrf", "exact") if pairs else ()
    known = ("loss", *metrics.get(model.readout.outputs, of_tokens))
    if name not in known:
        raise InputError(f"validations of this model have no {name} (train.best). Use one of: {', '.join(known)}.")


def predict(
    network: Network, samples: Samples, batch_tokens: int, *, predictions: bool, progress: Progress = QUIET
) -> Predictions:
    """The loss on all samples, and the predictions if wanted; streams of truncated BPTT carry their memory.

    `progress` counts samples.
    """
    device, found = next(network.parameters()).device, Predictions()
    carried = CarriedMemory() if samples.streams else None
    with torch.inference_mode():
        for indices in BatchSampler(samples.lengths, batch_tokens, seed=0, streams=samples.streams).in_order():
            batch = samples.batch(indices).to(device)
            inputs: dict[str, Any] = {**batch.inputs, "carried": carried}
            states, padding = network.hidden_states(**inputs), inputs.get("padding")
            found.loss += float(network.readout.loss(states, batch.targets, 0.0, padding))
            found.targets += batch.tokens
            progress(len(indices))
            if not predictions:
                continue
            predicted, expected = predictions_of(network, states, batch.targets, padding)
            found.predicted.append(predicted)
            found.expected.append(expected)
            if batch.auxiliary is not None and network.auxiliary is not None:
                found.auxiliary_predicted.append(network.auxiliary(states, padding).argmax(-1))
                found.auxiliary_expected.append(batch.auxiliary)
    return found


def unknown_text(samples: Samples, tokenizers: tuple[Tokenizer, Tokenizer | None]) -> UnknownText:
    """What the tokenizer does not know of the texts that are predicted."""
    texts, tokenizer = samples.corpus.sides[-1], tokenizers[len(samples.corpus.sides) - 1] or tokenizers[0]
    return UnknownText.of(tokenizer, texts, set(samples.left_out.index.tolist()))


def predictions_of(
    network: Network, states: Tensor, targets: Tensor, padding: Tensor | None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The predictions of the readout wherever there is a target, and these targets."""
    readout, real = network.description.readout, targets != IGNORE_INDEX
    if not readout.tokenwise:
        outputs = network.readout(states, padding)
        return outputs.argmax(-1) if readout.outputs == "labels" else outputs[:, 0], targets
    logits = network.readout(states[real.any(-1)] if real.dim() == 3 else states[real])
    return logits[real[real.any(-1)]].argmax(-1) if real.dim() == 3 else logits.argmax(-1), targets[real]


def validate(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer | None],
    corpus: Corpus,
    samples: Samples,
    *,
    lines: int,
    displayed: int,
    batch_tokens: int,
    unknown_nats: Callable[[], float] = lambda: 0.0,
) -> Validation:
    """The loss, and the quality of the model's outputs: translations, masked tokens, labels or numbers.

    `unknown_nats` gives those of `unknown_text`, which count in the bits per byte.
    """
    model = network.description
    outputs, generates = model.readout.outputs, model.shape != "encoder" and model.readout.outputs == "tokens"
    found = predict(network, samples, batch_tokens, predictions=not generates and outputs != "vectors")
    loss = found.loss / max(1, found.targets)
    metrics = {"loss": loss}
    if found.predicted:
        predicted, expected = torch.cat(found.predicted).cpu().numpy(), torch.cat(found.expected).cpu().numpy()
        if outputs == "tokens":
            metrics["accuracy"] = float((predicted == expected).mean()) if len(predicted) else 0.0
        else:
            metrics |= correlation(predicted, expected) if outputs == "numbers" else agreement(predicted, expected)
    if found.auxiliary_predicted:
        right = torch.cat(found.auxiliary_predicted) == torch.cat(found.auxiliary_expected)
        metrics["next_sentence"] = float(right.float().mean())
    if outputs == "tokens":
        metrics["perplexity"] = perplexity(loss)
    # Span corruption has no bits per byte: not every token is a target.
    if not generates or (corpus.targets is None and model.shape != "decoder"):
        return Validation(metrics)
    metrics["bits_per_byte"] = bits_per_byte(found.loss + unknown_nats(), samples.bytes)
    if corpus.targets is None:
        text = next(text_parts(corpus.sources))[1]
        # A character is at most four tokens: the bytes of its UTF-8.
        prompt = text[: 40 if network.max_positions is None else min(40, (network.max_positions - 1) // 4)]
        continued = continue_prompts(network, tokenizers[0], [prompt], Options(max_tokens=60))[0][0].text
        return Validation(metrics, [Sample(prompt, continued, text[:120])] if displayed else [])
    sources, references = list(samples.corpus.sources[:lines]), list(corpus.targets[:lines])
    both = tokenizers[0], tokenizers[1] or tokenizers[0]
    translations = [hypotheses[0].text for hypotheses in translate(network, both, sources, Options())]
    scores = quality(translations, references)
    metrics |= {"bleu": scores.bleu, "chrf": scores.chrf, "exact": scores.exact}
    return Validation(metrics, [Sample(*row) for row in zip(sources[:displayed], translations, references)])
