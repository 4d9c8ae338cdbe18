"""A look as the page takes it: one JSON object, and the numbers beside it as bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor

from regard.decode.generate import Progress
from regard.errors import InputError
from regard.layers.record import Inside
from regard.models.model import Network
from regard.show.ablation import ablations
from regard.show.collect import Layer, planned
from regard.show.generation import generation
from regard.show.neighbours import nearest
from regard.show.page import page
from regard.show.positions import positions
from regard.store.files import write_file

if TYPE_CHECKING:
    from regard.show.trace import Seen, Text


TITLE = "What the model attends to"
_MOST_TOKENS = 4_096  # of which candidates and nearest words are listed
_MOST_OFF = 1 << 16  # tokens read again, over all heads, to see what each head alone does
_LARGEST_HALF = 65_504.0
_QUIET: Progress = lambda done: None  # noqa: E731

Ref = dict[str, Any]
"""Which of the blobs a tensor is, of which numbers, in which shape."""


@dataclass
class Pack:
    """Tensors as bytes, little-endian; what is the same is there once."""

    blobs: list[bytes] = field(default_factory=list)
    _known: dict[bytes, int] = field(default_factory=dict)

    def add(self, tensor: Tensor, kind: Literal["f2", "f4", "i4", "u2"] = "f2") -> Ref:
        """Take a tensor in, and say where it is."""
        found = tensor.detach().cpu()
        if kind == "f2":
            found = found.float().nan_to_num(0.0).clamp(-_LARGEST_HALF, _LARGEST_HALF)
        data = np.ascontiguousarray(found.numpy().astype(f"<{kind}")).tobytes()
        number = self._known.setdefault(data, len(self.blobs))
        if number == len(self.blobs):
            self.blobs.append(data)
        return {"blob": number, "type": kind, "shape": list(tensor.shape)}


class Shown:
    """What makes a page: to save as one file that needs nothing else, or to show in a notebook."""

    slider = False  # the looks are one model in the course of its learning, in order

    @property
    def looks(self) -> Sequence[tuple[str, Seen]]:
        """What is on the page, each under its label."""
        raise NotImplementedError

    @property
    def effort(self) -> int:
        """How much there is to do for the page, in tokens read by a head."""
        return sum(seen.text.reading.effort + _off_effort(seen) for _, seen in self.looks if seen.text is not None)

    def save(self, path: str | Path, *, progress: Progress = _QUIET) -> None:
        """Write one HTML file that needs nothing else; says how much of `effort` is done."""
        write_file(Path(path), self.html(progress=progress).encode())

    def html(self, title: str = TITLE, *, progress: Progress = _QUIET) -> str:
        """The page that `save` writes."""
        payload, blobs = packed(self.looks, title=title, slider=self.slider, progress=progress)
        return page(payload, blobs)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html())}" width="100%" height="800" frameborder="0"></iframe>'


@dataclass(frozen=True, eq=False)
class Beside(Shown):
    """Several looks on one page."""

    named: tuple[tuple[str, Seen], ...]
    slider: bool = False

    @property
    def looks(self) -> Sequence[tuple[str, Seen]]:
        """What is on the page, each under its label."""
        return self.named


def beside(*seens: Seen, labels: Sequence[str] | None = None, slider: bool = False) -> Beside:
    """Looks side by side; with `slider`, as one model in the course of its learning, in this order."""
    labels = [str(number) for number in range(1, len(seens) + 1)] if labels is None else labels
    if len(labels) != len(seens) or not seens:
        raise InputError(f"{len(seens)} looks and {len(labels)} labels: give one label a look.")
    return Beside(tuple(zip(labels, seens)), slider)


def packed(
    looks: Sequence[tuple[str, Seen]],
    *,
    title: str = TITLE,
    slider: bool = False,
    live: str | None = None,
    progress: Progress = _QUIET,
) -> tuple[dict[str, Any], list[bytes]]:
    """The page's JSON object, and its blobs; `live` is where a server answers."""
    pack = Pack()
    shown = [look_payload(seen, pack, label, progress, sharing=len(looks)) for label, seen in looks]
    return {"version": 1, "title": title, "live": live, "looks": shown, "slider": slider}, pack.blobs


def look_payload(
    seen: Seen, pack: Pack, label: str, progress: Progress = _QUIET, *, sharing: int = 1
) -> dict[str, Any]:
    """What the page shows of a look that shares it with so many, itself among them."""
    if seen.text is not None:
        seen.text.reading.gathered(progress)
    plans = planned({name: layer.shape for name, layer in seen.layers.items()}, sharing)
    text, crosses = seen.text, any(name.endswith("cross") for name in seen.layers)
    whole = all(layer.weights is not None for name, layer in seen.layers.items() if name.endswith("cross"))
    alone = "encoder" if seen.source_tokens else "decoder"
    return {
        "label": label,
        "about": "" if text is None else about(text.network),
        "shape": "encoder-decoder" if seen.source_tokens and seen.target_tokens else alone,
        "sides": {name: side.to_json() for name, side in seen.sides.items()},
        "layers": [_layer(seen, name, layer.thinned(plans[name]), pack) for name, layer in seen.layers.items()],
        "beams": None if text is None else text.beams,
        "alignment": seen.moses() if crosses and whole else None,
        **(_NOTHING if text is None else _beside_weights(seen, text, pack, progress)),
    }


