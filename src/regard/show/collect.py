"""One reading of a text, looked at in blocks of queries, so that a long one needs no more memory than a short one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.decode.generate import Progress
from regard.errors import InputError
from regard.layers.record import Attended, Inside, Record, Rows
from regard.models.model import Network
from regard.show.summary import Tiles, measured, weightiest

_BLOCK = 1 << 24  # weights worked on at once
_BUDGET = 25_000_000  # weights kept of a text, over all layers and heads
_VECTORS = 10_000_000  # numbers kept of what weights are made of
_MOST = 1 << 27  # weights of a layer that are given at once to who asks for them
_TILES = (512, 256, 128, 64, 32)
_MOST_KEYS = 64


@dataclass(frozen=True)
class Shape:
    """How large a layer's attention is, and how many numbers its queries, keys and bias are."""

    heads: int
    queries: int
    keys: int
    inside: int

    @property
    def weights(self) -> int:
        """How many weights there are."""
        return self.heads * self.queries * self.keys


@dataclass(frozen=True)
class Plan:
    """What to keep of a layer: its weights, or so many tiles each way and keys of each query."""

    whole: bool
    tiles: int = 0
    keys: int = 0
    inside: bool = True


@dataclass(frozen=True, eq=False)
class Layer:
    """What is known of a layer's attention: the weights, or of a long text tiles and each query's weightiest keys."""

    shape: Shape
    weights: Tensor | None  # HTS
    tiles: Tensor | None  # Hnn, the greatest weight in each
    top: tuple[Tensor, Tensor] | None  # HTk keys, weightiest first, -1 for none; HTk their weights
    entropy: Tensor  # H, in bits, the mean over queries
    distance: Tensor  # H, between a query and what it attends to, in tokens
    peak: Tensor  # H, the greatest weight of a query, the mean over queries
    inside: Inside | None = None  # of the one row, without an axis for it
    norms: Tensor | None = None  # HS
    buckets: Tensor | None = None  # HTR

    def thinned(self, plan: Plan) -> Layer:
        """What is left of it where less can be kept."""
        inside = self.inside if plan.inside else None
        if plan.whole or self.weights is None:
            return replace(self, inside=inside)
        kept = Gathered(self.shape, plan)
        for head, weights in enumerate(self.weights):
            kept.put(head, 0, weights)
        thin = kept.layer(self.buckets)
        return replace(self, weights=None, tiles=thin.tiles, top=thin.top, inside=inside)


