"""Sentence embeddings in the format of sentence-transformers: modules.json names an encoder, pooling, a norm."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from regard.errors import DamagedFile, InputError, Note
from regard.models.model import Model
from regard.models.readouts import First, Last, Max, Mean, Pool, Vector
from regard.store.files import json_bytes, read_bounded, read_json, write_file
from regard.store.loading import is_inside

_POOLS: dict[str, Pool] = {
    "pooling_mode_cls_token": First(), "pooling_mode_mean_tokens": Mean(), "pooling_mode_max_tokens": Max(),
    "pooling_mode_lasttoken": Last(),
}  # fmt: skip
_UNSUPPORTED = ("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
_PREFIX = "sentence_transformers.models."
_NO_LIMIT = 1 << 40  # a larger model_max_length means that there is none


def is_sentence_folder(folder: Path) -> bool:
    """Whether a folder describes a sentence embedding."""
    return (folder / "modules.json").exists()


def read_sentence_readout(folder: Path) -> Vector:
    """Read the sentence embedding that modules.json describes, over the encoder in the same folder."""
    path = folder / "modules.json"
    try:
        modules = json.loads(read_bounded(path))
        kinds = [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in modules]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise DamagedFile(f"{path} is not a list of modules. Copy or download it again.") from error
    names = [kind for kind, _ in kinds]
    if names[:2] != ["Transformer", "Pooling"] or names[2:] not in ([], ["Normalize"]) or kinds[0][1] not in ("", "."):
        raise InputError(f"{path} names {', '.join(names)}; regard supports Transformer, Pooling and Normalize, the "
                         "first in the folder itself.")  # fmt: skip
    return Vector(_pool(folder, kinds[1][1]), None, normalised="Normalize" in names)


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
    if not is_inside(folder, name, "config.json"):
        raise DamagedFile(f"{folder}/modules.json names {name[:100]!r}: outside the model folder; refused.")
    path = folder / name / "config.json"
    settings = read_json(path)
    modes = [mode for mode in (*_POOLS, *_UNSUPPORTED) if settings.get(mode) is True]
    newer = settings.get("pooling_mode")
    if newer is not None and not modes:
        suffix = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}.get(newer, newer)
        modes = [f"pooling_mode_{suffix}"]
    if len(modes) != 1 or modes[0] not in _POOLS:
        raise InputError(f"{path} sets {', '.join(modes) or 'nothing'}; regard supports one of {', '.join(_POOLS)}.")
    return _POOLS[modes[0]]


def write_sentence_files(folder: Path, model: Model, max_text_length: int | None) -> None:
    """Write the files that describe a sentence embedding, if the model is one."""
    match model.readout:
        case Vector(inner=None, pool=pool, normalised=normalised):
            kinds = ["Transformer", "Pooling", *(["Normalize"] if normalised else [])]
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
