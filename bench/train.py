"""Training an encoder-decoder: our Trainer against the loop that people write around transformers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn
from transformers import MarianMTModel

from bench.harness import Result, compare, per_second
from bench.marian import as_marian
from bench.text import Bitext
from regard.errors import RunFailed
from regard.learn.optimizer import AdamW
from regard.learn.settings import Training
from regard.learn.trainer import Trainer
from regard.models.model import Model
from regard.text.batch import IGNORE
from regard.text.problem import Translation

ADAM = AdamW()


class PlainLoop:
    """Logits, cross entropy, backward, clip, step; the trainer's samples, in the trainer's order."""

    def __init__(self, model: MarianMTModel, trainer: Trainer) -> None:
        self.model, self.samples, self.settings = model.train(), trainer.samples, trainer.settings
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [weight for weight in weights if weight.dim() > 1], "weight_decay": ADAM.decay},
                {"params": [weight for weight in weights if weight.dim() == 1], "weight_decay": 0.0},
            ],
            lr=self.settings.rate,
            betas=ADAM.betas,
            eps=ADAM.epsilon,
            fused=True,
        )
        self.steps = (indices for epoch in itertools.count() for indices in trainer.plan.epoch(epoch))

    def advance(self) -> tuple[float, int]:
        """Take one step; -> its loss, and the tokens of both sides without padding."""
        indices = next(self.steps)
        batch = self.samples.batch(indices)
        self.optimizer.zero_grad(set_to_none=True)
        # Padding stands on the right, so a causal decoder needs no mask of it.
        logits = self.model(
            input_ids=batch.inputs["source_ids"],
            attention_mask=batch.inputs.get("source_padding"),
            decoder_input_ids=batch.inputs["ids"],
            use_cache=False,
        ).logits
        smoothing = self.settings.smoothing
        loss = F.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE, label_smoothing=smoothing
        )
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        return loss.item(), int(self.samples.lengths[indices].sum())


def learner(text: Bitext, description: Model, settings: Training) -> Trainer:
    """Ours, before its first step, with the optimizer that both use."""
    settings = replace(settings, optimizer=ADAM)
    torch.manual_seed(settings.seed)
    network = description.build(text.tokenizer.vocabulary)
    samples = Translation().samples(text.train, (text.tokenizer, None))
    return Trainer(network, samples, settings, torch.device("cpu"))


def measure(text: Bitext, description: Model, settings: Training, *, rounds: int, steps: int) -> Result:
    """Tokens a second, padding not counted, in blocks of `steps` optimizer steps on the same batches."""
    trainer = learner(text, description, settings)
    peer = PlainLoop(as_marian(trainer.network, text.tokenizer), trainer)
    read: dict[str, list[int]] = {"regard": [], "transformers": []}

    def steadily(name: str, advance: Callable[[], int]) -> Callable[[], float]:
        def block() -> float:
            done = [advance() for _ in range(steps)]
            read[name] += done
            return sum(done)

        return per_second(block)

    result = compare(
        "training",
        {
            "regard": steadily("regard", lambda: trainer.advance().tokens),
            "transformers": steadily("transformers", lambda: peer.advance()[1]),
        },
        rounds,
    )
    if read["regard"] != read["transformers"]:
        raise RunFailed("the two did not read the same batches, so their speeds do not compare.")
    return result
