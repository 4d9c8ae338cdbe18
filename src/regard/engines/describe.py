"""What a converted model says of itself, whatever the engine: its commands, its bounds, and the head of an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from regard.decode.classify import predicted_readout, predicts_next_sentence
from regard.decode.inputs import capabilities
from regard.engines.folder import PROGRAMS, Converted, Precision, Runtime, read_converted
from regard.engines.head import HEAD, Head, Outputs, Pooling
from regard.models.model import Network
from regard.models.readouts import First, Label, Last, Max, Mean, MultiLabel, Number, Pool, Tags, Vector, WeightedMean
from regard.store.files import json_bytes, new_folder, tensors_to_bytes
from regard.store.generation_config import to_regard
from regard.store.loading import MAX_TEXT_LENGTH, TRAINED_LENGTH, Loaded
from regard.store.manifest import write_manifest

_RUNS = {
    "encoder-decoder": ("translate", "score"), "decoder": ("generate", "score"), "encoder": ("embed", "classify"),
}  # fmt: skip
_POOLS: dict[type[Pool], Pooling] = {
    First: "first", Last: "last", Mean: "mean", Max: "max", WeightedMean: "weighted_mean"
}  # fmt: skip


def converted_of(
    loaded: Loaded, precision: Precision, written_positions: int | None, runtime: Runtime = "ctranslate2"
) -> Converted:
    """What config.json of the converted model says for us; `written_positions`: how many the engine has."""
    network, model = loaded.network, loaded.network.description
    head = head_of(network)
    shape = "encoder" if network.reads == "text" else network.shape  # a decoder that outputs labels reads as one
    known, runs = capabilities(model, loaded.tokenizers[0]), {*_RUNS[shape]} & {*PROGRAMS[runtime].verbs}
    return Converted(
        precision, network.vocabulary, runtime, tuple(verb for verb in known if verb in runs), network.reads,
        shape, max_positions=model.embed.max_positions, written_positions=written_positions,
        trained_length=loaded.config.get(TRAINED_LENGTH), published=loaded.config.get("model_type") != "regard",
        max_text_length=loaded.config.get(MAX_TEXT_LENGTH), vector_width=model.vector_width,
        segments=model.embed.segments, characters=model.embed.characters,
        head=None if head is None else head[0],
    )  # fmt: skip


@contextmanager
def unfinished_folder(target: Path) -> Iterator[Path]:
    """A folder to write into, which becomes the target at the end, in place of an older conversion; else nothing."""
    with new_folder(target, lambda folder: read_converted(folder) is not None) as unfinished:
        yield unfinished
        write_manifest(unfinished)


def write_ours(folder: Path, loaded: Loaded) -> None:
    """Write what an engine does not: the default options, the tokenizers, the head of an encoder."""
    published = loaded.config.get("model_type") != "regard"
    settings = to_regard(loaded.generation_config) if published else loaded.generation_config
    (folder / "generation_config.json").write_bytes(json_bytes(settings))
    head = head_of(loaded.network)
    if head is not None:
        (folder / HEAD).write_bytes(tensors_to_bytes(head[1]))
    for name, tokenizer in zip(("tokenizer.json", "target_tokenizer.json"), loaded.tokenizers):
        if tokenizer is not None:
            (folder / name).write_bytes(tokenizer.to_json().encode())


def head_of(network: Network) -> tuple[Head, dict[str, Tensor]] | None:
    """What follows an encoder's hidden states in the commands embed and classify, with its weights; None: nothing."""
    readout = predicted_readout(network.description)
    module = cast(Any, network.readout if readout is network.description.readout else network.auxiliary)
    if network.reads != "text":
        return None
    match readout:
        case Label() | MultiLabel() | Number():
            layers = [(module.inner, readout.inner)] if readout.inner else []
            head = Head(_outputs(readout), _POOLS[type(readout.pool)], labels=getattr(readout, "labels", ()),
                        pairs=predicts_next_sentence(network.description))  # fmt: skip
            return _with_layers(head, [*layers, (module.out, None)])
        case Tags():
            layers = [(module.inner, readout.inner)] if readout.inner else []
            return _with_layers(Head("tags", labels=readout.labels), [*layers, (module.out, None)])
        case Vector():
            layers = [(module.inner, readout.inner)] if readout.inner else []
            layers += [(layer.linear, layer.activation) for layer in module.dense]
            return _with_layers(Head("vector", _POOLS[type(readout.pool)], normalised=readout.normalised), layers)
        case _:
            return None


def _outputs(readout: Label | MultiLabel | Number) -> Outputs:
    return "number" if isinstance(readout, Number) else "labels" if isinstance(readout, Label) else "several_labels"


def _with_layers(head: Head, layers: list[tuple[nn.Linear, Any]]) -> tuple[Head, dict[str, Tensor]]:
    """The head with these dense layers, and their weights."""
    weights: dict[str, Tensor] = {}
    for number, (linear, _) in enumerate(layers):
        weights |= {f"{number}.{name}": value.detach() for name, value in linear.named_parameters()}
    return replace(head, layers=tuple(activation for _, activation in layers)), weights