def planned(shapes: Mapping[str, Shape], sharing: int = 1) -> dict[str, Plan]:
    """What to keep of each layer so that all stays within bounds, shared by so many looks: alike of layers alike."""
    budget, vectors = _BUDGET // sharing, _VECTORS // sharing
    inside = sum(shape.inside for shape in shapes.values()) <= vectors
    fits = sum(shape.weights for shape in shapes.values()) <= budget
    small = {name for name, shape in shapes.items() if fits or shape.weights <= budget // 2 // len(shapes)}
    large = [shape for name, shape in shapes.items() if name not in small]
    left = budget - sum(shapes[name].weights for name in small)
    heads, rows = sum(shape.heads for shape in large), sum(shape.heads * shape.queries for shape in large)
    tiles = next((count for count in _TILES if heads * count**2 <= left // 4), _TILES[-1])
    keys = min(_MOST_KEYS, max(1, left // 4 // max(1, rows)))  # a key takes three times the room of a weight
    return {
        name: Plan(True, inside=inside)
        if name in small
        else Plan(False, min(tiles, shape.queries, shape.keys), min(keys, shape.keys), inside)
        for name, shape in shapes.items()
    }


@dataclass
class Tally(Record):
    """Only asks how much there is to look at."""

    shapes: dict[str, Shape] = field(default_factory=dict)

    def watch(self, name: str, attended: Attended) -> None:
        """Count the queries of a layer."""
        before = self.shapes.get(name, Shape(0, 0, 0, 0)).queries
        queries, inside = before + attended.queries, attended.inside()
        compared = attended.heads * (queries + attended.keys) * inside.query.shape[-1]
        compared += 0 if inside.bias is None else inside.bias[0].numel()
        self.shapes[name] = Shape(attended.heads, queries, attended.keys, compared)


@dataclass
class Held(Record):
    """Keeps what can tell a layer's weights, and none of them."""

    attended: list[Attended] = field(default_factory=list)

    def watch(self, name: str, attended: Attended) -> None:
        """Keep it."""
        self.attended.append(attended)


@dataclass
class Sight(Record):
    """Takes in what every layer attends to, block by block, as planned."""

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    plans: Mapping[str, Plan] = field(default_factory=dict)
    found: dict[str, Gathered] = field(default_factory=dict)
    progress: Progress = lambda done: None

    def watch(self, name: str, attended: Attended) -> None:
        """Take a layer's next queries in."""
        if name not in self.found:
            self.found[name] = Gathered(self.shapes[name], self.plans[name])
        self.found[name].take(attended, self.progress)

    def layers(self) -> dict[str, Layer]:
        """All that was seen."""
        buckets = {name: torch.cat(parts, dim=2)[0].cpu() for name, parts in self.buckets.items()}
        return {name: found.layer(buckets.get(name)) for name, found in self.found.items()}


class Gathered:
    """What has been taken in of a layer so far."""

    def __init__(self, shape: Shape, plan: Plan) -> None:
        self.shape, self.plan, self.queries = shape, plan, 0
        self.measures = torch.zeros(3, shape.heads)
        self.weights = torch.empty(shape.heads, shape.queries, shape.keys) if plan.whole else None
        self.tiles = [Tiles(shape.queries, shape.keys, plan.tiles) for _ in range(0 if plan.whole else shape.heads)]
        self.keys = torch.empty(shape.heads, shape.queries, plan.keys, dtype=torch.int32)
        self.tops = torch.empty(shape.heads, shape.queries, plan.keys)
        self.inside: list[Inside] = []
        self.norms: Tensor | None = None

    def take(self, attended: Attended, progress: Progress) -> None:
        """Take the next queries in, head by head and block by block."""
        for head in range(self.shape.heads):
            for first, block in blocks(attended.head(head), 0, attended.queries, attended.keys):
                self.put(head, self.queries + first, block)
                progress(len(block))
        self.queries += attended.queries
        if self.norms is None:
            self.norms = attended.norms()[0].float().cpu()
        if self.plan.inside:
            self.inside.append(attended.inside())

    def put(self, head: int, first: int, block: Tensor) -> None:
        """Take tS of one head."""
        self.measures[:, head] += measured(block, first).cpu()
        queries = slice(first, first + len(block))
        if self.weights is not None:
            self.weights[head, queries] = block.cpu()
            return
        self.tiles[head].put(first, block)
        keys, weights = weightiest(block, self.plan.keys)
        self.keys[head, queries], self.tops[head, queries] = keys.to("cpu", torch.int32), weights.cpu()

    def layer(self, buckets: Tensor | None) -> Layer:
        """What was seen of the layer."""
        tiles = None if self.plan.whole else torch.stack([head.weights for head in self.tiles])
        top = None if self.plan.whole else (self.keys, self.tops)
        entropy, distance, peak = self.measures / max(1, self.queries)
        return Layer(
            self.shape, self.weights, tiles, top, entropy, distance, peak, _joined(self.inside), self.norms, buckets
        )  # fmt: skip


def _joined(parts: Sequence[Inside]) -> Inside | None:
    """What the weights of the one row are made of, from calls one after the other: the keys are the same."""
    if not parts:
        return None
    first, queries = parts[0], torch.cat([part.query for part in parts], dim=2)
    bare = [None if part is None else part.float().cpu() for part in (first.vector, first.bias)]
    bias = None if bare[1] is None else bare[1][0]
    return replace(
        first, query=queries[0].float().cpu(), key=first.key[0].float().cpu(), vector=bare[0], bias=bias
    )  # fmt: skip


def blocks(rows: Rows, first: int, last: int, keys: int) -> Iterator[tuple[int, Tensor]]:
    """The first query of each block, and its weights tS; no block is larger than it may be."""
    step = max(1, _BLOCK // max(1, keys))
    for start in range(first, last, step):
        yield start, rows(slice(start, min(start + step, last)))[0].float()


@dataclass(eq=False)
class Reading:
    """A network and one text, as it is given to it; what is asked for later is read again."""

    network: Network
    inputs: Mapping[str, Any]
    wanted: Callable[[str], bool] = lambda name: True
    _layer: tuple[str, list[Attended]] = ("", [])  # the layer last asked for, call by call
    _head: tuple[str, int, list[tuple[Rows, int]]] = ("", 0, [])  # and its head

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """How large the attention of each layer is."""
        tally = Tally(self.wanted)
        self.read(tally)
        return tally.shapes

    @cached_property
    def plans(self) -> dict[str, Plan]:
        """What is kept of each layer."""
        return planned(self.shapes)

    @cached_property
    def layers(self) -> dict[str, Layer]:
        """What is known of each layer."""
        return self.gathered(lambda done: None)

    def gathered(self, progress: Progress) -> dict[str, Layer]:
        """What is known of each layer; says of how many more heads' queries it is."""
        if "layers" not in vars(self):
            sight = Sight(self.wanted, shapes=self.shapes, plans=self.plans, progress=progress)
            self.read(sight)
            self.layers = sight.layers()
        return self.layers

    @property
    def effort(self) -> int:
        """How many heads' queries are still to be looked at."""
        return 0 if "layers" in vars(self) else sum(shape.heads * shape.queries for shape in self.shapes.values())

    @torch.no_grad()
    def read(self, record: Record) -> None:
        """Read the text once."""
        self.network.hidden_states(**self.inputs, record=record)

    @torch.no_grad()
    def rows(self, name: str, head: int, first: int, last: int) -> Tensor:
        """-> tS: what some queries attend to in one head."""
        found = [block.cpu() for _, block in self.blocks(name, head, first, last)]
        return torch.cat(found) if found else torch.zeros(0, self.shapes[name].keys)

    def matrix(self, name: str) -> Tensor:
        """-> HTS: all weights of a layer."""
        shape = self.shapes[name]
        if shape.weights > _MOST:
            raise InputError(
                f"{shape.heads} heads of {shape.queries:,} by {shape.keys:,} weights are too many to hold ({name}). "
                "Ask for some of them: seen.rows(name, head, first, last)."
            )
        return torch.stack([self.rows(name, head, 0, shape.queries) for head in range(shape.heads)])

    def blocks(self, name: str, head: int, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """The first query of each block, and its weights tS."""
        if name not in self.shapes or not 0 <= head < self.shapes[name].heads:
            raise InputError(f"no head {head} of {name!r} was looked at. Known: {', '.join(self.shapes)}.")
        keys, before = self.shapes[name].keys, 0
        for rows, queries in self.held(name, head):
            begin, end = max(first - before, 0), min(last - before, queries)
            for start, block in blocks(rows, begin, end, keys):
                yield before + start, block
            before += queries

    def held(self, name: str, head: int) -> list[tuple[Rows, int]]:
        """What tells the weights of a head, call by call, and of how many queries."""
        if self._layer[0] != name:
            record = Held(lambda layer: layer == name)
            self.read(record)
            self._layer = name, record.attended
        if self._head[:2] != (name, head):
            self._head = name, head, [(part.head(head), part.queries) for part in self._layer[1]]
        return self._head[2]
