"""Training an encoder-decoder: our Trainer against the loop that people write around transformers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.harness import Result, compare, per_second
from bench.text import Bitext
from regard.data.batching import IGNORE_INDEX, Batch
from regard.data.tasks.translation import Translation
from regard.errors import RunFailed
from regard.models.model import Model
from regard.training.optimizers import AdamW
from regard.training.settings import Training
from regard.training.step import Trainer

ADAM = AdamW()
Advance = Callable[[], tuple[float, int]]
"""Takes one step; -> its loss, and the tokens of both sides without padding."""


class PlainLoop:
    """Logits, cross entropy, backward, clip, step; the trainer's samples, in the trainer's order."""

    def __init__(self, model: nn.Module, trainer: Trainer) -> None:
        self.model, self.samples, self.settings = model.train(), trainer.samples, trainer.settings
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [weight for weight in weights if weight.dim() > 1], "weight_decay": ADAM.weight_decay},
                {"params": [weight for weight in weights if weight.dim() == 1], "weight_decay": 0.0},
            ],
            lr=self.settings.learning_rate,
            betas=ADAM.betas,
            eps=ADAM.epsilon,
            fused=True,
        )
        self.steps = (indices for epoch in itertools.count() for indices in trainer.batches.epoch(epoch))

    def advance(self) -> tuple[float, int]:
        """Take one step; -> its loss, and the tokens of both sides without padding."""
        indices = next(self.steps)
        batch = self.samples.batch(indices)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        return loss.item(), int(self.samples.lengths[indices].sum())

    def loss(self, batch: Batch) -> Tensor:
        """The mean over a batch's targets."""
        # Padding is on the right, so a causal decoder needs no mask of it.
        logits = self.model(
            input_ids=batch.inputs["source_ids"],
            attention_mask=batch.inputs.get("source_padding"),
            decoder_input_ids=batch.inputs["ids"],
            use_cache=False,
        ).logits
        smoothing = self.settings.label_smoothing
        return F.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE_INDEX, label_smoothing=smoothing
        )


def learner(text: Bitext, description: Model, settings: Training) -> Trainer:
    """Ours, before its first step, with the optimizer that both use."""
    settings = replace(settings, optimizer=ADAM)
    torch.manual_seed(settings.seed)
    network = description.build(text.tokenizer.vocabulary)
    samples = Translation().samples(text.train, (text.tokenizer, None))
    return Trainer(network, samples, settings, torch.device("cpu"))


def measure(text: Bitext, description: Model, settings: Training, *, rounds: int, steps: int) -> Result:
    """Tokens per second, padding not counted, in blocks of `steps` optimizer steps on the same batches."""
    from bench.marian import as_marian

    trainer = learner(text, description, settings)
    peer = PlainLoop(as_marian(trainer.network, text.tokenizer), trainer)
    return in_turns({"regard": advancing(trainer), "transformers": peer.advance}, rounds=rounds, steps=steps)[0]


def advancing(trainer: Trainer) -> Advance:
    """Our trainer's step, as a contestant's."""

    def advance() -> tuple[float, int]:
        step = trainer.advance()
        return step.loss, step.tokens

    return advance


def in_turns(contestants: Mapping[str, Advance], *, rounds: int, steps: int) -> tuple[Result, dict[str, list[float]]]:
    """Blocks of `steps` steps in turns; -> tokens per second, and the loss of every step, warm-up first."""
    read: dict[str, list[int]] = {name: [] for name in contestants}
    losses: dict[str, list[float]] = {name: [] for name in contestants}

    def steadily(name: str) -> Callable[[], float]:
        def block() -> float:
            done = [contestants[name]() for _ in range(steps)]
            losses[name] += [loss for loss, _ in done]
            read[name] += [tokens for _, tokens in done]
            return sum(tokens for _, tokens in done)

        return per_second(block)

    result = compare("training", {name: steadily(name) for name in contestants}, rounds)
    first, *others = read.values()
    if any(other != first for other in others):
        raise RunFailed("the two did not read the same batches, so their speeds do not compare.")
    return result, losses
