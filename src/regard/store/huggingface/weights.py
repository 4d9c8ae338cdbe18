"""Two-way weight tables between published tensors and our parameters.

A row tells which published tensors make up one parameter of ours, and how. The world is closed: loading stops, with the
full lists, unless every published tensor is used or known to be irrelevant and every parameter of ours is filled.
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

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of tensors by name."""


@dataclass(frozen=True)
class Operation:
    """An invertible operation on tensors: from theirs to ours, and back."""

    to_ours: Callable[[list[Tensor]], list[Tensor]]
    to_theirs: Callable[[list[Tensor]], list[Tensor]]


def concatenation(count: int) -> Operation:
    """Concatenate several matrices along their rows: queries, keys and values."""
    return Operation(lambda tensors: [torch.cat(tensors)], lambda tensors: list(tensors[0].chunk(count)))


def split_rows(*sizes: int) -> Operation:
    """Concatenate matrices of these numbers of rows, where they differ: queries, and keys for several heads."""
    return Operation(lambda tensors: [torch.cat(tensors)], lambda tensors: list(tensors[0].split(sizes)))


def drop_rows(count: int) -> Operation:
    """Drop the first rows of a table, which no token uses; written back, they are zeros."""
    return Operation(
        lambda tensors: [tensors[0][count:]],
        lambda tensors: [torch.cat([torch.zeros_like(tensors[0][:1]).expand(count, -1), tensors[0]])],
    )


def above_zeros() -> Operation:
    """One row, the logit of yes, below a row of zeros, the logit of no: a sigmoid as a softmax over two labels."""
    return Operation(
        lambda tensors: [torch.cat([torch.zeros_like(tensors[0]), tensors[0]])],
        lambda tensors: [tensors[0][1:] - tensors[0][:1]],
    )


def squeeze(dim: int) -> Operation:
    """Remove a dimension of length one."""
    return Operation(lambda tensors: [tensors[0].squeeze(dim)], lambda tensors: [tensors[0].unsqueeze(dim)])


def _half(index: int) -> Operation:
    """One half of the rows of their tensor, whose other half is another parameter of ours."""
    return Operation(lambda tensors: [tensors[0].chunk(2)[index]], lambda tensors: tensors)


FIRST_HALF, SECOND_HALF = _half(0), _half(1)
TRANSPOSED = Operation(lambda tensors: [tensors[0].T], lambda tensors: [tensors[0].T])


@dataclass(frozen=True)
class Row:
    """A row of a weight table: their names, our name, and the operations between; "{}" is the index of a layer.

    `theirs` are the alternative names of one tensor, or, where `concatenated`, the names of several.
    """

    theirs: tuple[str, ...]
    ours: str
    operations: tuple[Operation, ...] = ()
    concatenated: bool = False
    write_all_names: bool = False  # write the tensor under all its names
    may_differ: bool = False  # use the tensor under the first name, whatever the others hold

    @property
    def is_half(self) -> bool:
        """Whether our parameter is half of their tensor; the row of the first half comes first."""
        return FIRST_HALF in self.operations or SECOND_HALF in self.operations


def row(theirs: str, ours: str, *operations: Operation) -> Row:
    """A row: "a|b" are names of one tensor, "a+b" are tensors to concatenate."""
    if "+" in theirs:
        names = tuple(theirs.split("+"))
        return Row(names, ours, (concatenation(len(names)), *operations), concatenated=True)
    return Row(tuple(theirs.split("|")), ours, operations)


def weight_and_bias(theirs: str, ours: str, *operations: Operation) -> tuple[Row, Row]:
    """The rows of a weight and of its bias; the operations apply to the weight only."""
    weight, bias = (re.sub(r"([+|]|$)", rf".{kind}\1", theirs) for kind in ("weight", "bias"))
    return row(weight, f"{ours}.weight", *operations), row(bias, f"{ours}.bias")


