"""Two-way tables between published tensors and ours: a row says which of theirs make up one of ours, and how.

Closed world: every tensor of theirs is claimed or known to say nothing, every parameter of ours is filled, or loading
stops with the full lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard import messages
from regard.errors import DamagedFile

Names = Mapping[str, tuple[int, ...]]
"""Tensors by name, with their shapes."""


@dataclass(frozen=True)
class Operation:
    """Something done to tensors on their way to us, and what undoes it."""

    there: Callable[[list[Tensor]], list[Tensor]]
    back: Callable[[list[Tensor]], list[Tensor]]


def stacked(parts: int) -> Operation:
    """Several matrices become one with their rows below each other: queries, keys and values."""
    return Operation(lambda tensors: [torch.cat(tensors)], lambda tensors: list(tensors[0].chunk(parts)))


def cut(rows: int) -> Operation:
    """Leave out the first rows of a table, which no token ever asks for; on the way back they are zeros."""
    return Operation(
        lambda tensors: [tensors[0][rows:]],
        lambda tensors: [torch.cat([torch.zeros_like(tensors[0][:1]).expand(rows, -1), tensors[0]])],
    )


TRANSPOSED = Operation(lambda tensors: [tensors[0].T], lambda tensors: [tensors[0].T])
FLAT = Operation(lambda tensors: [tensors[0].squeeze(0)], lambda tensors: [tensors[0].unsqueeze(0)])


@dataclass(frozen=True)
class Row:
    """Their names (of one tensor that may be written several times: all its names), our name, what is done between.

    "{}" stands for the number of a layer. Where several tensors make up one of ours, `parts` lists them.
    """

    theirs: tuple[str, ...]
    ours: str
    operations: tuple[Operation, ...] = ()
    parts: bool = False
    repeated: bool = False  # is written under all its names
    loose: bool = False  # the first name there counts, whatever stands under the others


def row(theirs: str, ours: str, *operations: Operation) -> Row:
    """A row: "a|b" are names of one tensor, "a+b" are tensors that make up one."""
    if "+" in theirs:
        several = tuple(theirs.split("+"))
        return Row(several, ours, (stacked(len(several)), *operations), parts=True)
    return Row(tuple(theirs.split("|")), ours, operations)


def both(theirs: str, ours: str, *operations: Operation) -> tuple[Row, Row]:
    """The rows of a weight and of its bias; what turns a matrix leaves the bias alone."""
    weight, bias = (re.sub(r"([+|]|$)", rf".{kind}\1", theirs) for kind in ("weight", "bias"))
    return row(weight, f"{ours}.weight", *operations), row(bias, f"{ours}.bias")


@dataclass(frozen=True)
class Claim:
    """A row for one parameter of ours: the names of theirs that it needs or would take."""

    row: Row
    ours: str
    theirs: tuple[str, ...]

    def made(self, found: Callable[[str], Tensor], there: Names) -> Tensor:
        """Ours, from theirs."""
        names = self.theirs if self.row.parts else [name for name in self.theirs if name in there][:1]
        tensors = [found(name) for name in names]
        for operation in self.row.operations:
            tensors = operation.there(tensors)
        return tensors[0]

    def undone(self, tensor: Tensor) -> dict[str, Tensor]:
        """Theirs, from ours, under their first names."""
        tensors = [tensor]
        for operation in reversed(self.row.operations):
            tensors = operation.back(tensors)
        return dict.fromkeys(self.theirs, tensors[0]) if self.row.repeated else dict(zip(self.theirs, tensors))


def claims(rows: Sequence[Row], ours: Sequence[str]) -> list[Claim]:
    """The rows that speak of parameters we have; what two rows would take belongs to the more particular one."""
    found = list(_matched(rows, ours))
    taken = [claim.theirs for claim in found if len(claim.theirs) == 1 or claim.row.parts]
    own = {name for names in taken for name in names}
    return [
        claim
        if len(claim.theirs) == 1 or claim.row.parts
        else Claim(claim.row, claim.ours, tuple(name for name in claim.theirs if name not in own))
        for claim in found
    ]


def _matched(rows: Sequence[Row], ours: Sequence[str]) -> Iterator[Claim]:
    for one in rows:
        pattern = re.compile(re.escape(one.ours).replace(r"\{\}", r"(\d+)"))
        for name in ours:
            if match := pattern.fullmatch(name):
                number = match.group(1) if match.groups() else ""
                yield Claim(one, name, tuple(text.replace("{}", number) for text in one.theirs))


def compare(claimed: Sequence[Claim], wanted: Names, there: Names, ignored: Sequence[str], folder: Path) -> None:
    """Hold what we want against what is there, by names and shapes alone."""
    unfilled = sorted(wanted.keys() - {claim.ours for claim in claimed})
    assert not unfilled, f"no row of the table fills {unfilled}"
    missing = [
        name
        for claim in claimed
        for name in (claim.theirs if claim.row.parts else claim.theirs[:1])
        if not any(other in there for other in ([name] if claim.row.parts else claim.theirs))
    ]
    known = {name for claim in claimed for name in claim.theirs}
    strange = [name for name in there if name not in known and not any(re.search(word, name) for word in ignored)]
    wrong = [] if missing else list(_misshapen(claimed, wanted, there))
    faults = [f"{what}: {_listed(names)}" for what, names in (
        ("the weights lack", missing), ("the weights hold what config.json knows nothing of", strange),
        ("shapes differ", wrong)) if names]  # fmt: skip
    if faults:
        raise messages.CONFIG_AND_WEIGHTS(what="; ".join(faults), folder=folder)


def _misshapen(claimed: Sequence[Claim], wanted: Names, there: Names) -> Iterator[str]:
    """Parameters of ours that theirs do not fit."""

    def found(name: str) -> Tensor:
        return torch.empty(there[name], device="meta")

    for claim in claimed:
        try:
            shape = tuple(claim.made(found, there).shape)
        except (RuntimeError, IndexError):
            shape = ()
        if shape != wanted[claim.ours]:
            given = " + ".join(str(there[name]) for name in claim.theirs if name in there)
            yield f"{claim.theirs[0]} is {given}, config.json asks for {wanted[claim.ours]}"


def require_same(claimed: Sequence[Claim], tensors: Mapping[str, Tensor], folder: Path) -> None:
    """What is written under several names must be the same everywhere."""
    for claim in claimed:
        names = [] if claim.row.parts or claim.row.loose else [name for name in claim.theirs if name in tensors]
        for name in names[1:]:
            if not torch.equal(tensors[name], tensors[names[0]]):
                raise DamagedFile(f"{name} differs from {names[0]}, which it should repeat ({folder}). "
                                  "Copy or download the weights again.")  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    """All names, unless there are very many."""
    shown = ", ".join(names[:50])
    return shown if len(names) <= 50 else f"{shown} and {len(names) - 50:,} more"
