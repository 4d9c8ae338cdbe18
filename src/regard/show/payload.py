"""The data of the page: one JSON object per trace, and its tensors as bytes (blobs)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor

from regard.decode.generate import Progress
from regard.errors import InputError
from regard.layers.contract import facts_of
from regard.layers.record import ScoreInputs
from regard.models.model import Network
from regard.show.ablation import ablate_each_head
from regard.show.collect import LayerAttention, plan_storage
from regard.show.embeddings import nearest_neighbours, position_tables
from regard.show.generation import generation_steps
from regard.show.html import page
from regard.store.files import write_file

if TYPE_CHECKING:
    from regard.show.trace import AttentionTrace, Example

    Traces = Sequence[tuple[str, AttentionTrace]]

TITLE = "What the model attends to"
_MAX_TOKENS = 4_096  # a longer text has no candidates and no nearest neighbours
_MAX_ABLATION_TOKENS = 1 << 16  # tokens processed again, over all heads, for the ablation of each head
_MAX_HALF = 65_504.0
_QUIET: Progress = lambda done: None  # noqa: E731

TensorRef = dict[str, Any]
"""The blob of a tensor, its number type and its shape."""


@dataclass
class Blobs:
    """Tensors as little-endian bytes; equal bytes are stored once."""

    data: list[bytes] = field(default_factory=list)
    _known: dict[bytes, int] = field(default_factory=dict)

    def add(self, tensor: Tensor | None, kind: Literal["f2", "f4", "i4", "u2"] = "f2") -> TensorRef | None:
        """Store a tensor, and return its reference; None for None."""
        if tensor is None:
            return None
        found = tensor.detach().cpu()
        if kind == "f2":
            found = found.float().nan_to_num(0.0).clamp(-_MAX_HALF, _MAX_HALF)
        data = np.ascontiguousarray(found.numpy().astype(f"<{kind}")).tobytes()
        number = self._known.setdefault(data, len(self.data))
        if number == len(self.data):
            self.data.append(data)
        return {"blob": number, "type": kind, "shape": list(tensor.shape)}


class TracePage:
    """A page of traces: saved as one self-contained file, or displayed in a notebook."""

    slider = False  # the traces are checkpoints of one run, in order

    @property
    def traces(self) -> Traces:
        """The traces of the page, each with its label."""
        raise NotImplementedError

    @property
    def work(self) -> int:
        """The work of making the page, in tokens times heads."""
        traces = [(trace, trace.example) for _, trace in self.traces if trace.example is not None]
        return sum(example.collector.work + _ablation_work(trace) for trace, example in traces)

    def save(self, path: str | Path, *, progress: Progress = _QUIET) -> None:
        """Write one self-contained HTML file; reports progress in units of `work`."""
        write_file(Path(path), self.html(progress=progress).encode())

    def html(self, title: str = TITLE, *, progress: Progress = _QUIET) -> str:
        """The page that `save` writes."""
        payload, blobs = page_payload(self.traces, title=title, slider=self.slider, progress=progress)
        return page(payload, blobs)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html())}" width="100%" height="800" frameborder="0"></iframe>'


@dataclass(frozen=True, eq=False)
class SideBySide(TracePage):
    """Several traces on one page."""

    labelled: Traces
    slider: bool = False

    @property
    def traces(self) -> Traces:
        return self.labelled


def side_by_side(*traces: AttentionTrace, labels: Sequence[str] | None = None, slider: bool = False) -> SideBySide:
    """Traces side by side on one page; with `slider`, as the checkpoints of one run, in this order."""
    labels = [str(number) for number in range(1, len(traces) + 1)] if labels is None else labels
    if len(labels) != len(traces) or not traces:
        raise InputError(f"{len(traces)} traces and {len(labels)} labels: give one label per trace.")
    return SideBySide(tuple(zip(labels, traces)), slider)


def page_payload(
    traces: Traces, *, title: str = TITLE, slider: bool = False, live: str | None = None, progress: Progress = _QUIET
) -> tuple[dict[str, Any], list[bytes]]:
    """The page's JSON object and its blobs; `live` is the path of the server, if there is one."""
    blobs = Blobs()
    found = [trace_payload(trace, blobs, label, progress, sharing=len(traces)) for label, trace in traces]
    return {"version": 1, "title": title, "live": live, "traces": found, "slider": slider}, blobs.data


def trace_payload(
    trace: AttentionTrace, blobs: Blobs, label: str, progress: Progress = _QUIET, *, sharing: int = 1
) -> dict[str, Any]:
    """The JSON object of one trace on a page that `sharing` traces share."""
    example = trace.example
    if example is not None:
        example.collector.collect(progress)
    plans = plan_storage({name: layer.shape for name, layer in trace.layers.items()}, sharing)
    cross = [layer for name, layer in trace.layers.items() if name.endswith("cross")]
    one_stack = "encoder" if trace.source_tokens else "decoder"
    return {
        "label": label,
        "model": "" if example is None else model_summary(example.network),
        "shape": "encoder-decoder" if trace.source_tokens and trace.target_tokens else one_stack,
        "sides": {name: side.to_json() for name, side in trace.sides.items()},
        "layers": [_layer(trace, name, layer.reduced(plans[name]), blobs) for name, layer in trace.layers.items()],
        "beams": None if example is None else example.beams,
        "alignment": trace.moses() if cross and all(layer.weights is not None for layer in cross) else None,
        **(_NO_EXAMPLE if example is None else _example(trace, example, blobs, progress)),
    }


