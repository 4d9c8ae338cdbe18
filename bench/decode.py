"""Translating with beam search: ours against transformers' `generate`, with the same weights and tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, MarianMTModel

from bench.harness import Result, compare, per_second
from bench.marian import as_marian
from bench.text import Bitext
from bench.train import learner
from regard.api import LoadedModel
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.options import Options
from regard.metrics import quality
from regard.models.model import Model
from regard.store.loading import Loaded
from regard.training.settings import Training


@dataclass(frozen=True)
class Generate:
    """transformers' beam search over texts, sorted by length as ours; both define the same translations.

    Our length penalty is ((5 + n) / 6) ** p, theirs n ** p: they agree at p = 0, where scores are sums. There, both
    searches end when no live hypothesis can still win, unless `early` ends theirs at as many hypotheses as beams.
    """

    model: MarianMTModel
    tokenizer: Tokenizer
    options: Options
    early: bool = False

    def __call__(self, texts: Sequence[str], size: int) -> list[str]:
        """The best translation of each text, searched in batches of that many."""
        sources = [[*ids, self.tokenizer.eos] for ids in self.tokenizer.encode_batch(texts)]
        order = sorted(range(len(texts)), key=lambda index: -len(sources[index]))
        found = [""] * len(texts)
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            for index, ids in zip(batch, self._search([sources[index] for index in batch])):
                found[index] = self.tokenizer.decode(ids)
        return found

    @torch.inference_mode()
    def _search(self, sources: list[list[int]]) -> list[list[int]]:
        longest = max(map(len, sources))
        ids = torch.tensor([row + [self.tokenizer.pad] * (longest - len(row)) for row in sources])
        lengths = torch.tensor([len(row) for row in sources])
        generated = self.model.generate(
            input_ids=ids,
            attention_mask=(torch.arange(longest) < lengths[:, None]).long(),
            generation_config=GenerationConfig(
                num_beams=self.options.beam,
                length_penalty=self.options.length_penalty,
                max_new_tokens=self.options.max_tokens,
                early_stopping=self.early,
                do_sample=False,
                use_cache=True,
                pad_token_id=self.tokenizer.pad,
                eos_token_id=self.tokenizer.eos,
                bos_token_id=self.tokenizer.bos,
                decoder_start_token_id=self.tokenizer.bos,
            ),
        )
        rows: list[list[int]] = generated.tolist()
        return rows


@dataclass(frozen=True)
class Decoding:
    """The speeds and the translations."""

    result: Result
    size: int  # of the peer's batches, its fastest
    bleu: dict[str, float]
    same: int  # sentences with identical translations


def learn(text: Bitext, description: Model, settings: Training) -> LoadedModel:
    """A model trained for a few steps, so that its translations end."""
    trainer = learner(text, description, settings)
    for _ in range(settings.steps):
        trainer.advance()
    return LoadedModel(Loaded(trainer.network.eval(), (text.tokenizer, None), {}, {}))


def measure(
    text: Bitext,
    model: LoadedModel,
    options: Options,
    *,
    rounds: int,
    sentences: int,
    sizes: Sequence[int],
    early: bool = False,
) -> Decoding:
    """Sentences per second, from text to text, in blocks of `sentences`; the peer in batches of its fastest size."""
    assert text.test.targets is not None
    sources, references = list(text.test.sources[:sentences]), text.test.targets[:sentences]
    peer = Generate(as_marian(model.network, model.tokenizer).eval(), model.tokenizer, options, early)
    said: dict[str, list[str]] = {}

    def ours() -> float:
        said["regard"] = [answers[0].text for answers in model.translations(sources, options)]
        return len(sources)

    def theirs(size: int) -> float:
        said["transformers"] = peer(sources, size)
        return len(sources)

    size = fastest(peer, sources, sizes)
    result = compare("decoding", {"regard": per_second(ours), "transformers": per_second(lambda: theirs(size))}, rounds)
    bleu = {name: quality(texts, references).bleu for name, texts in said.items()}
    same = sum(one == other for one, other in zip(said["regard"], said["transformers"]))
    return Decoding(result, size, bleu, same)


def fastest(peer: Generate, sources: Sequence[str], sizes: Sequence[int], rounds: int = 3) -> int:
    """The size of batches with which the peer is fastest, all sizes taking turns."""
    if len(sizes) == 1:
        return sizes[0]

    def batched(size: int) -> Callable[[], float]:
        return per_second(lambda: len(peer(sources, size)))

    tried = {str(size): batched(size) for size in sizes}
    result = compare("sizes", tried, rounds)
    return max(sizes, key=lambda size: result.speed(str(size)).median)
