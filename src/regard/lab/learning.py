"""Training in the lab: synthetic rows as samples, and short runs of the trainer at equal steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching import IGNORE_INDEX, Batch, Indices, MixtureComponent
from regard.data.samples import Samples
from regard.lab.claim import Trial
from regard.models.model import Model, Network
from regard.training.optimizers import AdamW, Linear
from regard.training.settings import Training
from regard.training.step import Trainer
from regard.training.validate import predict

CPU = torch.device("cpu")
_PADDINGS = {"ids": "padding", "source_ids": "source_padding"}


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples of a synthetic task: inputs and targets, a row per sample; `lengths` where rows differ, padded right."""

    inputs: Mapping[str, Tensor]  # "ids", and "source_ids" of an encoder-decoder
    targets: Tensor  # IGNORE_INDEX where there is no loss
    sizes: Mapping[str, Tensor] = field(default_factory=dict)  # lengths of rows, where they differ
    mixture: tuple[MixtureComponent, ...] = ()
    streams: int = 0

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Samples by sides."""
        sides = [self.sizes.get(name, torch.full((len(self),), ids.shape[1])) for name, ids in self.inputs.items()]
        return torch.stack(sides, dim=1).numpy()

    def batch(self, indices: Sequence[int] | Indices, seed: int | None = None) -> Batch:
        """The rows at these indices, cut to the longest."""
        chosen = torch.as_tensor(np.asarray(indices, dtype=np.int64))
        inputs, targets = {}, self.targets[chosen]
        for name, ids in self.inputs.items():
            inputs[name] = ids[chosen]
            if name in self.sizes:
                sizes = self.sizes[name][chosen]
                inputs[name] = inputs[name][:, : int(sizes.max())]
                if name == "ids" and targets.dim() == 2:
                    targets = targets[:, : int(sizes.max())]
                if int(sizes.min()) < int(sizes.max()):
                    inputs[_PADDINGS[name]] = torch.arange(int(sizes.max())) < sizes[:, None]
        return Batch(inputs, targets, tuple(chosen.tolist()))

    def where(self, indices: Sequence[int] | Indices) -> str:
        """Synthetic rows come from no file."""
        return "a synthetic task"


AnySamples = Rows | Samples


def build(model: Model, vocabulary: int, seed: int) -> Network:
    """The network with the initial weights of a seed."""
    torch.manual_seed(seed)
    return model.build(vocabulary)


def learn(
    network: Network,
    samples: AnySamples,
    trial: Trial[Any],
    *,
    steps: int,
    batch: int = 32,
    share: float = 1.0,
    after: Callable[[int, float], None] | None = None,
    **settings: Any,
) -> Network:
    """Train with the trainer of `regard train`: AdamW, a linear schedule with a short warm-up, clipping at 1.

    `batch`: rows per step; `share`: of the trial, for its progress; `after(step, loss)` sees each step; other settings
    are those of the [train] table.
    """
    given = {
        "learning_rate": 3e-3, "schedule": Linear(warmup=max(1, steps // 20)), "label_smoothing": 0.0,
        "optimizer": AdamW(weight_decay=0.0), "precision": "float32",
        "batch_tokens": batch * int(np.asarray(samples.lengths).max(0).sum()), **settings,
    }  # fmt: skip
    trainer = Trainer(network, cast(Samples, samples), Training(steps=steps, seed=trial.seed, **given), CPU)
    for step in range(steps):
        loss = trainer.advance().loss
        trial.progress(share / steps)
        if after is not None:
            after(step + 1, loss)
    return network.eval()


@dataclass(frozen=True)
class Score:
    """What a network achieves on samples."""

    accuracy: float
    loss: float  # nats per target


def score(network: Network, samples: AnySamples, batch_tokens: int = 8192) -> Score:
    """Accuracy and loss on held-out samples, given the true tokens before each."""
    found = predict(network.eval(), cast(Samples, samples), batch_tokens, predictions=True)
    right = torch.cat(found.predicted) == torch.cat(found.expected)
    return Score(float(right.float().mean()), found.loss / max(1, found.targets))


def ignored(targets: Tensor, kept: Tensor) -> Tensor:
    """Targets with a loss only where `kept` is true."""
    return targets.masked_fill(~kept, IGNORE_INDEX)
