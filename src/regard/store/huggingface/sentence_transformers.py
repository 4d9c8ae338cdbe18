"""Sentence embeddings in the format of sentence-transformers: modules.json names an encoder, pooling and more."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import DamagedFile, InputError, Note
from regard.layers.feedforward import Activation
from regard.models.model import Model
from regard.models.readouts import Dense, First, Last, Max, Mean, Pool, Vector, WeightedMean
from regard.store.files import json_bytes, read_bounded, read_json, tensors_to_bytes, write_file
from regard.store.huggingface.config import ConfigReader
from regard.store.huggingface.weights import Row, row
from regard.store.loading import WEIGHTS, is_inside, refuse_pickles

_POOLS: dict[str, Pool] = {
    "pooling_mode_cls_token": First(), "pooling_mode_mean_tokens": Mean(), "pooling_mode_max_tokens": Max(),
    "pooling_mode_lasttoken": Last(), "pooling_mode_weightedmean_tokens": WeightedMean(),
}  # fmt: skip
_UNSUPPORTED = ("pooling_mode_mean_sqrt_len_tokens",)
_DENSE_ACTIVATIONS: dict[str, Activation | None] = {
    "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Identity": None,
}  # fmt: skip
_TOKENS = ("mean", "max", "weightedmean")  # newer names of modes, without "tokens"
_PREFIX = "sentence_transformers.models."
_NO_LIMIT = 1 << 40  # a larger model_max_length means that there is none


def is_sentence_folder(folder: Path) -> bool:
    """Whether a folder describes a sentence embedding."""
    return (folder / "modules.json").exists()


@dataclass(frozen=True)
class SentenceModules:
    """What modules.json describes: the readout, and the files with the weights of its dense layers."""

    readout: Vector
    files: tuple[Path, ...] = ()

    def rows(self) -> tuple[Row, ...]:
        """The weight table of the dense layers; their tensors have the names of their files before their own."""
        return tuple(
            row(f"{dense_name(number)}.linear.{kind}", f"readout.dense.{number}.linear.{kind}")
            for number in range(len(self.files))
            for kind in ("weight", "bias")
        )


def dense_name(number: int) -> str:
    """What stands before the names of the tensors of a dense layer."""
    return f"sentence_dense.{number}"


def read_sentence_modules(folder: Path) -> SentenceModules:
    """Read the sentence embedding that modules.json describes, over the encoder in the same folder."""
    path = folder / "modules.json"
    try:
        modules = json.loads(read_bounded(path))
        kinds = [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in modules]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise DamagedFile(f"{path} is not a list of modules. Copy or download it again.") from error
    names = [kind for kind, _ in kinds]
    dense = [name for kind, name in kinds[2:] if kind == "Dense"]
    expected = ["Transformer", "Pooling", *len(dense) * ["Dense"]]
    if names not in (expected, [*expected, "Normalize"]) or kinds[0][1] not in ("", "."):
        raise InputError(f"{path} names {', '.join(names)}; regard supports Transformer, Pooling, Dense and Normalize, "
                         "in this order, the first in the folder itself.")  # fmt: skip
    layers = tuple(_dense(folder, name) for name in dense)
    readout = Vector(_pool(folder, kinds[1][1]), None, normalised="Normalize" in names, dense=layers)
    return SentenceModules(readout, tuple(folder / name / WEIGHTS for name in dense))


def _dense(folder: Path, name: str) -> Dense:
    path = _module_config(folder, name)
    refuse_pickles(path.parent)
    settings = ConfigReader(read_json(path), str(path))
    settings.ignore("in_features")  # which the weights say too
    activation = settings.string("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if activation not in _DENSE_ACTIVATIONS:
        settings.refuse("activation_function", activation)
    dense = Dense(settings.integer("out_features"), _DENSE_ACTIVATIONS.get(activation), settings.boolean("bias", True))
    settings.finish()
    return dense


def _module_config(folder: Path, name: str) -> Path:
    if not is_inside(folder, name, "config.json"):
        raise DamagedFile(f"{folder}/modules.json names {name[:100]!r}: outside the model folder; refused.")
    return folder / name / "config.json"


def read_max_text_length(folder: Path) -> int | None:
    """Read how many tokens of a text are embedded, special tokens included; the rest is cut off."""
    settings = _settings(folder, "sentence_bert_config.json")
    if settings.get("do_lower_case"):
        warnings.warn(f"{folder} sets do_lower_case, which regard does not support.", Note, stacklevel=2)
    newer = _settings(folder, "config_sentence_transformers.json")
    prompts = newer.get("prompts")
    prompt = prompts.get(str(newer.get("default_prompt_name"))) if isinstance(prompts, dict) else None
    if isinstance(prompt, str) and prompt:
        message = f"{folder} puts {prompt[:80]!r} before every text, regard does not. Start your texts with it."
        warnings.warn(message, Note, stacklevel=2)
    name, length = "max_seq_length", settings.get("max_seq_length")
    if length is None:  # newer folders leave it to the tokenizer
        name, length = "model_max_length", _settings(folder, "tokenizer_config.json").get("model_max_length")
        length = None if isinstance(length, (int, float)) and length > _NO_LIMIT else length
    if length is not None and (type(length) is not int or length < 1):
        raise DamagedFile(f"{folder} cannot be used: its {name} is {str(length)[:20]}. Copy or download it again.")
    return length


def _settings(folder: Path, name: str) -> dict[str, Any]:
    return read_json(folder / name) if (folder / name).exists() else {}


def _pool(folder: Path, name: str) -> Pool:
    path = _module_config(folder, name)
    settings = read_json(path)
    modes = [mode for mode in (*_POOLS, *_UNSUPPORTED) if settings.get(mode) is True]
    newer = settings.get("pooling_mode")
    if newer is not None and not modes:
        suffix = f"{newer}_token" if newer == "cls" else f"{newer}_tokens" if newer in _TOKENS else newer
        modes = [f"pooling_mode_{suffix}"]
    if len(modes) != 1 or modes[0] not in _POOLS:
        raise InputError(f"{path} sets {', '.join(modes) or 'nothing'}; regard supports one of {', '.join(_POOLS)}.")
    return _POOLS[modes[0]]


def write_sentence_files(
    folder: Path, model: Model, max_text_length: int | None, tensors: Mapping[str, Tensor]
) -> None:
    """Write the files that describe a sentence embedding, if the model is one; `tensors` are our parameters."""
    match model.readout:
        case Vector(inner=None, pool=pool, normalised=normalised, dense=dense):
            kinds = ["Transformer", "Pooling", *len(dense) * ["Dense"], *(["Normalize"] if normalised else [])]
        case _:
            return
    modules: list[dict[str, Any]] = [
        {"idx": number, "name": str(number), "path": f"{number}_{kind}" if number else "", "type": f"{_PREFIX}{kind}"}
        for number, kind in enumerate(kinds)
    ]
    chosen = {mode: _POOLS[mode] == pool for mode in _POOLS}
    write_file(folder / "modules.json", json_bytes(modules))
    if max_text_length is not None:
        settings = {"max_seq_length": max_text_length, "do_lower_case": False}
        write_file(folder / "sentence_bert_config.json", json_bytes(settings))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": model.vector_width, **chosen, **dict.fromkeys(_UNSUPPORTED, False)}
    write_file(folder / "1_Pooling" / "config.json", json_bytes(pooling))
    inputs = model.vector_width
    for number, layer in enumerate(dense):
        place = folder / f"{number + 2}_Dense"
        place.mkdir(exist_ok=True)
        activation = next(name for name, ours in _DENSE_ACTIVATIONS.items() if ours == layer.activation)
        kind = "torch.nn.modules." + ("linear" if layer.activation is None else "activation")
        shape: dict[str, Any] = {"in_features": inputs, "out_features": layer.width, "bias": layer.biased,
                    "activation_function": f"{kind}.{activation}"}  # fmt: skip
        write_file(place / "config.json", json_bytes(shape))
        prefix = f"readout.dense.{number}."
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        write_file(place / WEIGHTS, tensors_to_bytes(own))
        inputs = layer.width
