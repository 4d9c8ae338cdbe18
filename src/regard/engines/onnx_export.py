"""Conversion of a model of any kind to ONNX: an encoder, one step of a decoder, and the check that they answer alike.

A decoder's memory, a tree of tensors that only its layers understand, becomes named tensors: inputs of the step, and
outputs that are the inputs of the next one. Before the first token it is zeros, or what the encoder's graph returns:
the memory after one token of padding, which changes no state.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.tokenize.characters import text_characters, token_characters
from regard.data.tokenize.encode import Template
from regard.data.tokenize.tokenizer import FIRST_TEXT
from regard.decode.inputs import reads_characters
from regard.decode.options import default_options
from regard.engines.describe import converted_of, unfinished_folder, write_ours
from regard.engines.folder import OURS, Proof, weights_digest
from regard.engines.onnx_folder import (
    CONFIG,
    ENCODER,
    FORMAT,
    STEP,
    Greedy,
    Memory,
    OnnxModel,
    Tokens,
    decode_greedily,
    open_graph,
    run_graph,
)
from regard.engines.prove import Sample, write_proof
from regard.errors import InputError, RunFailed
from regard.extras import extra
from regard.layers.cache import Layout
from regard.layers.contract import Context, Part, Source, StatesFacts, leaves, map_rows, with_leaves
from regard.layers.patterns import SelfPattern
from regard.models.model import Model, Network
from regard.progress import waiting
from regard.store.files import json_bytes
from regard.store.generation_config import to_regard
from regard.store.loading import Loaded

Axes = dict[str, tuple[str, ...]]
"""The name of each axis of an input that has any size, in order; empty for one of a fixed size."""

_OPSET = 18
_TOLERANCE = 1e-4  # of logits and states, absolute and relative
_LINES, _TOKENS = 6, 24  # of the sample that is checked
_TEXT_TOKENS = 64  # of a line of it, at most
_BATCH, _LENGTH, _PAST = 2, 5, 3  # of the example that is traced; the graphs are for any


def convert_to_onnx(loaded: Loaded, source: Path, target: Path, sample: Sample) -> tuple[OnnxModel, Proof | None]:
    """Write a model as ONNX graphs with its tokenizers and config.json; nothing if it does not answer as in torch.

    An encoder is proven, so that ONNX Runtime may answer in place of torch.
    """
    with extra("onnx", "a conversion to ONNX"):
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    _require_exportable(loaded.network.description)
    with unfinished_folder(target) as folder:
        with waiting(2, "converting") as advance, _evaluating(loaded.network):
            model = _export(loaded, folder, advance)
            converted = converted_of(loaded, "float32", None, "onnxruntime")
            description = {"format": FORMAT, **asdict(model), OURS: asdict(converted)}
            (folder / CONFIG).write_bytes(json_bytes(description))
            write_ours(folder, loaded)
            check = _check_encoder if model.decoder_step is None else _check_decoder
            check(loaded, folder, model, _sample(loaded, sample.lines))
        weights = weights_digest(source)
        return model, write_proof(loaded, folder, weights, "float32", sample) if converted.verbs else None


def _require_exportable(model: Model) -> None:
    """Refuse what is computed only in bands, whose number follows the length, and a decoder without memory."""
    stated = [part.facts for part in model.parts if isinstance(part, StatesFacts)]
    if any(not facts.incremental for facts in stated) or any(map(_only_in_bands, model.parts)):
        raise InputError(
            "attention over the published Reformer's chunks has no ONNX graph for any length (--to onnx). Use --to "
            "huggingface, or train with pattern = rank_window."
        )
    if model.decoder is not None and not model.decoder.incremental:
        raise InputError("a part of this decoder states no facts, so it has no memory to step with (--to onnx). Let it "
                         "state its facts.")  # fmt: skip


def _only_in_bands(part: Part) -> bool:
    """Whether self-attention has a pattern that no mask describes."""
    pattern, slot = getattr(part, "pattern", None), torch.zeros(1)
    if not isinstance(pattern, SelfPattern) or pattern.chunk_span(1 << 20) is None:
        return False
    return pattern.mask(slot, slot) is None


@contextmanager
def _evaluating(network: Network) -> Iterator[None]:
    """Without dropout and gradients, and without the warnings of a tracer."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.eval()
        yield


