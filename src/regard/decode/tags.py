"""Inline tags, placeholders and numbers, carried over to a translation by the attention between source and target.

A pair of tags surrounds the span of the target whose units attend to the span that it surrounds in the source: the
maximum-sum span, where a unit counts the share of its attention inside, less one half. Inner pairs are placed inside
outer ones, so that the result is well-formed. A point, such as an image, stands where the units beside it attend to
its neighbours. Text that must stay as it is (an atom) is searched for, or else left out and put back as a point.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from regard.data.documents import Mark, Segment
from regard.data.tokenize.tokenizer import Offsets, text_units

Weigh = Callable[[Sequence[str], Sequence[str]], list[Tensor | None]]
"""Source and target texts -> target units by source units (`text_units`) of each pair; None where nothing is known."""

_NUMBER = re.compile(r"\d+(?:[.,:'\u00a0\u202f]\d+)*")
_SURE = 0.5  # of its attention a number must give to the one that replaces it
_FEW = 1e-6  # weighs the order of the whole sentence, where the neighbours decide nothing


def diagonal(source: str, target: str) -> Tensor:
    """Attention of a pair about which nothing is known: each target unit attends to the source at its own height."""
    rows, columns = len(text_units(target)), len(text_units(source))
    heights = (torch.arange(rows)[:, None] + 0.5) / max(1, rows) - (torch.arange(columns) + 0.5) / max(1, columns)
    return torch.softmax(-(heights.abs() * max(rows, columns)), dim=1)


def find_atoms(source: Segment, target: str) -> dict[int, int] | None:
    """Where the text of each atom stands in the target, by the index of its mark; None if it is not there as often."""
    found: dict[int, int] = {}
    taken: list[Offsets] = []
    atoms = [index for index, mark in enumerate(source.marks) if mark.length]
    if target == source.text:
        return {index: source.marks[index].at for index in atoms}
    for index in sorted(atoms, key=lambda index: -source.marks[index].length):
        mark = source.marks[index]
        text = source.text[mark.at : mark.at + mark.length]
        here, there = _occurrences(text, source.text), _occurrences(text, target)
        if len(here) != len(there) or mark.at not in here:
            return None
        place = there[here.index(mark.at)]
        if any(start < place + len(text) and place < end for start, end in taken):
            return None
        taken.append((place, place + len(text)))
        found[index] = place
    return found


def _occurrences(text: str, inside: str) -> list[int]:
    """Where a text stands, not as part of a longer word."""
    before, after = r"(?<!\w)" if text[0].isalnum() else "", r"(?!\w)" if text[-1].isalnum() else ""
    return [match.start() for match in re.finditer(before + re.escape(text) + after, inside)]


def without_atoms(segment: Segment) -> Segment:
    """The segment without the text of its atoms, which become points; no two spaces are left side by side."""
    text, kept = segment.text, [True] * len(segment.text)
    for mark in segment.marks:
        kept[mark.at : mark.at + mark.length] = [False] * mark.length
    for mark in segment.marks:
        if mark.length:
            left = next((i for i in range(mark.at - 1, -1, -1) if kept[i]), -1)
            right = next((i for i in range(mark.at + mark.length, len(text)) if kept[i]), len(text))
            ends = right == len(text) or not text[right].isalnum()
            if right < len(text) and text[right].isspace() and (left < 0 or text[left].isspace()):
                kept[right] = False
            elif left >= 0 and text[left].isspace() and ends:
                kept[left] = False
    places = [0, *accumulate(kept)]
    marks = tuple(mark._replace(at=places[mark.at], length=0) for mark in segment.marks)
    return Segment("".join(letter for letter, keep in zip(text, kept) if keep), marks)


def insert_atoms(translation: Segment, source: Segment) -> Segment:
    """The translation of `without_atoms(source)` with the text of each atom at its point, between spaces as before."""
    pieces, marks, length, done = list[str](), list[Mark](), 0, 0
    text = translation.text

    def add(piece: str) -> None:
        nonlocal length
        pieces.append(piece)
        length += len(piece)

    waiting = {index: mark for index, mark in enumerate(source.marks) if mark.length}
    for mark in translation.marks:
        add(text[done : mark.at])
        done = mark.at
        index = next(
            (index for index, one in waiting.items() if mark.kind == "atom" and one.written == mark.written), -1
        )
        if index < 0:
            marks.append(mark._replace(at=length))
            continue
        atom = waiting.pop(index)
        end = atom.at + atom.length
        before, after = pieces[-1][-1:] or "".join(pieces)[-1:], text[done : done + 1]
        space_before, space_after = source.text[atom.at - 1 : atom.at] == " ", source.text[end : end + 1] == " "
        add(" " if before.strip() and (space_before or before.isalnum()) else "")
        marks.append(mark._replace(at=length, length=atom.length))
        add(source.text[atom.at : end])
        if after.strip() and (space_after or after.isalnum()):
            add(" ")
    add(text[done:])
    return Segment("".join(pieces), tuple(marks))


def place_marks(source: Segment, target: str, weights: Tensor, atoms: Mapping[int, int] | None = None) -> Segment:
    """The translation with the marks of its source; `weights` are target units by source units.

    `atoms` are the places of atoms in the target (`find_atoms`).
    """
    if not source.marks:
        return Segment(target)
    atoms = atoms or {}
    marks = source.marks
    spans = [(marks[index].at, marks[index].at + marks[index].length) for index in atoms]
    places = [(place, place + marks[index].length) for index, place in atoms.items()]
    columns, rows = _group(text_units(source.text), spans), _group(text_units(target), places)
    grouped = torch.zeros(len(rows.units), len(columns.units))
    grouped.index_put_((rows.group[:, None], columns.group[None, :]), weights, accumulate=True)
    tags = tuple(mark for index, mark in enumerate(marks) if index not in atoms)
    placed = _Placement(Segment(source.text, tags), columns.units, rows.units, grouped).marks()
    for index, place in sorted(atoms.items(), key=lambda pair: pair[1]):
        placed.insert(bisect_right([mark.at for mark in placed], place), marks[index]._replace(at=place))
    return Segment(target, tuple(placed))


@dataclass(frozen=True)
class _Groups:
    """Units of which some were put together, and the new index of each old one."""

    units: list[Offsets]
    group: Tensor


def _group(units: Sequence[Offsets], spans: Sequence[Offsets]) -> _Groups:
    """Units with those that a span touches as one."""
    grouped, group, last = list[Offsets](), list[int](), -1
    for start, end in units:
        span = next((number for number, one in enumerate(spans) if one[0] < end and start < one[1]), -1)
        if span < 0 or span != last:
            grouped.append((start, end) if span < 0 else spans[span])
        group.append(len(grouped) - 1)
        last = span
    return _Groups(grouped, torch.tensor(group, dtype=torch.long))


@dataclass
class _Node:
    """A pair of tags, or a point: its span of source units, and its span of target units once it is placed.

    A pair that another sentence opens or closes has no mark on that side, and reaches to the edge of its parent.
    """

    opening: Mark | None
    closing: Mark | None = None
    first: int = 0
    last: int = 0
    children: list[_Node] = field(default_factory=list)
    span: Offsets = (0, 0)

    @property
    def is_pair(self) -> bool:
        return self.opening is None or self.opening.kind == "open"

    @property
    def anchored(self) -> bool:
        return self.is_pair and (self.opening is None or self.closing is None)


class _Placement:
    """One translation, and where the tags and points of its source go."""

    def __init__(
        self, source: Segment, source_units: Sequence[Offsets], units: Sequence[Offsets], weights: Tensor
    ) -> None:
        self.source, self.units = source, units
        self.starts, self.ends = [start for start, _ in source_units], [end for _, end in source_units]
        totals = weights.sum(dim=1, keepdim=True)
        self.shares = weights / totals.clamp_min(1e-12)
        self.known = totals[:, 0] > 0

    def marks(self) -> list[Mark]:
        """The marks at their places in the target, in order."""
        root = _Node(None, None, 0, len(self.starts), self._tree(), (0, len(self.units)))
        waiting = [root]
        while waiting:
            node = waiting.pop()
            self._place_children(node)
            waiting += [child for child in node.children if child.is_pair]
        return self._in_order(root)

    def _tree(self) -> list[_Node]:
        """The marks as nested nodes."""
        count, marks = len(self.starts), self.source.marks
        opened = {mark.pair for mark in marks if mark.kind == "open"}
        lost = [mark for mark in marks if mark.kind == "close" and mark.pair not in opened]
        stack = [_Node(None), *(_Node(None) for _ in lost)]
        for mark in marks:
            if mark.kind == "open":
                stack.append(_Node(mark, None, bisect_right(self.ends, mark.at)))
            elif mark.kind == "close":
                node = stack.pop()
                node.closing, node.last = mark, bisect_right(self.starts, mark.at - 1)
                stack[-1].children.append(node)
            else:
                border = bisect_right(self.starts, mark.at - 1)
                stack[-1].children.append(_Node(mark, None, border, border))
        while len(stack) > 1:
            node = stack.pop()
            node.last = count
            stack[-1].children.append(node)
        return stack[0].children

    def _place_children(self, node: _Node) -> None:
        """Place the children of a node inside its span; pairs that reach to its edge first, then the surest."""
        start, end = node.span
        free = [True] * (end - start)
        pairs = [child for child in node.children if child.is_pair]
        gains = [self._gains(child)[start:end] for child in pairs]
        sure = [
            float(values.clamp_min(0).sum()) / max(1, child.last - child.first) for child, values in zip(pairs, gains)
        ]
        for number in sorted(range(len(pairs)), key=lambda number: (not pairs[number].anchored, -sure[number])):
            child = pairs[number]
            child.span = self._best_span(child, gains[number].tolist(), start, free)
            for unit in range(*child.span):
                free[unit - start] = False
        taken = [child.span for child in pairs]
        for child in node.children:
            if not child.is_pair:
                point = self._best_point(child, node.span, taken)
                child.span = point, point

    def _gains(self, node: _Node) -> Tensor:
        """For each target unit, the share of its attention inside the node, less one half; 0 where nothing is known."""
        if (node.first, node.last) == (0, len(self.starts)):
            return torch.full((len(self.units),), 0.5)
        inside = self.shares[:, node.first : node.last].sum(dim=1) - 0.5
        return torch.where(self.known, inside, torch.zeros_like(inside))

    def _best_span(self, node: _Node, values: list[float], start: int, free: list[bool]) -> Offsets:
        """The span of free units with the largest sum; of one unit at least, if the node had one and one is free."""
        if node.anchored:
            return _best_edge(values, start, free, left=node.opening is None)
        best, total, first = -1.0, 0.0, 0
        found: Offsets | None = None
        for index, (value, is_free) in enumerate(zip(values, free)):
            if not is_free:
                total, first = 0.0, index + 1
                continue
            total, first = (value, index) if total <= 0 else (total + value, first)
            if total > best:
                best, found = total, (start + first, start + index + 1)
        if found is None or node.first == node.last:
            taken = [(start + index - 1, start + index + 1) for index in range(1, len(free))
                     if not free[index - 1] and not free[index]]  # fmt: skip
            point = self._best_point(node, (start, start + len(free)), taken)
            return point, point
        return found

    def _best_point(self, node: _Node, span: Offsets, taken: Sequence[Offsets]) -> int:
        """The border of two units whose left one attends to the source before the node, whose right one after it."""
        count, before, after = len(self.starts), node.first - 1, node.last
        order = self.shares[:, : node.first].sum(dim=1) - self.shares[:, after:].sum(dim=1)
        scores = (torch.cat([order.new_zeros(1), order.cumsum(0)]) * _FEW).tolist()
        start, end = span
        rows = self.shares.tolist()

        def weight(unit: int, source: int) -> float:
            if start <= unit < end:
                return rows[unit][source] if 0 <= source < count else 0.0
            return float((unit < 0 and source < 0) or (unit >= len(rows) and source >= count))  # both edges

        for border in range(start, end + 1):
            straight = weight(border - 1, before) + weight(border, after)
            turned = weight(border - 1, after) + weight(border, before)  # where the target turns the order round
            scores[border] += max(straight, turned)
        inside = {border for first, last in taken for border in range(first + 1, last)}
        borders = [border for border in range(start, end + 1) if border not in inside] or [start]
        return max(borders, key=lambda border: scores[border])

    def _in_order(self, root: _Node) -> list[Mark]:
        """All marks in the order of the target, none outside its parent, none before the one in front of it."""
        marks, done = list[Mark](), 0
        width = self.units[-1][1] if self.units else 0
        waiting: list[tuple[_Node, Offsets] | Mark] = [(child, (0, width)) for child in _reversed(root)]
        while waiting:
            item = waiting.pop()
            if isinstance(item, Mark):
                done = max(done, item.at)
                marks.append(item._replace(at=done))
                continue
            node, (low, high) = item
            start, end = self._offsets(node, low, high)
            if node.opening is not None:
                done = max(done, start)
                marks.append(node.opening._replace(at=done))
            if node.closing is not None:
                waiting.append(node.closing._replace(at=end))
            waiting += [(child, (start, end)) for child in _reversed(node)]
        return marks

    def _offsets(self, node: _Node, low: int, high: int) -> Offsets:
        """The start and end of a node in characters; a point is beside the unit that it was beside in the source."""
        first, last = node.span
        if first < last:
            return self.units[first][0], self.units[last - 1][1]
        mark = node.opening or node.closing
        at = mark.at if mark else 0
        attached = at > 0 and not self.source.text[at - 1].isspace()  # to the unit before it
        place = low if not self.units else self.units[first - 1][1] if first and (
            attached or first == len(self.units)) else self.units[first][0]  # fmt: skip
        place = min(max(place, low), high)
        return place, place


def _reversed(node: _Node) -> list[_Node]:
    return sorted(node.children, key=lambda child: child.span)[::-1]


def _best_edge(values: list[float], start: int, free: list[bool], *, left: bool) -> Offsets:
    """The span of free units with the largest sum that begins at the left edge, or else ends at the right one."""
    values, free = (values, free) if left else (values[::-1], free[::-1])
    most = next((index for index, is_free in enumerate(free) if not is_free), len(free))
    sums = [0.0, *accumulate(values)]
    size = max(range(most + 1), key=lambda index: sums[index])
    return (start, start + size) if left else (start + len(values) - size, start + len(values))


Number = tuple[int, int, int]
"""The start, end and value of a number in a text."""


def find_numbers(text: str) -> list[Number]:
    """The numbers of a text; separators do not count, so that 1,000 is 1.000, and 05 is 5."""
    found = []
    for match in _NUMBER.finditer(text):
        digits = "".join(str(int(sign)) for sign in match.group() if sign.isdecimal())
        found.append((*match.span(), int(digits[:400])))
    return found


def repair_numbers(
    source: str, target: str, weights: Tensor, numbers: tuple[list[Number], list[Number]] | None = None
) -> str:
    """The target with each number that the source does not have replaced by the missing one that it attends to.

    `numbers` are those of both that count; all, if they are not given.
    """
    theirs, ours = numbers or (find_numbers(source), find_numbers(target))
    extra = _lacking(ours, theirs)
    source_units, target_units = text_units(source), text_units(target)
    shares = weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-12)
    changes: dict[Number, str] = {}
    for number in _lacking(theirs, ours):
        columns = _covered(source_units, number)
        scores = {one: float(shares[_covered(target_units, one)][:, columns].sum(1).mean()) for one in extra}
        best = max(extra, key=lambda one: scores[one], default=None)
        if best is not None and scores[best] > _SURE:
            extra.remove(best)
            changes[best] = source[number[0] : number[1]]
    for (start, end, _), text in sorted(changes.items(), reverse=True):
        target = target[:start] + text + target[end:]
    return target


def _lacking(some: Sequence[Number], others: Sequence[Number]) -> list[Number]:
    """The numbers of some that others lack."""
    known, left = Counter(value for *_, value in others), []
    for one in some:
        known[one[2]] -= 1
        left += [one] if known[one[2]] < 0 else []
    return left


def _covered(units: Sequence[Offsets], number: Number) -> list[int]:
    start, end, _ = number
    return [index for index, (first, last) in enumerate(units) if first < end and start < last]


def differences(source: Segment, target: Segment) -> tuple[str, ...]:
    """What makes a translation doubtful: numbers, atoms or tags that it does not have as often as its source."""
    found = []
    theirs, ours = (Counter(value for *_, value in find_numbers(text)) for text in (source.text, target.text))
    for start, end, value in find_numbers(source.text):
        if theirs[value] != ours[value]:
            found.append(f"{source.text[start:end]} appears {_times(ours[value])}, not {_times(theirs[value])}")
    for mark in source.marks:
        text = source.text[mark.at : mark.at + mark.length]
        if text.strip() and (here := len(_occurrences(text, source.text))) != (
            there := len(_occurrences(text, target.text))
        ):
            found.append(f"{text} appears {_times(there)}, not {_times(here)}")
    if Counter(mark.written for mark in source.marks) != Counter(mark.written for mark in target.marks):
        found.append("a tag is lost or doubled")
    return tuple(dict.fromkeys(found))


def _times(count: int) -> str:
    return {0: "nowhere", 1: "once", 2: "twice"}.get(count, f"{count:,} times")
