"""Folders of sentence vectors as sentence-transformers has them: modules.json names an encoder, a pool, a norm."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from regard.errors import DamagedFile, InputError, Note
from regard.models.model import Model
from regard.models.readouts import First, Last, Mean, Most, Pool, Vector
from regard.store.files import json_bytes, read_bounded, read_json, write_file
from regard.store.loading import is_inside

_POOLS: dict[str, Pool] = {
    "pooling_mode_cls_token": First(), "pooling_mode_mean_tokens": Mean(), "pooling_mode_max_tokens": Most(),
    "pooling_mode_lasttoken": Last(),
}  # fmt: skip
_OTHERS = ("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
_PREFIX = "sentence_transformers.models."
_ENDLESS = 1 << 40


def is_sentence_folder(folder: Path) -> bool:
    """Whether a folder says how to make one vector of a text."""
    return (folder / "modules.json").exists()


def read_sentence_readout(folder: Path) -> Vector:
    """The vector that modules.json describes, over the encoder in the same folder."""
    path = folder / "modules.json"
    try:
        modules = json.loads(read_bounded(path))
        kinds = [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in modules]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise DamagedFile(f"{path} is not a list of modules. Copy or download it again.") from error
    names = [kind for kind, _ in kinds]
    if names[:2] != ["Transformer", "Pooling"] or names[2:] not in ([], ["Normalize"]) or kinds[0][1] not in ("", "."):
        raise InputError(f"{path} asks for {', '.join(names)}; regard knows Transformer, Pooling and Normalize, the "
                         "first in the folder itself.")  # fmt: skip
    return Vector(_pool(folder, kinds[1][1]), None, normalised="Normalize" in names)


def read_longest_text(folder: Path) -> int | None:
    """How many tokens of a text are read, what stands around it included; what follows them is cut off."""
    settings = _settings(folder, "sentence_bert_config.json")
    if settings.get("do_lower_case"):
        warnings.warn(f"{folder} asks for do_lower_case, which regard does not do.", Note, stacklevel=2)
    newer = _settings(folder, "config_sentence_transformers.json")
    prompts = newer.get("prompts")
    prompt = prompts.get(str(newer.get("default_prompt_name"))) if isinstance(prompts, dict) else None
    if isinstance(prompt, str) and prompt:
        said = f"{folder} puts {prompt[:80]!r} before every text, regard does not. Begin yours with it."
        warnings.warn(said, Note, stacklevel=2)
    name, most = "max_seq_length", settings.get("max_seq_length")
    if most is None:  # newer folders leave it to the tokenizer, which says a number without end where there is none
        name, most = "model_max_length", _settings(folder, "tokenizer_config.json").get("model_max_length")
        most = None if isinstance(most, (int, float)) and most > _ENDLESS else most
    if most is not None and (type(most) is not int or most < 1):
        raise DamagedFile(f"{folder} cannot be used: its {name} is {str(most)[:20]}. Copy or download it again.")
    return most


def _settings(folder: Path, name: str) -> dict[str, Any]:
    return read_json(folder / name) if (folder / name).exists() else {}


def _pool(folder: Path, name: str) -> Pool:
    if not is_inside(folder, name, "config.json"):
        raise DamagedFile(f"{folder}/modules.json names {name[:100]!r}: outside the model folder; refused.")
    inside = folder / name / "config.json"
    settings = read_json(inside)
    wanted = [mode for mode in (*_POOLS, *_OTHERS) if settings.get(mode) is True]
    said = settings.get("pooling_mode")
    if said is not None and not wanted:
        wanted = [f"pooling_mode_{ {'cls': 'cls_token', 'mean': 'mean_tokens', 'max': 'max_tokens'}.get(said, said) }"]
    if len(wanted) != 1 or wanted[0] not in _POOLS:
        raise InputError(
            f"{inside} asks for {', '.join(wanted) or 'nothing'}; regard knows one of {', '.join(_POOLS)}."
        )
    return _POOLS[wanted[0]]


def write_sentence_files(folder: Path, model: Model, longest_text: int | None) -> None:
    """The files that say how to make one vector of a text, for a model that does."""
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
    if longest_text is not None:
        settings = {"max_seq_length": longest_text, "do_lower_case": False}
        write_file(folder / "sentence_bert_config.json", json_bytes(settings))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": model.vector_width, **chosen, **dict.fromkeys(_OTHERS, False)}
    write_file(folder / "1_Pooling" / "config.json", json_bytes(pooling))