@contextmanager
def _silent() -> Iterator[None]:
    """Without what the tracer's C++ code prints, which no filter of Python's reaches."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept, nowhere = [os.dup(number) for number in (1, 2)], os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (1, 2):
            os.dup2(nowhere, number)
        yield
    finally:
        for number, old in zip((1, 2), kept):
            os.dup2(old, number)
            os.close(old)
        os.close(nowhere)


@contextmanager
def _rms_norms() -> Iterator[None]:
    """With RMS norms, which the exporter does not know, as the operations that they are made of."""
    from torch.onnx import symbolic_helper
    from torch.onnx.utils import register_custom_op_symbolic, unregister_custom_op_symbolic

    @symbolic_helper.parse_args("v", "is", "v", "f")
    def rms_norm(graph: Any, x: Any, shape: list[int], weight: Any, eps: float) -> Any:
        axes = graph.op("Constant", value_t=torch.arange(-len(shape), 0))
        mean = graph.op("ReduceMean", graph.op("Mul", x, x), axes, keepdims_i=1)
        std = graph.op("Sqrt", graph.op("Add", mean, graph.op("Constant", value_t=torch.tensor(eps))))
        return graph.op("Mul", graph.op("Div", x, std), weight)

    register_custom_op_symbolic("aten::rms_norm", rms_norm, _OPSET)
    try:
        yield
    finally:
        unregister_custom_op_symbolic("aten::rms_norm", _OPSET)


class EncoderGraph(nn.Module):
    """Token ids, padding and segments -> the hidden states, and what the readouts predict."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor, padding: Tensor, segments: Tensor | None = None) -> tuple[Tensor, ...]:
        states = self.network.hidden_states(ids, padding=padding, segments=segments)
        found = states, self.network.readout(states, padding)
        return found if self.network.auxiliary is None else (*found, self.network.auxiliary(states, padding))


