"""A whole book in one window: bits per byte by position. `python -m bench.book MODEL TEXT [--out book.svg]`."""

from __future__ import annotations

import argparse
import math
import resource
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

import regard
from regard.api import LoadedModel

_AT_ONCE = 1 << 14  # tokens whose logits are computed at once
_PARTS = 64  # of the book, in the plot


def read(model: LoadedModel, text: str) -> NDArray[np.float64]:
    """The loss of each token of a text in bits, given all before it: the text is read in one window."""
    tokenizer = model.tokenizer
    row = torch.tensor([tokenizer.bos, *tokenizer.encode(text)], device=model.device)
    with torch.inference_mode():
        states = model.network.hidden_states(row[None, :-1])[0]
        costs = [cost(model, states[at : at + _AT_ONCE], row[at + 1 :]) for at in range(0, len(states), _AT_ONCE)]
    return np.asarray(torch.cat(costs).cpu(), dtype=np.float64) / math.log(2)


def cost(model: LoadedModel, states: Tensor, following: Tensor) -> Tensor:
    """Nats of the tokens that follow these states."""
    logits = model.network.readout(states[None])[0]
    return F.cross_entropy(logits, following[: len(states)], reduction="none")


def parts(bits: NDArray[np.float64], count: int = _PARTS) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The end and the mean of each of `count` equal parts."""
    ends = np.linspace(0, len(bits), min(count, len(bits)) + 1).astype(np.int64)
    return ends[1:], np.add.reduceat(bits, ends[:-1]) / np.diff(ends)


def plot(bits: NDArray[np.float64], title: str, out: Path) -> None:
    """Bits per byte along the book, part by part, and the running mean."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    ends, means = parts(bits)
    figure, axes = pyplot.subplots(figsize=(8, 3.5), layout="constrained")
    axes.stairs(means, [0, *ends], label=f"each {len(bits) // len(ends):,} bytes")
    axes.plot(ends, np.cumsum(bits)[ends - 1] / ends, label="all so far")
    axes.set(title=title, xlabel="position in the book (bytes)", ylabel="bits per byte")
    axes.legend(frameon=False)
    figure.savefig(out)


def main() -> None:
    """Read, print a table, draw."""
    words = argparse.ArgumentParser(prog="python -m bench.book", description=__doc__)
    words.add_argument("model", help="the folder of a model that reads bytes")
    words.add_argument("text", type=Path)
    words.add_argument("--out", type=Path, help="where the plot goes (.svg or .png)")
    words.add_argument("--tokens", type=int, help="read only so many")
    chosen = words.parse_args()
    text = chosen.text.read_text(encoding="utf-8")[: chosen.tokens]
    began = time.perf_counter()
    bits = read(regard.load(chosen.model), text)
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"{len(bits):,} tokens in one window: {bits.mean():.3f} bits each, {took:.0f} s, {peak:.1f} GiB")
    for end, mean in zip(*parts(bits, 8)):
        print(f"| up to {end:,} | {mean:.3f} |")
    if chosen.out:
        plot(bits, f"{chosen.text.name}, read whole: {bits.mean():.3f} bits per byte", chosen.out)


if __name__ == "__main__":
    main()
