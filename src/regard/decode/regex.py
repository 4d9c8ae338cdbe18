"""Regular expressions compiled to an automaton over characters: Thompson's construction, then subsets of its nodes.

The structure is parsed here; which characters a class, a dot or an escape means is asked of Python's `re`. Patterns
that are not regular (references, lookarounds), and those that need too many states, are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from regard.data.tokenize.surfaces import is_lone_byte, lone_bytes
from regard.decode.automaton import DEAD, CharacterAutomaton
from regard.errors import InputError

_MOST_CHARACTERS = 2000
_MOST_NODES = 20_000
_MOST_STATES = 4000
_MOST_WORK = 4_000_000  # nodes visited while subsets are built
_MOST_DEPTH = 100  # of groups

_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[dDwWsSnrtfv]|[^\w])", re.DOTALL)
_COUNTS = re.compile(r"\{(\d*)(,?)(\d*)\}")
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>|(?!\?))")

# A node of the parsed pattern: a set of characters as its source, a sequence, alternatives, or a repetition.
_Node = str | tuple[str, list["_Node"]] | tuple["_Node", int, int | None]


def compile_regex(pattern: str, characters: Sequence[str]) -> CharacterAutomaton:
    """The automaton of a pattern that all of a text must match, over these characters."""
    if len(pattern) > _MOST_CHARACTERS:
        raise _refused(pattern, f"it has {len(pattern):,} characters, the most is {_MOST_CHARACTERS:,}")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise _refused(pattern, str(error)) from None
    found = re.match(r"\(\?([aimsx]+)\)", pattern)
    if found and set(found[1]) - {"i", "s"}:
        raise _refused(pattern, f"the flags {found[1]} are not read, only i and s")
    flags = re.NOFLAG
    for name in found[1] if found else "":
        flags |= re.IGNORECASE if name == "i" else re.DOTALL
    parser = _Parser(pattern, found.end() if found else 0)
    graph = _Graph(pattern)
    end = graph.add(parser.parse(), graph.node())
    return _determine(graph, end, characters, flags)


def _refused(pattern: str, why: str) -> InputError:
    shown = pattern if len(pattern) <= 60 else pattern[:57] + "..."
    return InputError(f"the regular expression {shown!r} cannot be used: {why} (regex). Change it.")


class _Parser:
    """Recursive descent over the structure of a pattern, which `re` has found valid."""

    def __init__(self, pattern: str, start: int) -> None:
        self.pattern, self.at, self.depth = pattern, start, 0

    def parse(self) -> _Node:
        if self.pattern[self.at : self.at + 1] == "^":
            self.at += 1
        node = self.alternatives()
        if self.at < len(self.pattern):
            raise _refused(self.pattern, f'"{self.pattern[self.at]}" at character {self.at + 1} stands alone')
        return node

    def alternatives(self) -> _Node:
        """What stands between | signs."""
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise _refused(self.pattern, f"more than {_MOST_DEPTH} groups are in each other")
        several = [self.sequence()]
        while self.pattern[self.at : self.at + 1] == "|":
            self.at += 1
            several.append(self.sequence())
        self.depth -= 1
        return several[0] if len(several) == 1 else ("|", several)

    def sequence(self) -> _Node:
        parts: list[_Node] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            if self.pattern[self.at] == "$" and self.at == len(self.pattern) - 1:
                self.at += 1
                break
            parts.append(self.repeated(self.one()))
        return ("", parts)

    def one(self) -> _Node:
        """A group, or the source of one set of characters."""
        sign = self.pattern[self.at]
        if sign == "(":
            group = _GROUP.match(self.pattern, self.at)
            if group is None:
                raise _refused(
                    self.pattern, f'"{self.pattern[self.at : self.at + 3]}" is not regular, or not read here'
                )
            self.at = group.end()
            node = self.alternatives()
            self.at += 1
            return node
        if sign in "^$":
            raise _refused(
                self.pattern, f'"{sign}" at character {self.at + 1} is not at the end; all must match anyway'
            )
        shape = {"[": _CLASS, "\\": _ESCAPE}.get(sign)
        found = shape.match(self.pattern, self.at) if shape else None
        if shape and found is None:
            raise _refused(self.pattern, f'"{self.pattern[self.at : self.at + 2]}" is not regular, or not read here')
        source = found[0] if found else sign
        self.at += len(source)
        return source if found or sign == "." else re.escape(source)

    def repeated(self, node: _Node) -> _Node:
        counts: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        sign = self.pattern[self.at : self.at + 1]
        found = _COUNTS.match(self.pattern, self.at)
        if sign in counts and sign:
            least, most = counts[sign]
            self.at += 1
        elif found and found[0] != "{}":
            least = int(found[1] or 0)
            most = int(found[3]) if found[3] else None if found[2] else least
            self.at = found.end()
        else:
            return node
        if self.pattern[self.at : self.at + 1] == "+":
            raise _refused(self.pattern, "a possessive repetition is not regular")
        if self.pattern[self.at : self.at + 1] == "?":  # which match is found first makes no difference here
            self.at += 1
        return (node, least, most)


@dataclass
class _Graph:
    """The nodes of Thompson's automaton: edges with a set of characters, and edges without."""

    pattern: str
    edges: list[list[tuple[str, int]]] = field(default_factory=list)
    free: list[list[int]] = field(default_factory=list)

    def node(self) -> int:
        if len(self.edges) >= _MOST_NODES:
            raise _refused(self.pattern, f"it repeats too much, for more than {_MOST_NODES:,} nodes")
        self.edges.append([])
        self.free.append([])
        return len(self.edges) - 1

    def add(self, part: _Node, start: int) -> int:
        """Add a part of the pattern after a node; -> the node after it."""
        if isinstance(part, str):
            end = self.node()
            self.edges[start].append((part, end))
            return end
        if len(part) == 3:
            return self._repeat(part[0], part[1], part[2], start)
        sign, parts = part
        if sign == "|":
            end = self.node()
            for one in parts:
                first = self.node()
                self.free[start].append(first)
                self.free[self.add(one, first)].append(end)
            return end
        for one in parts:
            start = self.add(one, start)
        return start

    def _repeat(self, part: _Node, least: int, most: int | None, start: int) -> int:
        for _ in range(least):
            start = self.add(part, start)
        if most is None:
            first = self.node()
            self.free[start].append(first)
            self.free[self.add(part, first)].append(first)
            return first
        end = self.node()
        self.free[start].append(end)
        for _ in range(most - least):
            first = self.node()
            self.free[start].append(first)
            start = self.add(part, first)
            self.free[start].append(end)
        return end