_NOTHING: dict[str, Any] = {"steps": None, "positions": [], "near": None, "off": None}


def _beside_weights(seen: Seen, text: Text, pack: Pack, progress: Progress) -> dict[str, Any]:
    """What is shown besides weights: what might have been said, positions, words that are near, heads switched off."""
    network, inputs, tokenizers, said = text.network, text.reading.inputs, text.tokenizers, text.said
    heads = {name: layer.shape.heads for name, layer in seen.layers.items()}
    tokens = len(text.source) + len(text.said)
    short = tokens <= _MOST_TOKENS
    target = tokenizers[0 if network.decoder is None else 1]
    tables = [{**place, "table": pack.add(place["table"])} for place in positions(network, max(1, tokens))]
    return {
        "steps": (generation(network, target, inputs, said) or None) if short else None,
        "positions": tables,
        "near": _near(seen, text) if short else None,
        "off": ablations(network, tokenizers, inputs, said, heads, progress=lambda done: progress(done * tokens))
        if _off_effort(seen)
        else None,
    }


def _off_effort(seen: Seen) -> int:
    """How many tokens are read, over all heads, to see what each head alone does; 0 where they are too many."""
    tokens = len(seen.source_tokens) + len(seen.target_tokens)
    effort = tokens * sum(shape.heads for shape in seen.text.reading.shapes.values()) if seen.text else 0
    return effort if effort <= _MOST_OFF else 0


def _near(seen: Seen, text: Text) -> dict[str, Any] | None:
    """Of each side's tokens, the nearest words."""
    ids = {"source": text.source, "read": text.read, "said": text.said}
    sides: tuple[Literal["source", "read", "said"], ...] = ("source", "read", "said")
    found: dict[str, Any] = {
        side: nearest(text.network, text.tokenizers[0 if side == "source" else 1], ids[side], side=side)
        for side in sides
        if side in seen.sides
    }
    return None if None in found.values() else found


def _layer(seen: Seen, name: str, layer: Layer, pack: Pack) -> dict[str, Any]:
    """A layer, its tensors packed."""
    add: Callable[[Tensor | None], Ref | None] = lambda tensor: None if tensor is None else pack.add(tensor)  # noqa: E731
    rows, columns = seen.axes(name)
    crosses = name.endswith("cross")
    tiles = None if layer.tiles is None else {"size": layer.tiles.shape[-1], "weights": pack.add(layer.tiles)}
    top = None if layer.top is None else {"keys": pack.add(layer.top[0], "i4"), "weights": pack.add(layer.top[1])}
    return {
        "name": name, "rows": rows, "columns": columns,
        "causal": name.startswith("decoder") and not crosses, "rolls": not crosses and not seen.missing(name),
        "heads": layer.shape.heads, "queries": layer.shape.queries, "keys": layer.shape.keys,
        "weights": add(layer.weights), "pooled": tiles, "top": top,
        "entropy": _numbers(layer.entropy), "distance": _numbers(layer.distance),
        "alignment": _numbers(layer.peak) if crosses else None,
        "inside": None if layer.inside is None else _inside(layer.inside, add),
        "norms": add(layer.norms),
        "buckets": None if layer.buckets is None else pack.add(layer.buckets, "i4"),
    }  # fmt: skip


def _inside(inside: Inside, add: Callable[[Tensor | None], Ref | None]) -> dict[str, Any]:
    tensors = {name: add(getattr(inside, name)) for name in ("query", "key", "vector", "bias")}
    return {"kind": inside.kind, "scale": inside.scale, **tensors}


def _numbers(values: Tensor) -> list[float]:
    """Numbers that JSON can hold."""
    return [value if math.isfinite(value) else 0.0 for value in values.tolist()]


def about(network: Network) -> str:
    """A model in a line: its layers, width, heads and parameters."""
    model = network.description
    stacks = [stack for stack in (model.encoder, model.decoder) if stack is not None]
    depths = "+".join(str(len(stack.layers)) for stack in stacks)
    parts = (part for stack in stacks for layer in stack.layers for part in layer)
    heads = sorted({part.heads for part in parts if hasattr(part, "heads")})
    shape = "encoder-decoder" if len(stacks) == 2 else "decoder" if model.decoder else "encoder"
    said = [shape.capitalize(), f"{depths} layer{'s' * (depths != '1')}", f"width {model.width}"]
    if heads:
        said.append(f"{' or '.join(map(str, heads))} head{'s' * (heads != [1])}")
    count = sum(weight.numel() for weight in network.parameters())
    return ", ".join([*said, f"{_rounded(count)} parameters"])


def _rounded(count: int) -> str:
    """A number and its power of a thousand; with a decimal where it has one digit before it."""
    power = min(3, max(0, (len(str(count)) - 1) // 3))
    value = count / 1000**power
    return f"{value:.{int(value < 10)}f} {' KMB'[power]}".strip() if power else str(count)
