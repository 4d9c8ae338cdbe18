"""The data of the page: one JSON object per trace, and its tensors as bytes (blobs)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor

from regard.errors import InputError
from regard.layers.contract import facts_of
from regard.layers.record import ScoreInputs
from regard.models.model import Network
from regard.progress import QUIET, Progress
from regard.show.ablation import ablate_each_head
from regard.show.attribution import MAX_TOKENS as MAX_ATTRIBUTED
from regard.show.attribution import Attribution, attribution
from regard.show.collect import LayerAttention, Stopped, StoragePlan, plan_storage
from regard.show.embeddings import nearest_neighbours, position_tables
from regard.show.generation import generation_steps, predicted
from regard.show.html import page
from regard.show.labels import layer_label
from regard.show.walk import MAX_TOKENS as MAX_WALKED
from regard.show.walk import Walk, walk
from regard.store.files import write_output

if TYPE_CHECKING:
    from regard.show.trace import AttentionTrace, Example

    Traces = Sequence[tuple[str, AttentionTrace]]

TITLE = "What the model attends to"
_MAX_TOKENS = 4_096  # a longer text has no candidates and no nearest neighbours
_MAX_ABLATION_TOKENS = 1 << 16  # tokens processed again, over all heads, for the ablation of each head
_MAX_HALF = 65_504.0

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

    def save(self, path: str | Path, *, progress: Progress = QUIET) -> dict[str, str]:
        """Write one self-contained HTML file; -> what it leaves out, and why. Reports progress in units of `work`."""
        payload, blobs = page_payload(self.traces, slider=self.slider, progress=progress)
        write_output(Path(path), page(payload, blobs).encode())
        return {what: why for trace in payload["traces"] for what, why in trace["left_out"]}

    def html(self, title: str = TITLE, *, progress: Progress = QUIET) -> str:
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
    traces: Traces, *, title: str = TITLE, slider: bool = False, live: str | None = None, progress: Progress = QUIET
) -> tuple[dict[str, Any], list[bytes]]:
    """The page's JSON object and its blobs; `live` is the path of the server, if there is one."""
    blobs = Blobs()
    found = [
        trace_payload(trace, blobs, label, progress, sharing=len(traces))
        for label, trace in traces
        if trace.collected(progress)
    ]
    if not found:
        raise Stopped
    return {"version": 1, "title": title, "live": live, "traces": found, "slider": slider}, blobs.data


def trace_payload(
    trace: AttentionTrace, blobs: Blobs, label: str, progress: Progress = QUIET, *, sharing: int = 1
) -> dict[str, Any]:
    """The JSON object of one trace on a page that `sharing` traces share."""
    example = trace.example
    trace.collected(progress)
    plans = plan_storage({name: layer.shape for name, layer in trace.layers.items()}, sharing)
    only_stack = not (trace.source_tokens and trace.target_tokens)
    rest, stopped = (_NO_EXAMPLE, False) if example is None else _example(trace, example, blobs, progress)
    left_out = dropped_views(trace, plans, rest, stopped)
    cross = [layer for name, layer in trace.layers.items() if name.endswith("cross")]
    one_stack = "encoder" if trace.source_tokens else "decoder"
    return {
        "label": label,
        "model": "" if example is None else model_summary(example.network),
        "shape": one_stack if only_stack else "encoder-decoder",
        "sides": {name: side.to_json() for name, side in trace.sides.items()},
        "layers": [_layer(trace, name, layer.reduced(plans[name]), blobs) for name, layer in trace.layers.items()],
        "beams": None if example is None else example.beams,
        "alignment": trace.moses() if cross and all(layer.weights is not None for layer in cross) else None,
        "prompt": example.generated[0] if example is not None and example.generated[0] < example.generated[1] else 0,
        "left_out": [list(pair) for pair in left_out.items()],
        **rest,
    }


_STOPPED = "stopped before it was ready"
_NO_EXAMPLE: dict[str, Any] = dict.fromkeys(
    ("prediction", "walk", "generation", "neighbours", "attribution", "ablation"), None
)
_NO_EXAMPLE["positions"] = []


def _example(trace: AttentionTrace, example: Example, blobs: Blobs, progress: Progress) -> tuple[dict[str, Any], bool]:
    """What is shown besides weights: prediction, positional encodings, generation steps, neighbours and ablations.

    They are computed in this order until `progress` raises Stopped; -> what is ready, and whether it was stopped.
    """
    network, tokenizers, target_ids = example.network, example.tokenizers, example.target_ids
    inputs, tokens = example.collector.inputs, len(example.source_ids) + len(target_ids)
    tokenizer = tokenizers[0 if network.shape == "encoder" else 1]
    found = dict(_NO_EXAMPLE)
    try:
        progress(0)
        found["prediction"] = predicted(network, inputs)
        tables = position_tables(network, max(1, tokens))
        found["positions"] = [{**entry, "table": blobs.add(entry["table"])} for entry in tables]
        found["walk"] = _walk(walk(network, tokenizer, inputs, target_ids), blobs)
        if tokens <= _MAX_TOKENS:
            steps = generation_steps(network, tokenizer, inputs, target_ids, generated=example.generated)
            found["generation"] = steps or None
            progress(0)
            found["neighbours"] = _neighbours(trace, example)
        if example.collector.shapes:
            progress(0)
            depends = attribution(network, tokenizers, inputs, target_ids, progress)
            found["attribution"] = depends and _attribution(depends, blobs)
        if _ablation_work(trace):
            heads = {name: layer.shape.heads for name, layer in trace.layers.items()}
            counted: Progress = lambda done: progress(done * tokens)  # noqa: E731
            found["ablation"] = ablate_each_head(network, tokenizers, inputs, target_ids, heads, progress=counted)
    except Stopped:
        return found, True
    return found, False