def _determine(graph: _Graph, end: int, characters: Sequence[str], flags: re.RegexFlag) -> CharacterAutomaton:
    """Subset construction over classes: characters that the same sets hold are one class."""
    sources = sorted({source for edges in graph.edges for source, _ in edges})
    spelled = _spelled(sources)
    known = sorted({*characters, *spelled, *"".join(map(lone_bytes, spelled))})
    matchers = [re.compile(source, flags) for source in sources]
    holds = np.array([[not is_lone_byte(c) and bool(one.fullmatch(c)) for c in known] for one in matchers], dtype=bool)
    _add_bytes(graph, sources, spelled, flags)
    lone = [[c == source for c in known] for source in sorted(_lone_sources(graph))]
    named = [*sources, *sorted(_lone_sources(graph))]
    every = np.concatenate(
        [holds.reshape(len(sources), len(known)), np.array(lone, dtype=bool).reshape(-1, len(known))]
    )
    columns, class_of = np.unique(every, axis=1, return_inverse=True)
    members = dict(zip(named, columns))
    numbers = dict(zip(known, class_of.reshape(-1).tolist()))
    rows, subsets = _subsets(graph, members, columns.shape[1])
    accepting = np.array([end in subset for subset in subsets])
    return CharacterAutomaton(np.array(rows, dtype=np.int32), accepting, lambda c: numbers.get(c, DEAD))


def _spelled(sources: Sequence[str]) -> list[str]:
    """The characters beyond ASCII that the pattern itself spells; tokens may hold only their bytes."""
    found = {c for source in sources for c in source if not c.isascii()}
    found |= {c for source in sources if source.startswith("\\") for c in [_character(source)] if not c.isascii()}
    return sorted(found)


def _character(source: str) -> str:
    """The character of an escape by number, else a backslash."""
    return chr(int(source[2:], 16)) if source[1:2] in ("x", "u", "U") else "\\"


def _add_bytes(graph: _Graph, sources: Sequence[str], spelled: Sequence[str], flags: re.RegexFlag) -> None:
    """Beside an edge of characters that the pattern spells, ways of their bytes."""
    held = {source: [c for c in spelled if re.fullmatch(source, c, flags)] for source in sources}
    for start, edges in enumerate(list(graph.edges)):
        for source, end in list(edges):
            for character in held.get(source, ()):
                at, *rest = start, *lone_bytes(character)
                for byte in rest[:-1]:
                    following = graph.node()
                    graph.edges[at].append((byte, following))
                    at = following
                graph.edges[at].append((rest[-1], end))


def _lone_sources(graph: _Graph) -> set[str]:
    return {source for edges in graph.edges for source, _ in edges if is_lone_byte(source[0])}


def _subsets(
    graph: _Graph, members: dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]], classes: int
) -> tuple[list[list[int]], list[frozenset[int]]]:
    """The states reached from the first node, and where each class leads from them."""
    work = 0

    def closed(nodes: set[int]) -> frozenset[int]:
        waiting = list(nodes)
        while waiting:
            for following in graph.free[waiting.pop()]:
                if following not in nodes:
                    nodes.add(following)
                    waiting.append(following)
        return frozenset(nodes)

    states = {closed({0}): 0}
    found, rows = list(states), list[list[int]]()
    for subset in found:
        reached: list[set[int]] = [set() for _ in range(classes)]
        for node in subset:
            for source, following in graph.edges[node]:
                for number in np.flatnonzero(members[source]).tolist():
                    reached[number].add(following)
                    work += 1
        row = []
        for nodes in reached:
            state = closed(nodes)
            work += len(state)
            if state and state not in states:
                states[state] = len(states)
                found.append(state)
            row.append(states[state] if state else DEAD)
        rows.append(row)
        if len(states) > _MOST_STATES or work > _MOST_WORK:
            raise _refused(graph.pattern, f"it needs more than {_MOST_STATES:,} states, or very much work")
    return rows, found
