"""Resume check: what must be unchanged for a run to resume bit-identically, and the error when something is not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard import messages
from regard.config.recipe import Recipe
from regard.data.read.corpus import Corpus
from regard.data.tasks import Task
from regard.data.tasks.base import Tokenizers
from regard.data.tokenize.train import TokenizerKind
from regard.errors import InputError
from regard.models.model import Model
from regard.schema import from_dict, to_dict
from regard.training.distributed import World
from regard.training.log import Watcher
from regard.training.settings import FREE


def resume_facts(
    recipe: Recipe, corpus: Corpus, valid: Corpus | None, tokenizers: Tokenizers, task: Task, world: World
) -> dict[str, Any]:
    """The facts that a checkpoint stores; all but `machine` must be equal for a run to resume."""
    settings = {key: value for key, value in to_dict(recipe.train).items() if key not in FREE}
    return {
        "train": settings,
        "model": to_dict(recipe.model),
        "text": {
            "train": corpus.digest,
            "weights": [part.weight for part in corpus.subcorpora],
            "valid": None if valid is None else valid.digest,
            "tokenizer": {
                "recipe": to_dict(recipe.text.tokenizer),
                "digests": [None if tokenizer is None else tokenizer.digest for tokenizer in tokenizers],
            },
            "bpe_dropout": recipe.text.bpe_dropout,
            "task": to_dict(task),
        },
        "machine": {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "device": world.device.type,
            "processes": world.size,
        },
    }


def check_resume(
    saved: dict[str, Any], now: dict[str, Any], folder: Path, corpora: Mapping[str, Corpus | None], watcher: Watcher,
    parts: Sequence[type] = (), *, new_data: bool,
) -> tuple[str, ...]:  # fmt: skip
    """Refuse to resume with other facts than the checkpoint's; -> the splits with new text, which `new_data` allows."""
    changed = tuple(name for name in corpora if saved["text"].get(name) != now["text"][name])
    for name in () if new_data else changed:
        corpus = corpora[name]
        what = f"text.{name}" if corpus is None else ", ".join(corpus.names)
        raise messages.CHANGED_TEXT(path=what, folder=folder, key=f"text.{name}")
    saved = {**saved, "text": {**saved["text"], **{name: now["text"][name] for name in corpora}}}
    saved["train"] = {key: value for key, value in saved["train"].items() if key not in FREE}
    saved["model"] = with_defaults(Model, saved.get("model"), parts)
    saved["text"]["task"] = with_defaults(Task, saved["text"].get("task"), parts)
    tokenizer = saved["text"].get("tokenizer", {})
    recipe = with_defaults(TokenizerKind, tokenizer.get("recipe"), parts)
    saved["text"]["tokenizer"] = {**tokenizer, "recipe": recipe}
    for key in ("text", "model", "train"):
        different = difference(saved.get(key), now[key], key)
        if different is not None:
            path, old, new = different
            raise messages.CHANGED_SETTING(key=path, old=_brief(old), folder=folder, new=_brief(new))
    if saved.get("base") != now.get("base"):
        raise messages.CHANGED_SETTING(
            key="model.init", old="a model with other weights", folder=folder, new="the model that is there now"
        )
    if saved.get("machine") != now["machine"]:
        old, new = (_machine(facts.get("machine", {})) for facts in (saved, now))
        watcher.note(messages.OTHER_MACHINE(old=old, new=new))
    return changed


def with_defaults(annotation: Any, table: Any, parts: Sequence[type] = ()) -> Any:
    """A description as this version writes it: fields that did not exist in an older version get their defaults."""
    try:
        return to_dict(from_dict(annotation, table, where="", also=parts))
    except (InputError, TypeError):
        return table


def _machine(facts: Mapping[str, Any]) -> str:
    """Torch 2.13, 2 threads, cpu."""
    return f"torch {facts.get('torch')}, {facts.get('threads')} threads, {facts.get('device')}" + (
        f", {facts['processes']} processes" if facts.get("processes", 1) != 1 else ""
    )


def difference(old: Any, new: Any, path: str) -> tuple[str, Any, Any] | None:
    """The path and values of the first difference between two trees."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        below = [(old.get(key), new.get(key), f"{path}.{key}") for key in dict.fromkeys([*new, *old])]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        below = [(one, other, f"{path}[{index}]") for index, (one, other) in enumerate(zip(old, new))]
    else:
        return None if old == new else (path, old, new)
    return next(filter(None, (difference(*pair) for pair in below)), None)


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
