"""Folders of models converted to ONNX: what config.json says, and one step after another with onnxruntime, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.data.tokenize.encode import Reads
from regard.engines.folder import OURS
from regard.errors import DamagedFile, InputError, RunFailed
from regard.extras import extra
from regard.schema import from_dict
from regard.store.files import read_json, require_file

CONFIG, ENCODER, STEP = "config.json", "encoder.onnx", "decoder_step.onnx"
FORMAT = "regard-onnx"


@dataclass(frozen=True)
class Memory:
    """A tensor that a decoder step reads, and the output that takes its place at the next step (None: it stays)."""

    name: str
    next: str | None
    type: str  # as numpy calls it
    shape: tuple[int | str, ...]  # batch, past (0 before the first token), source, or a number
    initial: Literal["zeros", "encoder"]  # before the first token: zeros, or an output of the encoder


@dataclass(frozen=True)
class Tokens:
    """The special tokens: around a text that is read, and those of the text that is written."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad: int
    bos: int | None = None
    eos: int | None = None


@dataclass(frozen=True)
class Greedy:
    """The model's defaults for greedy decoding."""

    max_tokens: int | None = None
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    forced_bos: int | None = None
    extra_eos: tuple[int, ...] = ()


@dataclass(frozen=True)
class OnnxModel:
    """What config.json says of the graphs."""

    shape: Literal["encoder", "decoder", "encoder-decoder"]
    reads: Reads
    vocabulary: int
    max_positions: int | None
    tokens: Tokens
    encoder: tuple[str, ...] | None = None  # the inputs of encoder.onnx
    decoder_step: tuple[str, ...] | None = None  # the inputs of decoder_step.onnx
    memory: tuple[Memory, ...] = ()
    greedy: Greedy | None = None


def read_onnx(folder: Path) -> OnnxModel:
    """What config.json of a model converted to ONNX says."""
    path = folder / CONFIG
    require_file(path)
    value = read_json(path)
    if value.pop("format", None) != FORMAT:
        raise InputError(f"{folder} is not converted to ONNX. Convert it: regard convert MODEL {folder} --to onnx.")
    value.pop(OURS, None)
    try:
        found: OnnxModel = from_dict(OnnxModel, value, where=str(path))
    except (InputError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path} cannot be used: {error}") from error
    return found


def open_graph(path: Path, threads: int = 0) -> Any:
    """A graph, ready to run on the CPU."""
    with extra("onnx", "a model converted to ONNX"):
        import onnxruntime

    require_file(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        line = str(error).strip().partition("\n")[0][:200]
        raise DamagedFile(f"{path} cannot be used: {line}. Convert the model again.") from None


def run_graph(
    session: Any, name: str, inputs: dict[str, NDArray[Any]], *, only: str | None = None
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """The outputs of a graph by name, or only one of them, without what the others need."""
    import onnxruntime

    names = [output.name for output in session.get_outputs()] if only is None else [only]
    options = onnxruntime.RunOptions()
    options.only_execute_path_to_fetches, options.log_severity_level = only is not None, 4
    try:
        return dict(zip(names, session.run(names, inputs, options)))
    except Exception as error:
        line = str(error).strip().partition("\n")[0][:200]
        raise RunFailed(f"{name} cannot be run: {line}. Convert the model again.") from None


def decode_greedily(
    folder: Path, model: OnnxModel, prompts: Sequence[list[int]], source: NDArray[Any], padding: NDArray[Any],
    tokens: int,
) -> tuple[NDArray[np.int64], NDArray[Any]]:  # fmt: skip
    """Step through the prompts and go on, up to so many tokens; -> the tokens read, BT, and the logits after each."""
    memory: dict[str, Any] = {}
    if model.encoder is not None:
        session = open_graph(folder / ENCODER)
        feed = {"ids": source, "padding": padding}
        memory = run_graph(session, ENCODER, {name: feed[name] for name in model.encoder})
    for one in model.memory:
        if one.initial == "zeros":
            sizes = {"batch": len(prompts), "past": 0}
            shape = [sizes[size] if isinstance(size, str) else size for size in one.shape]
            memory[one.name] = np.zeros(shape, one.type)
    step = open_graph(folder / STEP)
    read, logits = [], []
    ids = np.array([prompt[0] for prompt in prompts], dtype=np.int64)
    for position in range(tokens):
        feed = {**memory, "ids": ids, "position": np.full(len(prompts), position), "padding": padding}
        found = run_graph(step, STEP, {name: feed[name] for name in model.decoder_step or ()})
        memory |= {one.name: found[one.next] for one in model.memory if one.next is not None}
        read.append(ids)
        logits.append(found["logits"])
        best = logits[-1].argmax(-1)
        later = position + 1
        ids = np.array([prompt[later] if later < len(prompt) else best[row] for row, prompt in enumerate(prompts)])
    return np.stack(read, 1), np.stack(logits, 1)