class SourceGraph(nn.Module):
    """Token ids and padding -> the encoder's states, and the decoder's memory before the first token."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor, padding: Tensor) -> tuple[Tensor, ...]:
        source = self.network.encode_source(ids, padding)
        nothing = torch.zeros(ids.shape[0], 1, dtype=torch.bool)
        # One token of padding leaves every state as it is.
        memory = _memory_after(self.network, ids[:, :1] * 0, Context(source=source, padding=nothing, remember=True))
        kept = (tensor for tensor, kind in zip(leaves(memory), _kinds(memory)) if kind != "cache")
        return source.states, *kept


class StepGraph(nn.Module):
    """One token per row -> its logits and the memory after it. Entry j of a cache of S is at position - S + j."""

    def __init__(self, network: Network, memory: Any) -> None:
        super().__init__()
        self.network, self.structure, self.kinds = network, memory, _kinds(memory)

    def forward(self, ids: Tensor, position: Tensor, padding: Tensor | None, *memory: Tensor) -> tuple[Tensor, ...]:
        lengths = [tensor.shape[1] for tensor, kind in zip(memory, self.kinds) if kind == "cache"]
        back = torch.arange((lengths or [0])[0] + 1).flip(0)
        positions = position[:, None] - back
        layout = Layout(positions, (positions >= 0)[:, None])
        # A step reads only the length of the source's states: their keys are memory.
        source = None if padding is None else Source(padding[..., None].float(), padding)
        context = Context(source=source, layout=layout, remember=True)
        states, new = self.network.decode(ids[:, None], context, with_leaves(self.structure, memory))
        logits = self.network.readout(states)[:, 0]
        return logits, *(self.kept(*pair) for pair in zip(leaves(new), self.kinds) if pair[1] != "shared")

    def kept(self, tensor: Tensor, kind: str) -> Tensor:
        """The entries that a later token can attend to."""
        window = self.network.window
        return tensor[:, -window:] if kind == "cache" and window else tensor


def _memory_after(network: Network, ids: Tensor, context: Context) -> Any:
    return network.decode(ids, context)[1]


def _kinds(memory: Any) -> list[str]:
    """Per tensor of a memory: a cache, which grows, of the source, which all steps share, or a state."""
    found: list[str] = []

    def note(kind: str, tensor: Tensor) -> Tensor:
        found.append(kind)
        return tensor

    def note_cache(cache: Any) -> Any:
        found.extend("cache" for _ in cache.tensors)
        return cache

    map_rows(partial(note, "state"), memory, partial(note, "shared"), note_cache)
    return found


def _export(loaded: Loaded, folder: Path, advance: Callable[[float], None]) -> OnnxModel:
    """Write the graphs; -> what config.json says of them."""
    network = loaded.network
    ids, padding = torch.zeros(_BATCH, _LENGTH, dtype=torch.long), torch.ones(_BATCH, _LENGTH, dtype=torch.bool)
    if network.description.embed.characters:
        ids = ids[..., None].expand(-1, -1, network.description.embed.characters)
    padding[1, -2:] = False
    if network.reads == "text":
        axes: Axes = dict.fromkeys(("ids", "padding", "segments"), ("batch", "length"))
        segments = (torch.zeros_like(ids),) if network.description.embed.segments else ()
        outputs = ["states", _output(network), *(["auxiliary"] if network.auxiliary is not None else [])]
        read = _write(folder / ENCODER, EncoderGraph(network), (ids, padding, *segments), axes, outputs)
        advance(2)
        return _described(loaded, read, None, ())
    source = network.encode_source(ids, padding) if network.shape == "encoder-decoder" else None
    tree = _memory_after(network, ids[:, :1], Context(source=source, remember=True))
    memory = _named_memory(tree, of_encoder=source is not None)
    encoder: tuple[str, ...] | None = None
    if source is not None:
        axes = dict.fromkeys(("ids", "padding"), ("batch", "source"))
        outputs = ["states", *(one.name for one in memory if one.initial == "encoder")]
        encoder = _write(folder / ENCODER, SourceGraph(network), (ids, padding), axes, outputs)
    advance(1)
    example = [torch.cat(_PAST * [tensor], 1) if kind == "cache" else tensor
               for tensor, kind in zip(leaves(tree), _kinds(tree))]  # fmt: skip
    arguments = ids[:, 0], torch.full((_BATCH,), _PAST), None if source is None else padding, *example
    axes = {"ids": ("batch",), "position": ("batch",)}
    axes |= {} if source is None else {"padding": ("batch", "source")}
    axes |= {one.name: tuple(size if isinstance(size, str) else "" for size in one.shape) for one in memory}
    outputs = ["logits", *(one.next for one in memory if one.next is not None)]
    step = _write(folder / STEP, StepGraph(network, tree), arguments, axes, outputs)
    advance(1)
    return _described(loaded, encoder, step, memory)


def _named_memory(tree: Any, *, of_encoder: bool) -> list[Memory]:
    """What config.json says of each tensor of a memory."""
    found = []
    for number, (tensor, kind) in enumerate(zip(leaves(tree), _kinds(tree))):
        shape: list[int | str] = ["batch", *tensor.shape[1:]]
        if kind == "cache":
            shape[1] = "past"
        if kind == "shared":
            shape[2] = "source"
        name, following = f"memory.{number}", None if kind == "shared" else f"memory.{number}.next"
        initial: Literal["zeros", "encoder"] = "encoder" if of_encoder and kind != "cache" else "zeros"
        found.append(Memory(name, following, str(tensor.dtype).removeprefix("torch."), tuple(shape), initial))
    return found


def _output(network: Network) -> str:
    """The name of what the readout predicts."""
    return {"vectors": "vectors", "numbers": "numbers"}.get(network.description.readout.outputs, "logits")


def _write(
    path: Path, graph: nn.Module, arguments: tuple[Any, ...], inputs: Axes, outputs: list[str]
) -> tuple[str, ...]:
    """Trace a graph and write it; -> the names of the inputs that it reads."""
    import onnx

    given = sum(argument is not None for argument in arguments)
    names = list(inputs)[:given]
    axes = {name: {axis: size for axis, size in enumerate(inputs[name]) if size} for name in names}
    graph.eval()(*arguments)  # draws what the trace is to hold as constants: rotations of LSH attention
    try:
        with _silent(), _rms_norms():
            torch.onnx.export(
                graph, arguments, str(path), dynamo=False, input_names=names, output_names=outputs,
                dynamic_axes=axes, opset_version=_OPSET,
            )  # fmt: skip
    except (RuntimeError, TypeError, ValueError) as error:
        line = str(error).strip().partition("\n")[0][:200]
        raise RunFailed(
            f"{path.name} cannot be written: {line}. This model has a part that ONNX does not hold."
        ) from None
    written = onnx.load(str(path), load_external_data=False).graph
    return tuple(one.name for one in written.input)


def _described(
    loaded: Loaded, encoder: tuple[str, ...] | None, step: tuple[str, ...] | None, memory: Sequence[Memory]
) -> OnnxModel:
    network = loaded.network
    return OnnxModel(
        network.shape, network.reads, network.vocabulary, network.max_positions, _tokens(loaded), encoder, step,
        tuple(memory), _greedy(loaded) if step else None,
    )  # fmt: skip


def _tokens(loaded: Loaded) -> Tokens:
    first, second = loaded.tokenizers
    template = [token for token, _ in Template.of(first, loaded.network.reads).single]
    at, target = template.index(FIRST_TEXT), second or first
    around = tuple(template[:at]), tuple(template[at + 1 :])
    if loaded.network.reads == "text":
        return Tokens(*around, first.pad)
    return Tokens(*around, first.pad, target.bos, target.eos if target.has_eos else None)


def _greedy(loaded: Loaded) -> Greedy:
    published = loaded.config.get("model_type") != "regard"
    settings = to_regard(loaded.generation_config) if published else loaded.generation_config
    options = default_options(settings, ours=True, translates=loaded.network.reads == "source")
    return Greedy(
        options.max_tokens, options.suppress_tokens, options.begin_suppress_tokens, options.forced_bos,
        options.extra_eos,
    )  # fmt: skip


@dataclass(frozen=True)
class _Rows:
    """The sample's token ids BT (or characters BTC), padded on the right, and where there is a token."""

    ids: Any
    padding: Any


