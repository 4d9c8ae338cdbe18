"""Pre-training and fine-tuning in the lab: texts in twelve languages, of which few are labelled."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.data.corpora import Split
from regard.data.corpora.languages import language_lines
from regard.data.read.corpus import Corpus
from regard.data.samples import Samples
from regard.data.tasks.base import TaskBase
from regard.data.tasks.classification import Classification
from regard.lab.claim import Trial
from regard.lab.learning import build, learn, score
from regard.lab.tasks import BYTES
from regard.models.model import Model, Network
from regard.models.readouts import Label, Mean

LANGUAGES = ("ca", "da", "de", "es", "fr", "gl", "it", "nb", "nl", "pt", "ro", "sv")
"""Languages in Latin letters, some of which are close to each other."""

LENGTH = 64
"""Bytes of a text."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the models, of the labelled text, and of both trainings."""

    width: int = 64
    depth: int = 2
    labelled: int = 96
    rows: int = 32  # per step
    steps: int = 1500  # of pre-training
    fine_tuning: int = 80  # steps


@functools.cache
def lines(split: Split, count: int) -> tuple[tuple[str, str], ...]:
    """Texts with the code of their language."""
    found = language_lines(split, lines=8 * count)
    chosen = [(line.text[: LENGTH // 2], line.language) for line in found if line.language in LANGUAGES]
    return tuple(chosen[:count])


POOL = 6000
"""Texts of the training split; a seed labels some of them."""


def labelled(split: Split, count: int, seed: int | None = None) -> Samples:
    """Texts to be classified: the first ones, or those that a seed draws from the pool."""
    if seed is None:
        chosen = lines(split, count)
    else:
        order = torch.randperm(POOL, generator=torch.Generator().manual_seed(seed))
        chosen = tuple(lines(split, POOL)[number] for number in order[:count].tolist())
    texts, labels = zip(*chosen)
    return Classification(LENGTH, LANGUAGES).samples(Corpus(texts, labels, ("languages",)), (BYTES, None))


def unlabelled(task: TaskBase) -> Samples:
    """The texts alone, for pre-training."""
    texts = [text for text, _ in lines("train", POOL)]
    return task.samples(Corpus(texts, None, ("languages",)), (BYTES, None))


def classifier(model: Model, pretrained: Network | None, seed: int) -> Network:
    """The model with a readout of labels, and the weights of a pre-trained one below it."""
    network = build(replace(model, readout=Label(LANGUAGES, Mean(), dropout=0.0)), BYTES.vocabulary, seed)
    if pretrained is not None:
        known = {name: weight for name, weight in pretrained.state_dict().items() if not name.startswith("readout")}
        network.load_state_dict(known, strict=False)
    return network


def compare(model: Model, task: TaskBase, trial: Trial[Any]) -> dict[str, float]:
    """The accuracy of a classifier from scratch and after pre-training, at equal steps of fine-tuning."""
    sizes: Sizes = trial.settings
    pretrained = build(model, BYTES.vocabulary, trial.seed)
    learn(pretrained, unlabelled(task), trial, steps=trial.scaled("steps"), batch=sizes.rows, share=0.8)
    few, test = labelled("train", sizes.labelled, trial.seed), labelled("test", 600)
    found = {}
    for name, start in {"from scratch": None, "pre-trained": pretrained}.items():
        network = classifier(model, start, trial.seed)
        learn(network, few, trial, steps=sizes.fine_tuning, batch=sizes.rows, share=0.1, learning_rate=1e-3)
        with torch.inference_mode():
            found[f"accuracy, {name}"] = score(network, test).accuracy
    return {**found, "gain": found["accuracy, pre-trained"] - found["accuracy, from scratch"]}
