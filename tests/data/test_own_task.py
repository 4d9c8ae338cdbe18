"""A task of one's own: read from a recipe's table, turned into samples, batched, cached and trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard import zoo
from regard.data.batching import IGNORE_INDEX, Batch, BatchSampler, Indices, MixtureComponent
from regard.data.character_samples import with_characters
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.samples import ChunkSamples, LeftOut, chunk_documents
from regard.data.tasks import Task
from regard.data.tasks.base import ModelShape, TaskBase, Tokenizers
from regard.data.tokenize.encode import Template, padding_mask
from regard.data.tokenize.train import Character, Word
from regard.errors import InputError
from regard.schema import from_dict, to_dict

CORPUS = Corpus(["abcabc", "bcabca", "cabc", "abca"] * 8, None, ("t.txt",))
CHARACTER = Character().train(CORPUS.sources)


@dataclass(frozen=True)
class EverySecond(TaskBase):
    """Predict every second token, in chunks of documents."""

    length: int = 8
    model_shape: ClassVar[ModelShape | None] = "decoder"

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, bpe_dropout: float = 0.0  # noqa: B008
    ) -> EverySecondSamples:  # fmt: skip
        chunks = chunk_documents(corpus, tokenizers[0], cache, max_tokens=self.length - 2)
        return EverySecondSamples(chunks=chunks, template=Template.of(tokenizers[0]))


@dataclass(frozen=True, eq=False, kw_only=True)
class EverySecondSamples(ChunkSamples):
    @property
    def lengths(self) -> NDArray[Any]:
        return np.asarray(self.chunks.lengths)[:, None] + 2

    def batch(self, indices: Sequence[int] | Indices, seed: int | None = None) -> Batch:
        filled = self.template.fill([self.chunks.tokens(np.asarray(indices, dtype=np.int64))])
        targets = np.full_like(filled.ids, IGNORE_INDEX)
        targets[:, :-1:2] = filled.ids[:, 1::2]
        targets[targets == self.template.pad] = IGNORE_INDEX
        inputs = {"ids": torch.from_numpy(filled.ids), **padding_mask("padding", filled.lengths)}
        return Batch(inputs, torch.from_numpy(targets), tuple(np.asarray(indices).tolist()))


class Counting:
    """Samples without any base class: rows that count upwards, and the corpus is not even read."""

    text_lengths: tuple[NDArray[Any], ...] = ()
    left_out = LeftOut()
    mixture = (MixtureComponent(20),)
    bytes, streams = 60, 0
    lengths = np.full((20, 1), 3)

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, indices: Sequence[int] | Indices, seed: int | None = None) -> Batch:
        ids = torch.as_tensor(np.asarray(indices))[:, None] % 2 + torch.arange(5, 8)
        return Batch({"ids": ids}, ids + 1, tuple(np.asarray(indices).tolist()))

    def where(self, indices: Sequence[int] | Indices) -> str:
        return self.corpus.where(indices)


def losses(samples: Any, vocabulary: int, epochs: int = 30) -> list[float]:
    """The last loss of each epoch of a small language model."""
    torch.manual_seed(0)
    network = zoo.gpt2(width=16, depth=1, heads=2).build(vocabulary)
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    sampler, found = BatchSampler(samples.lengths, 64, 1, samples.mixture, samples.streams), []
    for epoch in range(epochs):
        batches = [samples.batch(step, epoch) for step in sampler.epoch(epoch)]
        for batch in batches:
            optimizer.zero_grad()
            loss = network.loss(batch.inputs, batch.targets) / batch.tokens
            loss.backward()
            optimizer.step()
        found.append(float(loss))
    return found


def test_a_task_of_ones_own_is_one_of_the_kinds_a_recipe_may_name() -> None:
    for written, expected in (("every_second", EverySecond()), ({"kind": "every_second", "length": 5}, EverySecond(5))):
        assert from_dict(Task, written, where="text.task", also=[EverySecond]) == expected
        assert from_dict(Task, to_dict(expected), where="text.task", also=[EverySecond]) == expected
    with pytest.raises(InputError, match="every_second"):
        from_dict(Task, "every_second", where="text.task")


def test_its_samples_are_cached_batched_and_trained_on(tmp_path: Path) -> None:
    task = EverySecond(6)
    for cache in (Cache(), Cache(tmp_path), Cache(tmp_path)):
        samples = task.samples(task.tokenizer_text(CORPUS), (CHARACTER, None), cache)
        assert (len(samples), samples.lengths.max(), samples.bytes) == (48, 6, 160)
        batch = samples.batch([0])
        assert (batch.targets[0] != IGNORE_INDEX).tolist() == [True, False, True, False, False]
    found = losses(samples, CHARACTER.vocabulary)
    assert found[-1] < found[0] / 2


def test_its_samples_need_no_base_class() -> None:
    found = losses(Counting(CORPUS), 10)
    assert found[-1] < found[0] / 4


def test_it_has_defaults_for_all_but_samples_and_can_be_read_as_characters() -> None:
    task = EverySecond()
    assert (task.labels, task.max_positions, task.outputs, task.directions, task.aligned) == ((), 0, "tokens", 1, False)
    assert task.with_labels_from(CORPUS) is task
    words = Word().train(CORPUS.sources)
    samples = with_characters(task.samples(CORPUS, (words, None)), words, 9)
    assert samples.batch([0, 1]).inputs["ids"].shape == (2, 3, 9)
    with pytest.raises(NotImplementedError, match="TaskBase must define samples"):
        TaskBase().samples(CORPUS, (words, None))