_NO_EXAMPLE: dict[str, Any] = {"generation": None, "positions": [], "neighbours": None, "ablation": None}


def _example(trace: AttentionTrace, example: Example, blobs: Blobs, progress: Progress) -> dict[str, Any]:
    """What is shown besides weights: generation steps, positional encodings, nearest neighbours and ablations."""
    network, tokenizers, target_ids = example.network, example.tokenizers, example.target_ids
    inputs, tokens = example.collector.inputs, len(example.source_ids) + len(target_ids)
    short = tokens <= _MAX_TOKENS
    target_tokenizer = tokenizers[0 if network.shape == "encoder" else 1]
    tables = [{**entry, "table": blobs.add(entry["table"])} for entry in position_tables(network, max(1, tokens))]
    ablation = None
    if _ablation_work(trace):
        heads = {name: layer.shape.heads for name, layer in trace.layers.items()}
        counted: Progress = lambda done: progress(done * tokens)  # noqa: E731
        ablation = ablate_each_head(network, tokenizers, inputs, target_ids, heads, progress=counted)
    return {
        "generation": (generation_steps(network, target_tokenizer, inputs, target_ids) or None) if short else None,
        "positions": tables,
        "neighbours": _neighbours(trace, example) if short else None,
        "ablation": ablation,
    }


def _ablation_work(trace: AttentionTrace) -> int:
    """How many tokens the ablation of each head processes; 0 where they are too many."""
    tokens = len(trace.source_tokens) + len(trace.target_tokens)
    shapes = trace.example.collector.shapes.values() if trace.example else ()
    work = tokens * sum(shape.heads for shape in shapes)
    return work if work <= _MAX_ABLATION_TOKENS else 0


def _neighbours(trace: AttentionTrace, example: Example) -> dict[str, Any] | None:
    """The nearest neighbours of each side's tokens."""
    ids = {"source": example.source_ids, "decoder_input": example.input_ids, "target": example.target_ids}
    found = {
        side: nearest_neighbours(example.network, example.tokenizers[side != "source"], ids[side], side=side)
        for side in trace.sides
    }
    return None if None in found.values() else found


def _layer(trace: AttentionTrace, name: str, layer: LayerAttention, blobs: Blobs) -> dict[str, Any]:
    """The JSON object of one layer."""
    rows, columns = trace.axes(name)
    cross = name.endswith("cross")
    tiles = None if layer.tiles is None else {"size": layer.tiles.shape[-1], "weights": blobs.add(layer.tiles)}
    top = None if layer.top is None else {"keys": blobs.add(layer.top[0], "i4"), "weights": blobs.add(layer.top[1])}
    return {
        "name": name, "rows": rows, "columns": columns,
        "causal": name.startswith("decoder") and not cross, "rollout": not cross and not trace.missing_layers(name),
        "heads": layer.shape.heads, "queries": layer.shape.queries, "keys": layer.shape.keys,
        "weights": blobs.add(layer.weights), "pooled": tiles, "top": top,
        "entropy": _finite(layer.entropy), "distance": _finite(layer.distance),
        "confidence": _finite(layer.confidence) if cross else None,
        "score_inputs": None if layer.score_inputs is None else _score_inputs(layer.score_inputs, blobs),
        "value_norms": blobs.add(layer.value_norms), "buckets": blobs.add(layer.buckets, "i4"),
    }  # fmt: skip


def _score_inputs(inputs: ScoreInputs, blobs: Blobs) -> dict[str, Any]:
    tensors = {name: blobs.add(getattr(inputs, name)) for name in ("query", "key", "vector", "bias")}
    return {"kind": inputs.kind, "scale": inputs.scale, **tensors}


def _finite(values: Tensor) -> list[float]:
    """Numbers that JSON can hold."""
    return [value if math.isfinite(value) else 0.0 for value in values.tolist()]


def model_summary(network: Network) -> str:
    """A model in one line: its layers, width, heads and parameters."""
    model = network.description
    depths = "+".join(str(len(stack.layers)) for stack in model.stacks.values())
    heads = sorted({facts_of(part).heads for part in model.parts} - {0})
    facts = [model.shape.capitalize(), f"{depths} layer{'s' * (depths != '1')}", f"width {model.width}"]
    if heads:
        facts.append(f"{' or '.join(map(str, heads))} head{'s' * (heads != [1])}")
    count = sum(weight.numel() for weight in network.parameters())
    return ", ".join([*facts, f"{_rounded(count)} parameters"])


def _rounded(count: int) -> str:
    """A count in thousands, millions or billions: 17 K, 1.5 M."""
    power = min(3, max(0, (len(str(count)) - 1) // 3))
    value = count / 1000**power
    return f"{value:.{int(value < 10)}f} {' KMB'[power]}".strip() if power else str(count)
