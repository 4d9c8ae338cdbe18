"""Settings of a training run: the [train] table of a recipe."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from regard.errors import InputError
from regard.layers.lora import LoRA
from regard.models.device import Precision
from regard.training.optimizers import AdamW, Group, InverseSquareRoot, Optimizer, Schedule
from regard.training.scheduled_sampling import ScheduledSampling

# Keys that may change when a run resumes: none of them changes a step that was already taken.
FREE = ("steps", "save_every", "valid_every", "log_every", "keep", "keep_every", "patience", "samples", "average",
        "parallel", "gradient_checkpointing", "timeout")  # fmt: skip


@dataclass(frozen=True)
class Training:
    """The [train] table. A step has `batch_tokens`; gradient accumulation splits it into micro-batches."""

    steps: int = 10_000  # optimizer steps; a finished run continues if there are more
    batch_tokens: int | Literal["fit"] = 4096  # "fit": the most that fits in memory, found when the run starts
    accumulate: int = 1  # gradient accumulation: micro-batches per step
    learning_rate: float = 1e-3  # the peak of the schedule
    optimizer: Optimizer = field(default_factory=AdamW)
    groups: tuple[Group, ...] = ()  # parameter groups with a learning rate or weight decay of their own
    layer_decay: float = 1.0  # layer-wise learning rate decay: factor per layer below the top one
    schedule: Schedule = field(default_factory=InverseSquareRoot)  # of the learning rate; all have a warm-up
    label_smoothing: float = 0.1  # the share of the target distribution that is spread over all tokens
    scheduled_sampling: ScheduledSampling | None = None  # a translator reads some of its own predictions (Bengio 2015)
    lora: LoRA | None = None  # train adapters of low rank beside a pretrained model's linear maps, and freeze the rest
    clip: float = 1.0  # gradient clipping: the largest norm
    ema: float | None = None  # decay of the weights' exponential moving average, which is validated and kept instead
    average: int = 1  # checkpoint averaging: the last ones are averaged at the end, and kept if they validate better
    save_every: int = 500  # steps between checkpoints
    valid_every: int = 500  # steps between validations
    log_every: int = 50  # steps between lines of metrics.jsonl
    keep: int = 5  # so many checkpoints are kept, the newest
    keep_every: int | None = None  # checkpoints at multiples of this are kept too
    patience: int | None = None  # early stopping: validations without improvement before the run ends
    best: Literal["loss", "bleu", "chrf", "exact", "accuracy", "f1", "matthews", "pearson", "spearman"] = "loss"
    valid_lines: int = 200  # of the validation text, translated and scored
    samples: int = 3  # of these, displayed
    precision: Precision = "auto"  # auto is bfloat16 on GPUs that support it
    gradient_checkpointing: bool = False  # store only the input of each layer, recompute the rest in the backward pass
    parallel: Literal["replicate", "shard"] = "replicate"  # of several processes: DDP or FSDP
    timeout: int = 600  # seconds that a process waits for the others
    seed: int = 1  # of all random draws

    def __post_init__(self) -> None:
        counts = ("steps", "batch_tokens", "accumulate", "average", "save_every", "valid_every", "log_every", "keep",
                  "valid_lines", "patience", "keep_every", "timeout")  # fmt: skip
        for name in counts:
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise InputError(f"{name} must be 1 or more, got {value} (train.{name}).")
        if self.samples < 0:
            raise InputError(f"samples must be 0 or more, got {self.samples} (train.samples).")
        if not 0 <= self.seed < 1 << 63:
            raise InputError(f"seed must be 0 or more and below 2 to the 63, got {self.seed} (train.seed).")
        if not 0 <= self.label_smoothing < 1:
            raise InputError(
                f"label_smoothing must be 0 or more and below 1, got {self.label_smoothing} (train.label_smoothing)."
            )
        if not 0 < self.layer_decay <= 1:
            raise InputError(f"layer_decay must be above 0 and at most 1, got {self.layer_decay} (train.layer_decay).")
        if self.parallel == "shard" and not self.optimizer.shards:
            raise InputError('this optimizer needs whole weights (train.parallel). Use parallel = "replicate".')
        if self.parallel == "shard" and self.scheduled_sampling is not None:
            raise InputError('scheduled_sampling needs whole weights (train.parallel). Use parallel = "replicate".')
        if self.parallel == "shard" and self.lora is not None:
            raise InputError('lora needs whole weights (train.parallel). Use parallel = "replicate".')
        if self.lora is not None and not all(group.lr_scale for group in self.groups):
            raise InputError("lora freezes all but its adapters and a new readout (train.groups). Leave out the group "
                             "whose lr_scale is 0.")  # fmt: skip
        if self.ema is not None and not 0 < self.ema < 1:
            raise InputError(f"ema must lie between 0 and 1, got {self.ema} (train.ema).")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate must be a number above 0, got {self.learning_rate} (train.learning_rate).")
        if self.clip <= 0:
            raise InputError(f"clip must be above 0, got {self.clip} (train.clip).")

    def learning_rate_at(self, step: int, steps: int | None = None) -> float:
        """The learning rate at a step, counted from 1, of a run of this many steps."""
        return self.learning_rate * self.schedule.factor(step, steps or self.steps)

    @property
    def budget(self) -> int:
        """`batch_tokens`, once it is a number."""
        assert isinstance(self.batch_tokens, int)
        return self.batch_tokens
