"""Validation: the loss on text that is not learnt from, and what the model says of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from regard.decode.choose import Options
from regard.decode.generate import extend, translate
from regard.metrics import bits_per_byte, perplexity, quality
from regard.models.model import Network
from regard.text.batch import Plan
from regard.text.corpus import Corpus
from regard.text.samples import Samples
from regard.text.texts import pieces
from regard.text.tokenizer import Tokenizer


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


def summed_loss(network: Network, samples: Samples, batch_tokens: int) -> tuple[float, int]:
    """The summed cross entropy of all targets, and how many there are."""
    device = next(network.parameters()).device
    total, targets = 0.0, 0
    with torch.inference_mode():
        for indices in Plan(samples.lengths, batch_tokens, seed=0).in_order():
            batch = samples.batch(indices).to(device)
            total += float(network.loss(batch.inputs, batch.targets))
            targets += batch.tokens
    return total, targets


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
    """Loss, perplexity and bits per byte; of translations also BLEU, chrF and exact match of the first lines."""
    total, targets = summed_loss(network, samples, batch_tokens)
    loss = total / max(1, targets)
    numbers = {"loss": loss, "perplexity": perplexity(loss), "bits_per_byte": bits_per_byte(total, samples.bytes)}
    if corpus.targets is None:
        first = next(pieces(corpus.sources))[1]
        start = first[:40]
        said = extend(network, tokenizers[0], [start], Options(max_tokens=60))[0][0].text
        return Validation(numbers, [Sample(start, said, first[:120])] if shown else [])
    sources, references = list(corpus.sources[:lines]), list(corpus.targets[:lines])
    both = tokenizers[0], tokenizers[1] or tokenizers[0]
    said_lines = [answers[0].text for answers in translate(network, both, sources, Options())]
    found = quality(said_lines, references)
    numbers |= {"bleu": found.bleu, "chrf": found.chrf, "exact": found.exact}
    return Validation(numbers, [Sample(*row) for row in zip(sources[:shown], said_lines, references)])
