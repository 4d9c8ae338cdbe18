"""Collect attention weights in one forward pass, in blocks of queries: memory does not grow with the text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.decode.workers import Workers
from regard.errors import InputError
from regard.layers.record import AttentionWeights, Record, Rows, ScoreInputs, WeightBlock
from regard.models.model import Network
from regard.progress import QUIET, Progress
from regard.show.summary import PooledTiles, block_statistics, top_keys

_BLOCK = 1 << 20  # weights per block: few enough for the processor's cache, and enough for few calls
_QUERIES = 32  # per block at least, up to four times as many weights: all keys are read for each block
_BUDGET = 25_000_000  # weights stored per text, over all layers and heads
_VECTORS = 10_000_000  # numbers stored of queries, keys and biases
_MAX_MATRIX = 1 << 27  # weights of a layer that are returned as one tensor
_TILES = (512, 256, 128, 64, 32)
_MAX_TOP_KEYS = 64


class Stopped(Exception):
    """Raised by a `Progress` to stop: what is ready by then is shown."""


@dataclass(frozen=True)
class AttentionShape:
    """The size of a layer's attention, and how many numbers its queries, keys and bias are."""

    heads: int
    queries: int
    keys: int
    score_numbers: int

    @property
    def weights(self) -> int:
        return self.heads * self.queries * self.keys


@dataclass(frozen=True)
class StoragePlan:
    """What to store of a layer: all weights, or max-pooled tiles and the top keys of each query."""

    full: bool
    tiles: int = 0
    top_keys: int = 0
    score_inputs: bool = True


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """The attention of one layer: its weights, or for a long text max-pooled tiles and each query's top keys."""

    shape: AttentionShape
    weights: Tensor | None  # HTS
    tiles: Tensor | None  # Hnn, the maximum of each tile
    top: tuple[Tensor, Tensor] | None  # HTk keys, largest weight first, -1 for none; HTk their weights
    entropy: Tensor  # H, in bits, the mean over queries
    distance: Tensor  # H, between query and key, in tokens, weighted by attention
    confidence: Tensor  # H, the maximum weight of a query, the mean over queries (Voita 2019)
    score_inputs: ScoreInputs | None = None  # of the only batch row, without the batch axis
    value_norms: Tensor | None = None  # HS
    buckets: Tensor | None = None  # HTR

    def reduced(self, plan: StoragePlan) -> LayerAttention:
        """The part that a smaller plan stores."""
        score_inputs = self.score_inputs if plan.score_inputs else None
        if plan.full or self.weights is None:
            return replace(self, score_inputs=score_inputs)
        pooled = LayerAccumulator(self.shape, plan)
        for head, weights in enumerate(self.weights):
            pooled.add_block(head, 0, WeightBlock(weights))
        part = pooled.layer(self.buckets)
        return replace(self, weights=None, tiles=part.tiles, top=part.top, score_inputs=score_inputs)