def dropped_views(
    trace: AttentionTrace, plans: Mapping[str, StoragePlan], rest: Mapping[str, Any], stopped: bool
) -> dict[str, str]:
    """The views and choices that this page leaves out because of a long text or because it was stopped, and why."""
    if trace.example is None:
        return {}
    example, network = trace.example, trace.example.network
    tokens, shapes = len(trace.source_tokens) + len(trace.target_tokens), example.collector.shapes
    missing = [name for name in shapes if name not in trace.layers]
    found = {f"{len(missing)} of {len(shapes)} layers": _STOPPED} if missing else {}
    if any(shape.score_numbers for shape in shapes.values()) and not all(plan.score_inputs for plan in plans.values()):
        found["Neuron"] = f"the queries and keys of {tokens:,} tokens do not fit into the file"
    readout = network.description.readout
    predicts = readout.outputs == "tokens" and readout.directions == 1
    embeds = not network.description.embed.characters
    attributes = bool(shapes) and embeds and readout.outputs != "vectors" and readout.directions == 1
    parts = (
        ("Begin here", True, rest["walk"], MAX_WALKED),
        ("Generation", predicts, rest["generation"], _MAX_TOKENS),
        ("Nearest neighbours", embeds, rest["neighbours"], _MAX_TOKENS),
        ("Explanation", attributes, rest["attribution"], MAX_ATTRIBUTED),
    )
    for view, wanted, part, most in parts:
        if wanted and part is None and (stopped or tokens > most):
            found[view] = f"{tokens:,} tokens; {most:,} at most" if tokens > most else _STOPPED
    if shapes and rest["ablation"] is None:
        passes = sum(shape.heads for shape in shapes.values())
        why = f"{passes} passes over {tokens:,} tokens; {_MAX_ABLATION_TOKENS // passes:,} tokens at most"
        found["Ablation"] = _STOPPED if _ablation_work(trace) else why
    if any(not plan.full for plan in plans.values()):
        found["mean, rollout and whole words"] = "only the top keys of each query fit into the file"
    return found


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
    title, tip = layer_label(name, only_stack=not (trace.source_tokens and trace.target_tokens))
    tiles = None if layer.tiles is None else {"size": layer.tiles.shape[-1], "weights": blobs.add(layer.tiles)}
    top = None if layer.top is None else {"keys": blobs.add(layer.top[0], "i4"), "weights": blobs.add(layer.top[1])}
    return {
        "name": name, "title": title, "tip": tip, "rows": rows, "columns": columns,
        "causal": name.startswith("decoder") and not cross, "rollout": not cross and not trace.missing_layers(name),
        "heads": layer.shape.heads, "queries": layer.shape.queries, "keys": layer.shape.keys,
        "weights": blobs.add(layer.weights), "pooled": tiles, "top": top,
        "entropy": _finite(layer.entropy), "distance": _finite(layer.distance),
        "confidence": _finite(layer.confidence) if cross else None,
        "score_inputs": None if layer.score_inputs is None else _score_inputs(layer.score_inputs, blobs),
        "value_norms": blobs.add(layer.value_norms), "buckets": blobs.add(layer.buckets, "i4"),
    }  # fmt: skip


def _walk(found: Walk | None, blobs: Blobs) -> dict[str, Any] | None:
    """The JSON object of a walk."""
    if found is None:
        return None
    return {
        "embeddings": {
            one.side: {name: blobs.add(getattr(one, name)) for name in ("table", "position", "read")}
            for one in found.embeddings
        },
        "layers": {
            name: {"values": blobs.add(values), "outputs": blobs.add(found.outputs[name])}
            for name, values in found.values.items()
        },
        "states": blobs.add(found.states), "logits": blobs.add(found.logits, "f4"), "candidates": found.candidates,
        "feedforward": found.feedforward, "characters": found.characters,
    }  # fmt: skip


def _attribution(found: Attribution, blobs: Blobs) -> dict[str, Any]:
    """The JSON object of an attribution."""
    return {
        "side": found.side, "rows": found.rows, "shares": found.shares.tolist() if found.shares is not None else None,
        "chosen": found.chosen, "scores": found.scores.tolist(), "instead": found.instead,
        "gradient": blobs.add(found.gradient, "f4"), "left_out": blobs.add(found.left_out, "f4"),
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
    adapters = [f"with the adapter {adapter}" for adapter in network.adapters]
    return ", ".join([*facts, f"{_rounded(count)} parameters", *adapters])


def _rounded(count: int) -> str:
    """A count in thousands, millions or billions: 17 K, 1.5 M."""
    power = min(3, max(0, (len(str(count)) - 1) // 3))
    value = count / 1000**power
    return f"{value:.{int(value < 10)}f} {' KMB'[power]}".strip() if power else str(count)