def _sample(loaded: Loaded, lines: Sequence[str]) -> _Rows:
    """Some lines of different lengths as the model reads them."""
    network, tokenizer = loaded.network, loaded.tokenizers[0]
    chosen = [line for line in lines if line.strip()] or ["a", "a b"]
    chosen = chosen[:: max(1, len(chosen) // _LINES)][:_LINES]
    most = min(_TEXT_TOKENS, (network.max_positions or _TEXT_TOKENS) - 2)
    template = Template.of(tokenizer, network.reads)
    rows = [template.row(ids[:most])[:most] or (tokenizer.bos,) for ids in tokenizer.encode_batch(chosen)]
    lengths = np.array([len(row) for row in rows])
    ids = np.zeros((len(rows), lengths.max()), dtype=np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    padding = np.arange(lengths.max()) < lengths[:, None]
    characters = network.description.embed.characters
    if reads_characters(network, tokenizer):
        found, padding = text_characters([tokenizer.words(line)[:most] for line in chosen], characters)
        ids = found.astype(np.int64)
    elif characters:
        ids = np.asarray(token_characters(tokenizer, characters=characters))[ids].astype(np.int64)
    return _Rows(ids, padding)


def _check_encoder(loaded: Loaded, folder: Path, model: OnnxModel, rows: _Rows) -> None:
    network = loaded.network
    ids, padding = torch.from_numpy(rows.ids), torch.from_numpy(rows.padding)
    ours = EncoderGraph(network)(ids, padding, torch.zeros_like(ids) if "segments" in (model.encoder or ()) else None)
    feed = {"ids": rows.ids, "padding": rows.padding, "segments": np.zeros_like(rows.ids)}
    session = open_graph(folder / ENCODER)
    theirs = run_graph(session, ENCODER, {name: feed[name] for name in model.encoder or ()})
    for (name, found), own in zip(theirs.items(), ours):
        expected = own.float().numpy()
        tokenwise = name == "states" or (name != "auxiliary" and network.description.readout.tokenwise)
        _compare(ENCODER, name, expected, found, rows.padding if tokenwise else None)


def _check_decoder(loaded: Loaded, folder: Path, model: OnnxModel, rows: _Rows) -> None:
    """Decode greedily, then compare with one pass of torch over all tokens."""
    network = loaded.network
    most = min(_TOKENS, (network.max_positions or _TOKENS) - 1)
    lengths = rows.padding.sum(1)
    prompts = [row[: min(length, most)].tolist() for row, length in zip(rows.ids, lengths)]
    if network.shape == "encoder-decoder":
        prompts = [[model.tokens.bos] for _ in prompts]
    found, logits = decode_greedily(folder, model, prompts, rows.ids, rows.padding, most)
    ids = torch.from_numpy(found)
    source = {}
    if network.shape == "encoder-decoder":
        source = {"source_ids": torch.from_numpy(rows.ids), "source_padding": torch.from_numpy(rows.padding)}
    ours = network(ids, **source).float().numpy()
    _compare(STEP, "logits", ours, logits, None)
    best = np.sort(ours, -1)
    clear = best[..., -1] - best[..., -2] > _TOLERANCE
    wrong = np.argwhere((ours.argmax(-1) != logits.argmax(-1)) & clear)
    if len(wrong):
        raise _differs(STEP, "the best token", wrong[0], "it is another")


def _compare(file: str, name: str, ours: Any, theirs: Any, real: Any) -> None:
    """Refuse numbers that differ; `real`: BT, which tokens count."""
    apart = np.abs(ours - theirs) - _TOLERANCE * (1 + np.abs(ours))
    apart = np.where(np.isnan(theirs), np.inf, apart)
    if real is not None:
        apart = np.where(real.reshape(*real.shape, *[1] * (apart.ndim - 2)), apart, -np.inf)
    worst = np.unravel_index(apart.argmax(), apart.shape)
    if apart[worst] > 0:
        raise _differs(file, name, worst, f"{ours[worst]:.5g} in torch, {theirs[worst]:.5g} in ONNX")


def _differs(file: str, name: str, where: Iterable[Any], what: str) -> RunFailed:
    line, *rest = (int(index) for index in where)
    token = f", token {rest[0] + 1}" if rest else ""
    return RunFailed(
        f"the exported model answers differently ({file}, {name}, line {line + 1} of the sample{token}: {what}), so "
        "nothing is written. Use another engine."
    )