def plan_storage(shapes: Mapping[str, AttentionShape], sharing: int = 1) -> dict[str, StoragePlan]:
    """What to store of each layer within the budget, which `sharing` traces divide; equal layers get equal plans."""
    budget, vectors = _BUDGET // sharing, _VECTORS // sharing
    score_inputs = sum(shape.score_numbers for shape in shapes.values()) <= vectors
    fits = sum(shape.weights for shape in shapes.values()) <= budget
    small = {name for name, shape in shapes.items() if fits or shape.weights <= budget // 2 // len(shapes)}
    large = [shape for name, shape in shapes.items() if name not in small]
    left = budget - sum(shapes[name].weights for name in small)
    heads, rows = sum(shape.heads for shape in large), sum(shape.heads * shape.queries for shape in large)
    tiles = next((count for count in _TILES if heads * count**2 <= left // 4), _TILES[-1])
    keys = min(_MAX_TOP_KEYS, max(1, left // 4 // max(1, rows)))  # a top key takes three times the space of a weight
    return {
        name: StoragePlan(True, score_inputs=score_inputs)
        if name in small
        else StoragePlan(False, min(tiles, shape.queries, shape.keys), min(keys, shape.keys), score_inputs)
        for name, shape in shapes.items()
    }


@dataclass
class SizeProbe(Record):
    """A record that only measures the size of each layer's attention."""

    needs_outputs: ClassVar[bool] = False
    shapes: dict[str, AttentionShape] = field(default_factory=dict)

    def record_attention(self, name: str, weights: AttentionWeights, output: Tensor) -> None:
        before = self.shapes.get(name, AttentionShape(0, 0, 0, 0)).queries
        queries, inputs = before + weights.queries, weights.score_inputs()
        numbers = 0 if inputs is None else weights.heads * (queries + weights.keys) * inputs.query.shape[-1]
        numbers += 0 if inputs is None or inputs.bias is None else inputs.bias[0].numel()
        self.shapes[name] = AttentionShape(weights.heads, queries, weights.keys, numbers)


@dataclass
class LazyRecord(Record):
    """A record that stores the lazy weights of a layer without computing any."""

    weights: list[AttentionWeights] = field(default_factory=list)

    def record_attention(self, name: str, weights: AttentionWeights, output: Tensor) -> None:
        self.weights.append(weights)


@dataclass
class BlockwiseRecord(Record):
    """A record that computes and stores the weights of every layer block by block, as planned; heads side by side."""

    workers: Workers | None = None
    shapes: Mapping[str, AttentionShape] = field(default_factory=dict)
    plans: Mapping[str, StoragePlan] = field(default_factory=dict)
    accumulators: dict[str, LayerAccumulator] = field(default_factory=dict)
    progress: Progress = QUIET

    def record_attention(self, name: str, weights: AttentionWeights, output: Tensor) -> None:
        if name not in self.accumulators:
            self.accumulators[name] = LayerAccumulator(self.shapes[name], self.plans[name])
        self.accumulators[name].add(weights, self.progress, self.workers)

    def layers(self) -> dict[str, LayerAttention]:
        """The layers whose queries have all been added."""
        buckets = {name: torch.cat(parts, dim=2)[0].cpu() for name, parts in self.buckets.items()}
        complete = {name: one for name, one in self.accumulators.items() if one.queries == one.shape.queries}
        return {name: accumulator.layer(buckets.get(name)) for name, accumulator in complete.items()}


class LayerAccumulator:
    """Accumulates the attention of one layer over calls, heads and blocks of queries."""

    def __init__(self, shape: AttentionShape, plan: StoragePlan) -> None:
        self.shape, self.plan, self.queries = shape, plan, 0
        self.statistics = torch.zeros(3, shape.heads)
        self.weights = torch.zeros(shape.heads, shape.queries, shape.keys) if plan.full else None
        heads = 0 if plan.full else shape.heads
        self.tiles = [PooledTiles(shape.queries, shape.keys, plan.tiles) for _ in range(heads)]
        self.top_keys = torch.full((shape.heads, shape.queries, plan.top_keys), -1, dtype=torch.int32)
        self.top_weights = torch.zeros(shape.heads, shape.queries, plan.top_keys)
        self.score_inputs: list[ScoreInputs] = []
        self.value_norms: Tensor | None = None

    def add(self, weights: AttentionWeights, progress: Progress, workers: Workers | None = None) -> None:
        """Add the queries of the next call, head by head and block by block; workers share the heads."""

        def add_head(head: int) -> None:
            block_of = weights.blocks(head)
            for queries in block_slices(0, weights.queries, weights):
                if workers is not None:
                    workers.check()
                self.add_block(head, self.queries + queries.start, block_of(queries))
                progress(queries.stop - queries.start)

        heads = range(self.shape.heads)
        for _ in map(add_head, heads) if workers is None else workers.run(heads, add_head):
            pass
        self.queries += weights.queries
        if self.value_norms is None:
            self.value_norms = weights.value_norms()[0].float().cpu()
        if self.plan.score_inputs and (inputs := weights.score_inputs()) is not None:
            self.score_inputs.append(inputs)

    def add_block(self, head: int, first: int, block: WeightBlock) -> None:
        """Add a block of one head, for the queries from `first` on."""
        self.statistics[:, head] += block_statistics(block, first).cpu()
        queries = slice(first, first + len(block.weights))
        if self.weights is not None:
            found = block.weights.cpu()
            if block.keys is None:
                self.weights[head, queries, : found.shape[1]] = found
            else:  # a key may be listed again at weight 0
                self.weights[head, queries].scatter_add_(1, block.keys.cpu(), found)
            return
        self.tiles[head].add(first, block.weights, block.keys)
        keys, weights = top_keys(block.weights, self.plan.top_keys, block.keys)
        self.top_keys[head, queries, : keys.shape[1]] = keys.to("cpu", torch.int32)
        self.top_weights[head, queries, : keys.shape[1]] = weights.cpu()

    def layer(self, buckets: Tensor | None) -> LayerAttention:
        tiles = None if self.plan.full else torch.stack([head.weights for head in self.tiles])
        top = None if self.plan.full else (self.top_keys, self.top_weights)
        entropy, distance, confidence = self.statistics / max(1, self.queries)
        inputs = _joined(self.score_inputs) if self.score_inputs else None
        return LayerAttention(
            self.shape, self.weights, tiles, top, entropy, distance, confidence, inputs, self.value_norms, buckets
        )


def _joined(parts: Sequence[ScoreInputs]) -> ScoreInputs:
    """The score inputs of successive calls as one, for the only batch row: queries append, keys are the same."""
    first = parts[0]
    query, key = torch.cat([part.query for part in parts], dim=2)[0].float().cpu(), first.key[0].float().cpu()
    vector = None if first.vector is None else first.vector.float().cpu()
    bias = None if first.bias is None else first.bias[0].float().cpu()
    return replace(first, query=query, key=key, vector=vector, bias=bias)


def block_slices(first: int, last: int, weights: AttentionWeights, keys: int | None = None) -> Iterator[slice]:
    """The queries of each block of about _BLOCK weights."""
    keys = max(1, weights.most_keys if keys is None else keys)
    while first < last:
        step = max(_BLOCK // keys, min(_QUERIES, 4 * _BLOCK // keys))
        if weights.only_earlier_keys:  # step * (first + step) = _BLOCK
            step = max(step, int(math.sqrt(first**2 / 4 + _BLOCK) - first / 2))
        stop = min(first + max(1, step), last)
        yield slice(first, stop)
        first = stop


@dataclass(eq=False)
class Collector:
    """A network and its inputs for one text; what is not stored is computed again by another forward pass."""

    network: Network
    inputs: Mapping[str, Any]
    wanted: Callable[[str], bool] = lambda name: True
    _last_layer: tuple[str, list[AttentionWeights]] = ("", [])  # lazy weights of the layer last used, call by call
    _last_head: tuple[str, int, list[tuple[Rows, AttentionWeights]]] = ("", 0, [])  # and of its head

    @cached_property
    def shapes(self) -> dict[str, AttentionShape]:
        probe = SizeProbe(self.wanted)
        self.forward(probe)
        return probe.shapes

    @cached_property
    def plans(self) -> dict[str, StoragePlan]:
        return plan_storage(self.shapes)

    @cached_property
    def layers(self) -> dict[str, LayerAttention]:
        """The attention of each layer, collected on first use."""
        return self.collect(QUIET)

    def collect(self, progress: Progress) -> dict[str, LayerAttention]:
        """The attention of each layer, or of those that are complete when `progress` raises Stopped.

        Reports progress in queries times heads.
        """
        if "layers" not in vars(self):
            record = BlockwiseRecord(
                self.wanted, shapes=self.shapes, plans=self.plans, progress=progress, workers=Workers(self.network)
            )
            with suppress(Stopped):
                self.forward(record)
            self.layers = record.layers()
        return self.layers

    @property
    def work(self) -> int:
        """How many queries times heads are still to be collected."""
        return 0 if "layers" in vars(self) else sum(shape.heads * shape.queries for shape in self.shapes.values())

    @torch.no_grad()
    def forward(self, record: Record) -> None:
        """Run one forward pass that writes into the record."""
        self.network.hidden_states(**self.inputs, record=record)

    @torch.no_grad()
    def rows(self, name: str, head: int, first: int, last: int) -> Tensor:
        """-> tS: the weights of some queries of one head."""
        found = torch.zeros(max(0, last - first), self.shapes[name].keys)
        for start, block in self.blocks(name, head, first, last):
            found[start - first : start - first + len(block), : block.shape[1]] = block.cpu()
        return found

    def matrix(self, name: str) -> Tensor:
        """-> HTS: all weights of a layer."""
        shape = self.shapes[name]
        if shape.weights > _MAX_MATRIX:
            raise InputError(
                f"{shape.heads} heads of {shape.queries:,} by {shape.keys:,} weights do not fit into memory ({name}). "
                "Compute some rows instead: trace.rows(name, head, first, last)."
            )
        return torch.stack([self.rows(name, head, 0, shape.queries) for head in range(shape.heads)])

    def blocks(self, name: str, head: int, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """The first query and the weights ts of each block; those of later keys are 0."""
        if name not in self.shapes or not 0 <= head < self.shapes[name].heads:
            raise InputError(f"head {head} of {name!r} was not traced. Traced layers: {', '.join(self.shapes)}.")
        before = 0
        for rows, weights in self._lazy_rows(name, head):
            begin, end = max(first - before, 0), min(last - before, weights.queries)
            for queries in block_slices(begin, end, weights, weights.keys):
                yield before + queries.start, rows(queries)[0].float()
            before += weights.queries

    def _lazy_rows(self, name: str, head: int) -> list[tuple[Rows, AttentionWeights]]:
        """The lazy weights of a head, and of its layer, call by call."""
        if self._last_layer[0] != name:
            record = LazyRecord(lambda layer: layer == name)
            self.forward(record)
            self._last_layer = name, record.weights
        if self._last_head[:2] != (name, head):
            self._last_head = name, head, [(part.head(head), part) for part in self._last_layer[1]]
        return self._last_head[2]


def max_pool(weights: Tensor, rows: int, columns: int) -> Tensor:
    """T x S -> at most rows x columns tiles, the maximum of each."""
    height, width = (max(1, -(-length // most)) for length, most in zip(weights.shape, (rows, columns)))
    padded = torch.nn.functional.pad(weights, (0, -weights.shape[1] % width, 0, -weights.shape[0] % height))
    tiles: Tensor = padded.unflatten(1, (-1, width)).unflatten(0, (-1, height))
    return tiles.amax((1, 3))
