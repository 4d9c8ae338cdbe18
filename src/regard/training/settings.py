"""The settings of a run: the [train] table of a recipe."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from regard.errors import InputError
from regard.models.device import Precision
from regard.training.optimizers import AdamW, Group, InverseSquareRoot, Optimizer, Schedule
from regard.training.scheduled_sampling import Sampling

# What may differ when a run goes on: none of these changes a step that was already taken.
FREE = ("steps", "save_every", "valid_every", "log_every", "keep", "keep_every", "patience", "samples", "average",
        "parallel", "recompute", "timeout")  # fmt: skip


@dataclass(frozen=True)
class Training:
    """How to learn. `batch_tokens` is one step's worth; `accumulate` only cuts it into parts that fit in memory."""

    steps: int = 10_000
    batch_tokens: int | Literal["fit"] = 4096  # "fit": as many as memory holds, found when the run begins
    accumulate: int = 1
    learning_rate: float = 1e-3
    optimizer: Optimizer = field(default_factory=AdamW)
    groups: tuple[Group, ...] = ()  # parameters with a rate or a decay of their own
    layer_decay: float = 1.0  # what the rate is multiplied by for each layer further down
    schedule: Schedule = field(default_factory=InverseSquareRoot)
    smoothing: float = 0.1
    sampling: Sampling | None = None  # how many of the words a translator reads come to be its own
    clip: float = 1.0
    ema: float | None = None  # decay of the moving average that is validated and kept instead of the last weights
    average: int = 1  # checkpoints averaged at the end; kept if they validate better
    save_every: int = 500
    valid_every: int = 500
    log_every: int = 50
    keep: int = 5
    keep_every: int | None = None
    patience: int | None = None  # validations without a better one before the run ends
    best: Literal["loss", "bleu", "chrf", "exact", "accuracy", "f1", "matthews", "pearson", "spearman"] = "loss"
    valid_lines: int = 200  # of the validation text, translated and scored
    samples: int = 3  # of them, shown
    precision: Precision = "auto"
    gradient_checkpointing: bool = False  # keep only what goes into a layer, and do the layer again on the way back
    parallel: Literal["replicate", "shard"] = "replicate"  # what several processes do with the weights
    timeout: int = 600  # seconds that a process waits for a word from another
    seed: int = 1

    def __post_init__(self) -> None:
        counts = ("steps", "batch_tokens", "accumulate", "average", "save_every", "valid_every", "log_every", "keep",
                  "valid_lines", "patience", "keep_every", "timeout")  # fmt: skip
        for name in counts:
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise InputError(f"{name} must be 1 or more, got {value} (train.{name}).")
        if self.samples < 0 or not 0 <= self.seed < 1 << 63:
            raise InputError(f"samples and seed must be 0 or more, got {self.samples} and {self.seed} (train).")
        if not 0 <= self.smoothing < 1:
            raise InputError(f"smoothing must be 0 or more and below 1, got {self.smoothing} (train.smoothing).")
        if not 0 < self.layer_decay <= 1:
            raise InputError(f"layer_decay must be above 0 and at most 1, got {self.layer_decay} (train.layer_decay).")
        if self.parallel == "shard" and not self.optimizer.shards:
            raise InputError('this optimizer moves whole weights only (train.parallel). Use parallel = "replicate".')
        if self.parallel == "shard" and self.sampling is not None:
            raise InputError('sampling needs whole weights (train.parallel). Use parallel = "replicate".')
        if self.ema is not None and not 0 < self.ema < 1:
            raise InputError(f"ema must lie between 0 and 1, got {self.ema} (train.ema).")
        if not 0 < self.learning_rate < math.inf or self.clip <= 0:
            raise InputError(f"rate and clip must be numbers above 0, got {self.learning_rate} and {self.clip} (train).")

    @property
    def budget(self) -> int:
        """`batch_tokens`, once it is a number."""
        assert isinstance(self.batch_tokens, int)
        return self.batch_tokens
