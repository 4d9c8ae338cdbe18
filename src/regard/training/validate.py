"""Validation: the loss on text that is not learnt from, and what the model says of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.data.batching import IGNORE, Plan
from regard.data.read.corpus import Corpus
from regard.data.read.texts import pieces
from regard.data.samples import Samples
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.generate import extend, translate
from regard.decode.options import Options
from regard.errors import InputError
from regard.layers.contract import Past
from regard.metrics import agreement, bits_per_byte, correlation, perplexity, quality
from regard.models.model import Model, Network


@dataclass(frozen=True)
class Sample:
    """Something the model said, with what it was asked and what would have been right."""

    source: str
    said: str
    expected: str


@dataclass(frozen=True)
class Validation:
    """The numbers of a validation, by name, and a few samples."""

    numbers: dict[str, float]
    samples: list[Sample] = field(default_factory=list)


@dataclass
class Reading:
    """What a network said of all samples, where something was asked, and what was right."""

    loss: float = 0.0  # summed over the targets
    targets: int = 0
    said: list[Tensor] = field(default_factory=list)
    right: list[Tensor] = field(default_factory=list)
    aside_said: list[Tensor] = field(default_factory=list)
    aside_right: list[Tensor] = field(default_factory=list)


def require_measure(name: str, model: Model, *, pairs: bool) -> None:
    """Refuse to look for the best weights by a number that no validation of this model gives."""
    says = {"names": ("accuracy", "f1", "matthews"), "numbers": ("pearson", "spearman"), "vectors": ()}
    words = ("accuracy",) if model.decoder is None else ("bleu", "chrf", "exact") if pairs else ()
    known = ("loss", *says.get(model.readout.says, words))
    if name not in known:
        raise InputError(f"validations of this model have no {name} (train.best). Use one of: {', '.join(known)}.")


def summed_loss(network: Network, samples: Samples, batch_tokens: int) -> tuple[float, int]:
    """The summed loss of all targets, and how many there are."""
    read = read_through(network, samples, batch_tokens, answers=False)
    return read.loss, read.targets


def read_through(network: Network, samples: Samples, batch_tokens: int, *, answers: bool) -> Reading:
    """Read every sample once, lanes as they go on."""
    device, found = next(network.parameters()).device, Reading()
    past = Past() if samples.lanes else None
    with torch.inference_mode():
        for indices in Plan(samples.lengths, batch_tokens, seed=0, lanes=samples.lanes).in_order():
            batch = samples.batch(indices).to(device)
            inputs: dict[str, Any] = {**batch.inputs, "past": past}
            states, padding = network.hidden_states(**inputs), inputs.get("padding")
            found.loss += float(network.readout.loss(states, batch.targets, 0.0, padding))
            found.targets += batch.tokens
            if not answers:
                continue
            said, right = asked(network, states, batch.targets, padding)
            found.said.append(said)
            found.right.append(right)
            if batch.auxiliary is not None and network.auxiliary is not None:
                found.aside_said.append(network.auxiliary(states, padding).argmax(-1))
                found.aside_right.append(batch.auxiliary)
    return found


def asked(network: Network, states: Tensor, targets: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
    """What a network says where something is asked, and what is right."""
    readout, real = network.description.readout, targets != IGNORE
    if not readout.tokenwise:
        said = network.readout(states, padding)
        return said.argmax(-1) if readout.says == "names" else said[:, 0], targets
    logits = network.readout(states[real.any(-1)] if real.dim() == 3 else states[real])
    return logits[real[real.any(-1)]].argmax(-1) if real.dim() == 3 else logits.argmax(-1), targets[real]


def validate(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer | None],
    corpus: Corpus,
    samples: Samples,
    *,
    lines: int,
    shown: int,
    batch_tokens: int,
) -> Validation:
    """The loss, and how good what the model says is: of translations, of words it was asked for, of labels."""
    model = network.description
    speaks = model.decoder is not None and model.readout.says == "words"
    read = read_through(network, samples, batch_tokens, answers=not speaks and model.readout.says != "vectors")
    loss = read.loss / max(1, read.targets)
    numbers = {"loss": loss}
    if read.said:
        said, right = torch.cat(read.said).cpu().numpy(), torch.cat(read.right).cpu().numpy()
        if model.readout.says == "words":
            numbers["accuracy"] = float((said == right).mean()) if len(said) else 0.0
        else:
            numbers |= correlation(said, right) if model.readout.says == "numbers" else agreement(said, right)
    if read.aside_said:
        numbers["next"] = float((torch.cat(read.aside_said) == torch.cat(read.aside_right)).float().mean())
    if model.readout.says == "words":
        numbers["perplexity"] = perplexity(loss)
    if not speaks:
        return Validation(numbers)
    if corpus.targets is None and model.encoder is not None:  # spans of a text, not all of it
        return Validation(numbers)
    numbers["bits_per_byte"] = bits_per_byte(read.loss, samples.bytes)
    if corpus.targets is None:
        first = next(pieces(corpus.sources))[1]
        start = first[:40]
        said_text = extend(network, tokenizers[0], [start], Options(max_tokens=60))[0][0].text
        return Validation(numbers, [Sample(start, said_text, first[:120])] if shown else [])
    sources, references = list(samples.corpus.sources[:lines]), list(corpus.targets[:lines])
    both = tokenizers[0], tokenizers[1] or tokenizers[0]
    said_lines = [answers[0].text for answers in translate(network, both, sources, Options())]
    found = quality(said_lines, references)
    numbers |= {"bleu": found.bleu, "chrf": found.chrf, "exact": found.exact}
    return Validation(numbers, [Sample(*row) for row in zip(sources[:shown], said_lines, references)])