@dataclass(frozen=True)
class Match:
    """A row matched to one parameter of ours: the names of theirs that it needs or accepts."""

    row: Row
    ours: str
    theirs: tuple[str, ...]

    def to_ours(self, read: Callable[[str], Tensor], shapes: Shapes) -> Tensor:
        """Compute our parameter from their tensors."""
        names = self.theirs if self.row.concatenated else [name for name in self.theirs if name in shapes][:1]
        tensors = [read(name) for name in names]
        for operation in self.row.operations:
            tensors = operation.to_ours(tensors)
        return tensors[0]

    def to_theirs(self, tensor: Tensor) -> dict[str, Tensor]:
        """Compute their tensors from our parameter, under their first names."""
        tensors = [tensor]
        for operation in reversed(self.row.operations):
            tensors = operation.to_theirs(tensors)
        return dict.fromkeys(self.theirs, tensors[0]) if self.row.write_all_names else dict(zip(self.theirs, tensors))


def match_rows(rows: Sequence[Row], ours: Sequence[str]) -> list[Match]:
    """Match rows to our parameters; a name that two rows accept belongs to the row that accepts no other."""
    found = list(_matches(rows, ours))
    required = [match.theirs for match in found if len(match.theirs) == 1 or match.row.concatenated]
    taken = {name for names in required for name in names}
    return [
        match
        if len(match.theirs) == 1 or match.row.concatenated
        else Match(match.row, match.ours, tuple(name for name in match.theirs if name not in taken))
        for match in found
    ]


def _matches(rows: Sequence[Row], ours: Sequence[str]) -> Iterator[Match]:
    for row in rows:
        pattern = re.compile(re.escape(row.ours).replace(r"\{\}", r"(\d+)"))
        for name in ours:
            if found := pattern.fullmatch(name):
                index = found.group(1) if found.groups() else ""
                yield Match(row, name, tuple(text.replace("{}", index) for text in row.theirs))


def check_names_and_shapes(
    matches: Sequence[Match], ours: Shapes, theirs: Shapes, ignored: Sequence[str], folder: Path
) -> None:
    """Compare our parameters with the published tensors by names and shapes only."""
    unfilled = sorted(ours.keys() - {match.ours for match in matches})
    assert not unfilled, f"no row of the table fills {unfilled}"
    missing = [
        name
        for match in matches
        for name in (match.theirs if match.row.concatenated else match.theirs[:1])
        if not any(other in theirs for other in ([name] if match.row.concatenated else match.theirs))
    ]
    known = {name for match in matches for name in match.theirs}
    unknown = [name for name in theirs if name not in known and not any(re.search(regex, name) for regex in ignored)]
    different = [] if missing else list(_different_shapes(matches, ours, theirs))
    faults = [f"{what}: {_listed(names)}" for what, names in (
        ("the weights lack", missing), ("the weights hold what config.json does not describe", unknown),
        ("shapes differ", different)) if names]  # fmt: skip
    if faults:
        raise messages.CONFIG_AND_WEIGHTS(what="; ".join(faults), folder=folder)


def _different_shapes(matches: Sequence[Match], ours: Shapes, theirs: Shapes) -> Iterator[str]:
    """Our parameters that the published tensors do not fit."""

    def read(name: str) -> Tensor:
        return torch.empty(theirs[name], device="meta")

    for match in matches:
        try:
            shape = tuple(match.to_ours(read, theirs).shape)
        except (RuntimeError, IndexError):
            shape = ()
        if shape != ours[match.ours]:
            given = " + ".join(str(theirs[name]) for name in match.theirs if name in theirs)
            yield f"{match.theirs[0]} is {given}, config.json describes {ours[match.ours]}"


def require_equal(matches: Sequence[Match], tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Raise an error if a tensor that is stored under several names differs between them."""
    for match in matches:
        separate = match.row.concatenated or match.row.may_differ
        names = [] if separate else [name for name in match.theirs if name in tensors]
        for name in names[1:]:
            if not torch.equal(tensors[name], tensors[names[0]]):
                raise DamagedFile(f"{name} differs from {names[0]}, which it should repeat ({folder}). "
                                  "Copy or download the weights again.")  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    """At most 50 names, and how many more there are."""
    listed = ", ".join(names[:50])
    return listed if len(names) <= 50 else f"{listed} and {len(names) - 50:,} more"
