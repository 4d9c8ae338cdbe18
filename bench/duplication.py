"""The duplication task (Kitaev 2020, section 5): 0w0w, of which the second w is to be predicted.

Models are trained with full attention, or with some rounds of hashing; each is then evaluated with full attention and
with more or fewer rounds: the same weights under another description.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.batching import IGNORE_INDEX
from regard.errors import InputError
from regard.layers.lsh.attention import RankWindow
from regard.layers.positions import Learned
from regard.models import zoo
from regard.models.model import Model, Network

FULL = 0
"""As a number of rounds: full attention."""

_OFTEN = 100  # steps between two progress lines
TEXTS = 64
"""On which a model is evaluated."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """Length, symbols, and the settings of model and training."""

    length: int = 128
    symbols: int = 127
    width: int = 128
    depth: int = 1
    heads: int = 4
    window: int = 16
    buckets: int = 8
    steps: int = 1000
    batch: int = 32
    learning_rate: float = 4e-3
    seed: int = 1

    def model(self, rounds: int) -> Model:
        """The description of the model with so many rounds."""
        kind = ("full",) if rounds == FULL else ("lsh",)
        return zoo.reformer(
            self.width, self.depth, self.heads, attention=kind, pattern=RankWindow(self.window), buckets=self.buckets,
            rounds=max(1, rounds), dropout=0.0, position=Learned(self.length),
        )  # fmt: skip

    def build(self, rounds: int) -> Network:
        """The network; its initial weights do not depend on the rounds."""
        torch.manual_seed(self.seed)
        return self.model(rounds).build(self.symbols + 1)

    def draw(self, number: int, batch: int) -> tuple[Tensor, Tensor]:
        """Texts and their targets; negative numbers give test texts."""
        source = torch.Generator().manual_seed((self.seed << 32) + 2 * abs(number) + (number < 0))
        word = torch.randint(1, self.symbols + 1, (batch, self.length // 2 - 1), generator=source)
        half = torch.cat([torch.zeros(batch, 1, dtype=torch.long), word], dim=1)
        text = torch.cat([half, half], dim=1)
        targets = text[:, 1:].clone()
        targets[:, : self.length // 2] = IGNORE_INDEX
        return text[:, :-1], targets


def learn(task: Task, rounds: int, keep: Path | None = None, say: Say = print) -> Network:
    """Train a model on the task; a run resumes from its last checkpoint in `keep`."""
    network = task.build(rounds)
    optimizer = torch.optim.Adam(network.parameters(), lr=task.learning_rate, betas=(0.9, 0.98))
    first = 0
    if keep is not None and keep.exists():
        kept: dict[str, Any] = torch.load(keep, weights_only=True)
        if kept["task"] != asdict(task):
            raise InputError(f"{keep} was trained with other settings. Choose another --keep.")
        network.load_state_dict(kept["network"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["step"]
    network.train()
    start = time.perf_counter()
    for step in range(first, task.steps):
        torch.manual_seed(task.seed + step)  # hashes are drawn from it, so a resumed run equals an unbroken one
        ids, targets = task.draw(step, task.batch)
        for group in optimizer.param_groups:
            group["lr"] = task.learning_rate * min(1.0, (step + 1) / 100, 4 * (1 - step / task.steps))
        loss = network.loss({"ids": ids}, targets) / (targets != IGNORE_INDEX).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % _OFTEN == 0:
            if keep is not None:
                state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
                state |= {"step": step + 1, "task": asdict(task)}
                torch.save(state, keep.with_suffix(".new"))
                keep.with_suffix(".new").replace(keep)
            say(f"{called(rounds)}, step {step + 1}: loss {loss.item():.3f}, {time.perf_counter() - start:.0f} s")
    return network


@torch.inference_mode()
def accuracy(task: Task, trained: Network, rounds: int) -> float:
    """The share of symbols that a model predicts right with so many rounds."""
    network = task.build(rounds).eval()
    network.load_state_dict(trained.state_dict())
    ids, targets = task.draw(-1, TEXTS)
    predicted = network(ids).argmax(-1)
    counted = targets != IGNORE_INDEX
    return float((predicted == targets)[counted].float().mean())


def measure(
    task: Task, learning: Sequence[int], asking: Sequence[int], folder: Path | None = None, say: Say = print
) -> dict[tuple[int, int], float]:
    """The accuracy, by the rounds of training and of evaluation."""
    found = {}
    for rounds in learning:
        keep = None if folder is None else folder / f"rounds-{rounds}.pt"
        network = learn(task, rounds, keep, say)
        found |= {(rounds, asked): accuracy(task, network, asked) for asked in asking}
    return found


def table(found: Mapping[tuple[int, int], float]) -> str:
    """Markdown as in the paper: one line per model, one column per number of rounds in evaluation."""
    asking = list(dict.fromkeys(asked for _, asked in found))
    lines = [f"| trained with | {' | '.join(map(called, asking))} |", f"|---|{'---|' * len(asking)}"]
    for rounds in dict.fromkeys(trained for trained, _ in found):
        lines.append(f"| {called(rounds)} | {' | '.join(f'{found[rounds, asked]:.1%}' for asked in asking)} |")
    return "\n".join(lines)


def called(rounds: int) -> str:
    """The name of a number of rounds."""
    return "full attention" if rounds == FULL else f"LSH, {rounds} round{'s' if rounds > 1 else ''}"


def facts(task: Task) -> dict[str, str]:
    """Task, model and training, in words."""
    return {
        "task": f"0w0w of {task.length} tokens, {task.symbols} symbols; the share of the second w that is predicted "
        f"right, in {TEXTS} test texts",
        "model": f"`zoo.reformer`, {task.depth} layer, width {task.width}, {task.heads} heads, shared query-keys; "
        f"LSH: {task.buckets} buckets, the last {task.window} keys of a bucket",
        "training": f"{task.steps:,} steps of {task.batch} texts, Adam at {task.learning_rate:g}, a new hash per step",
    }
