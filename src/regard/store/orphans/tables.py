"""What the importers share: settings that must be honoured, operations of their tables, and the loading of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import DamagedFile, InputError
from regard.layers.feedforward import Activation
from regard.layers.recurrent import GRU, Cell
from regard.models.model import Model
from regard.store.huggingface.tokenizers import Tokenizers
from regard.store.huggingface.weights import (
    Operation,
    Row,
    check_names_and_shapes,
    concatenation,
    match_rows,
    require_equal,
)
from regard.store.loading import Loaded, load_parameters, parameter_shapes, require_depth, require_finite

DECODER = "decoder.layers.0.cross.sublayer."  # our decoder with attention


@dataclass(frozen=True)
class Orphan:
    """A model read from another toolkit: its description, the table of its weights, its tokenizers and defaults."""

    toolkit: str
    model: Model
    vocabulary: int
    source_vocabulary: int | None
    rows: tuple[Row, ...]
    tokenizers: Tokenizers
    generation_config: dict[str, Any]
    ignored: tuple[str, ...] = ()  # regular expressions of tensors that change nothing
    task: str = "translation"


def assemble(found: Orphan, tensors: Mapping[str, Tensor], where: Path) -> Loaded:
    """The model with its weights; an error with the full lists unless every tensor and every parameter is used."""
    vocabularies = found.vocabulary, found.source_vocabulary
    stacks = found.model.stacks.values()
    require_depth(sum(len(stack.layers) for stack in stacks), len(tensors), where)
    ours = parameter_shapes(found.model, vocabularies, str(where))
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    matches = match_rows(found.rows, list(ours))
    try:
        check_names_and_shapes(matches, ours, shapes, found.ignored, where)
    except DamagedFile as error:
        what = str(error).partition(f" ({where})")[0].replace("config.json describes", "the settings describe")
        what = what.replace("what config.json does not describe", "what the settings do not describe")
        raise DamagedFile(f"{found.toolkit}: {what} ({where}). regard cannot hold this model exactly.") from None
    used = {name: tensors[name] for match in matches for name in match.theirs if name in tensors}
    for name, tensor in used.items():
        require_finite(name, tensor, where)
    require_equal(matches, used, where)
    network = found.model.build(*vocabularies)
    load_parameters(
        network, {match.ours: match.to_ours(lambda name: tensors[name].float(), shapes) for match in matches}
    )
    config = {"model_type": "regard", "task": found.task}  # its defaults are written out, so they are read as ours
    return Loaded(network.eval(), found.tokenizers, config, found.generation_config)


@dataclass
class Settings:
    """The settings of a checkpoint. What changes the model is read, or must have a value that changes nothing here."""

    values: Mapping[str, Any]
    where: str
    refused: list[str] = field(default_factory=list)

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive number."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
            raise DamagedFile(f"{name} must be a positive number, got {value!r} ({self.where}). Copy it again.")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        """Yes or no; fairseq also writes 0 and 1, and their names."""
        value = self._value(name, default)
        return value.lower() in ("true", "1") if isinstance(value, str) else bool(value)

    def string(self, name: str, default: str | None = None) -> str:
        return str(self._value(name, default))

    def number(self, name: str, default: float) -> float:
        value = self._value(name, default)
        return float(value) if isinstance(value, int | float) else default

    def section(self, name: str) -> Settings:
        """Settings inside a setting."""
        value = self.values.get(name)
        return Settings(value if isinstance(value, Mapping) else {}, f"{self.where}: {name}", self.refused)

    def activation(self, name: str, names: Mapping[str, Activation], default: str) -> Activation:
        """An activation function, by our name."""
        found = self.string(name, default)
        if found not in names:
            self.refuse(name, found)
        return names.get(found, "relu")

    def assume(self, name: str, *values: Any) -> None:
        """Refuse a setting unless it is missing or has one of these values."""
        found = self.values.get(name)
        if found is not None and found not in values:
            self.refuse(name, found)

    def assume_off(self, *names: str) -> None:
        """Refuse settings that are on."""
        for name in names:
            if self.values.get(name) not in (None, False, 0, 0.0, "", "False", "none", "None", [], {}):
                self.refuse(name, self.values[name])

    def refuse(self, name: str, value: Any) -> None:
        """Note a setting that no model of ours has; `finish` raises the error."""
        self.refused.append(f"{name} = {str(value)[:60]}")

    def finish(self) -> None:
        """Raise an error that lists all settings that cannot be honoured."""
        if self.refused:
            raise InputError(f"the model has settings that regard does not support: {', '.join(self.refused)} "
                             f"({self.where}). It stays with its toolkit.")  # fmt: skip

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None and default is None:
            raise DamagedFile(f"{name} is missing ({self.where}). Copy it again.")
        return default if value is None else value


def one_way(name: str, to_ours: Any) -> Operation:
    """An operation that is only read: nothing is written in an orphan's format."""

    def unwritten(_tensors: list[Tensor]) -> list[Tensor]:
        raise InputError(f"{name} is only read, never written.")

    return Operation(to_ours, unwritten)


def joined(theirs: Iterable[str], ours: str, *operations: Operation) -> Row:
    """A row of several tensors, which the operations make into one."""
    return Row(tuple(theirs), ours, operations, concatenated=True)


