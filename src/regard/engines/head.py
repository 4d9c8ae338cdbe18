"""The head of an encoder in numpy: what its last hidden states become, a label, a number, tags or a vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from regard import messages
from regard.store.files import first_line, require_file

Numbers = NDArray[np.float32]
Pooling = Literal["first", "last", "mean", "max", "weighted_mean"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]
Outputs = Literal["labels", "several_labels", "tags", "number", "vector"]

HEAD = "head.safetensors"  # its weights: 0.weight, 0.bias, 1.weight, ...

_ERF = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True)
class Head:
    """What follows the last hidden states: pooling (not for tags), dense layers, a normalization."""

    outputs: Outputs
    pool: Pooling = "first"
    layers: tuple[Activation | None, ...] = ()  # the activation of each dense layer
    labels: tuple[str, ...] = ()
    pairs: bool = False  # whether it tells if one text follows another, so that it reads pairs
    normalised: bool = False  # to vectors of length 1

    def apply(self, states: Numbers, lengths: NDArray[np.int64], weights: Mapping[str, Numbers]) -> Numbers:
        """BTD and the lengths of the rows -> BN: logits, a number or a vector; BTN: the logits of tags."""
        x = states if self.outputs == "tags" else pooled(self.pool, states, lengths)
        for number, activation in enumerate(self.layers):
            x = x @ weights[f"{number}.weight"].T + weights.get(f"{number}.bias", np.float32(0))
            x = x if activation is None else activated(activation, x)
        return unit(x) if self.normalised else x

    def probabilities(self, logits: Numbers) -> Numbers:
        """BN -> BN: of labels of which a text has one, or each by itself."""
        if self.outputs == "several_labels":
            return (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        shares: Numbers = weights / weights.sum(-1, keepdims=True)
        return shares


def read_head(path: Path, head: Head, width: int) -> dict[str, Numbers]:
    """The weights of a head, which must fit each other, the width of the hidden states and the labels."""
    require_file(path)
    try:
        found: dict[str, Numbers] = load_file(path)
        for number in range(len(head.layers)):
            weight, bias = found[f"{number}.weight"], found.get(f"{number}.bias")
            if weight.ndim != 2 or weight.shape[1] != width or (bias is not None and bias.shape != weight.shape[:1]):
                raise ValueError(f"{number}.weight or its bias does not fit {width} inputs")
            width = len(weight)
        if head.labels and width != len(head.labels):
            raise ValueError(f"it has {width} outputs, config.json {len(head.labels)} labels")
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise messages.DAMAGED_WEIGHTS(path=path, why=first_line(error)) from error
    return found


def pooled(pool: Pooling, states: Numbers, lengths: NDArray[np.int64]) -> Numbers:
    """BTD -> BD: pooling over the tokens of each row, as `models/readouts.py` has it."""
    rows, real = np.arange(len(states)), np.arange(states.shape[1]) < lengths[:, None]
    if pool == "first":
        return np.asarray(states[:, 0])
    if pool == "last":
        return np.asarray(states[rows, np.maximum(lengths, 1) - 1])
    if pool == "max":
        highest: Numbers = np.where(real[..., None], states, -np.inf).max(axis=1)
        return highest
    counts = real * (np.arange(1, states.shape[1] + 1) if pool == "weighted_mean" else 1)
    shares = (counts / np.maximum(counts.sum(1, keepdims=True), 1)).astype(np.float32)
    return np.asarray((shares[:, None] @ np.where(real[..., None], states, np.float32(0)))[:, 0])


def activated(activation: Activation, x: Numbers) -> Numbers:
    """The activation function of that name."""
    match activation:
        case "relu":
            found = np.maximum(x, 0)
        case "gelu":
            found = x * (0.5 + 0.5 * _ERF(x / math.sqrt(2)).astype(np.float32))
        case "gelu_tanh":
            found = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        case "silu":
            found = x / (1 + np.exp(-x))
        case "tanh":
            found = np.tanh(x)
    return np.asarray(found, dtype=np.float32)


def unit(x: Numbers) -> Numbers:
    """Vectors scaled to length 1."""
    scaled: Numbers = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
    return scaled
