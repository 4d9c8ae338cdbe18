"""A toy language that a tiny model of any toolkit learns in seconds, so that its answers are sentences."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor

SOURCE = [f"w{number}" for number in range(12)]
TARGET = [word.upper() for word in SOURCE]


def pairs(count: int, seed: int) -> list[tuple[list[str], list[str]]]:
    """Sentences and their translations: upper case, in reverse order."""
    draw = random.Random(seed)
    sources = [draw.choices(SOURCE, k=draw.randint(1, 5)) for _ in range(count)]
    return [(source, [word.upper() for word in reversed(source)]) for source in sources]


def lines(count: int, seed: int = 99) -> list[str]:
    """Sentences to translate; one has a word that no vocabulary knows."""
    return [" ".join(source) for source, _ in pairs(count - 1, seed)] + ["w1 unheard w2"]


def train(
    model: torch.nn.Module, forward: Callable[[list[tuple[list[str], list[str]]]], tuple[Tensor, Tensor]], steps: int,
    *, pad: int, rate: float = 5e-3,
) -> None:  # fmt: skip
    """Train a model of any toolkit; `forward` gives the logits of a batch and its target ids."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    for step in range(steps):
        logits, targets = forward(pairs(64, step))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=pad)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def padded(rows: list[list[int]], pad: int) -> Tensor:
    """Rows of ids as one tensor."""
    width = max(map(len, rows))
    return torch.tensor([row + [pad] * (width - len(row)) for row in rows])