def zeros(*shape: int) -> Operation:
    """A parameter of ours that they do not have: zeros."""
    return one_way("zeros", lambda _: [torch.zeros(shape)])


SUM = one_way("a sum", lambda tensors: [torch.stack(tensors).sum(0)])
PER_HEAD = one_way("a matrix per head", lambda tensors: [tensors[0][None]])
PER_HEAD_TRANSPOSED = one_way("a matrix per head", lambda tensors: [tensors[0].T[None]])
FLAT = one_way("a vector", lambda tensors: [tensors[0].flatten()])
HALF_OF_THE_CELL = one_way("a state twice", lambda tensors: [torch.cat([tensors[0], tensors[0]])])


def columns(start: int, stop: int | None) -> Operation:
    """Some columns of a matrix."""
    return one_way("a part of a matrix", lambda tensors: [tensors[0][:, start:stop]])


def swapped_columns(at: int) -> Operation:
    """A matrix of [a; b] as one of [b; a], where a is `at` wide."""
    return one_way("swapped inputs", lambda tensors: [torch.cat([tensors[0][:, at:], tensors[0][:, :at]], dim=1)])


def padded_columns(width: int) -> Operation:
    """A matrix with columns of zeros up to this width: of embeddings that are narrower than the stream."""
    return one_way(
        "a padded matrix", lambda tensors: [torch.nn.functional.pad(tensors[0], (0, width - tensors[0].shape[1]))]
    )


class StreamOrder:
    """Where each dimension of their stream of hidden states is in ours.

    Interleaved sinusoids (sin, cos, sin, cos, ...) are ours with the stream in another order: all sines first. Whatever
    reads the stream has its columns in that order, and whatever writes to it its rows.
    """

    def __init__(self, width: int, *, interleaved: bool) -> None:
        plain = torch.arange(width)
        order = torch.cat([plain[::2], plain[1::2]]) if interleaved else plain
        self.reads: tuple[Operation, ...] = ()
        self.writes: tuple[Operation, ...] = ()
        if interleaved:
            self.reads = (one_way("columns in order", lambda tensors: [tensors[0][:, order]]),)
            self.writes = (one_way("rows in order", lambda tensors: [tensors[0][order]]),)

    def reading(self, theirs: str, ours: str, *, biased: bool = True) -> tuple[Row, ...]:
        """Weight and bias of a map from the stream; "a+b" concatenates several."""
        names = theirs.split("+")
        joint = (concatenation(len(names)),)
        weight = joined((f"{name}.weight" for name in names), f"{ours}.weight", *joint, *self.reads)
        bias = joined((f"{name}.bias" for name in names), f"{ours}.bias", *joint)
        return (weight, bias) if biased else (weight,)

    def writing(self, theirs: str, ours: str, *, biased: bool = True) -> tuple[Row, ...]:
        """Weight and bias of a map to the stream."""
        rows = tuple(Row((f"{theirs}.{kind}",), f"{ours}.{kind}", self.writes) for kind in ("weight", "bias"))
        return rows if biased else rows[:1]

    norm = writing  # a norm's scale and shift are in the order of the stream


def recurrent_rows(theirs: str, ours: str, directions: Sequence[str], *, pad_to: int | None = None) -> tuple[Row, ...]:
    """The rows of stacked cells that torch runs as one module: theirs "rnn.{}_l{layer}", each of ours its own module.

    `ours` names a cell by its layer, "{}", and its direction, "{direction}"; `pad_to` widens the inputs of the first.
    """
    rows = []
    for number, suffix in enumerate(directions):
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            name = f"{ours.replace('{direction}', str(number))}.{kind}_l0"
            first = (padded_columns(pad_to),) if pad_to and kind == "weight_ih" else ()
            rows.append(Row((f"{theirs}.{kind}_l{{}}{suffix}",), name, first))
    return tuple(rows)


def decoder_rows(
    cell: Callable[[int, str], str], kind: Cell, depth: int, *, embedded: int, width: int
) -> tuple[Row, ...]:
    """The rows of stacked cells of a decoder, the lowest of which reads [token; attentional vector].

    `cell` names their parameter of a layer, as (0, "weight_ih"). A GRU keeps its two biases apart, others add them.
    """
    ours, first = DECODER, partial(cell, 0)
    token = (columns(0, embedded), padded_columns(width))
    rows = [
        Row((first("weight_ih"),), f"{ours}token_projection.weight", token),
        Row((first("weight_ih"),), f"{ours}cells.0.inputs.weight", (columns(embedded, None),)),
    ]
    for number in range(depth):
        named, read = partial(cell, number), f"{ours}cells.{number}."
        bias = f"{ours}token_projection.bias" if number == 0 else f"{ours}biases.{number - 1}"
        rows.append(Row((named("weight_hh"),), f"{read}hidden.weight"))
        if number:
            rows.append(Row((named("weight_ih"),), f"{read}inputs.weight"))
        if isinstance(kind, GRU):
            rows += [Row((named("bias_ih"),), bias), Row((named("bias_hh"),), f"{read}hidden.bias")]
        else:
            rows.append(joined((named("bias_ih"), named("bias_hh")), bias, SUM))
    return tuple(rows)
