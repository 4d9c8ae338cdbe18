"""What a run must find unchanged to go on bit by bit, and what it says when something has changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard import messages
from regard.config.recipe import Recipe
from regard.data.read.corpus import Corpus
from regard.data.tasks import Task
from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import TokenizerKind
from regard.errors import InputError
from regard.models.model import Model
from regard.schema import from_dict, to_dict
from regard.training.distributed import World
from regard.training.log import Watcher
from regard.training.settings import FREE


def fingerprint_of(
    recipe: Recipe,
    corpus: Corpus,
    valid: Corpus | None,
    tokenizers: tuple[Tokenizer, Tokenizer | None],
    task: dict[str, Any],
    world: World,
) -> dict[str, Any]:
    """What must be the same for a run to go on bit by bit; `machine` only makes it close."""
    settings = {key: value for key, value in to_dict(recipe.train).items() if key not in FREE}
    if recipe.train.schedule.aims:
        settings["steps"] = recipe.train.steps
    return {
        "train": settings,
        "model": to_dict(recipe.model),
        "text": {
            "train": corpus.digest,
            "weights": [part.weight for part in corpus.parts],
            "valid": None if valid is None else valid.digest,
            "tokenizer": {
                "recipe": to_dict(recipe.text.tokenizer),
                "digests": [None if tokenizer is None else tokenizer.digest for tokenizer in tokenizers],
            },
            "bpe_dropout": recipe.text.bpe_dropout,
            "task": task,
        },
        "machine": {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "device": world.device.type,
            "processes": world.size,
        },
    }


def require_same(
    then: dict[str, Any],
    now: dict[str, Any],
    folder: Path,
    corpora: Mapping[str, Corpus | None],
    watcher: Watcher,
    *,
    new_data: bool,
) -> tuple[str, ...]:
    """Refuse to go on with something else than what the checkpoint was made with; -> which texts are new, by wish."""
    changed = tuple(name for name in corpora if then["text"].get(name) != now["text"][name])
    for name in () if new_data else changed:
        corpus = corpora[name]
        what = f"text.{name}" if corpus is None else ", ".join(corpus.names)
        raise messages.CHANGED_TEXT(path=what, folder=folder, key=f"text.{name}")
    then = {**then, "text": {**then["text"], **{name: now["text"][name] for name in corpora}}}
    then["model"] = filled(Model, then.get("model"))
    then["text"] = {**then["text"], "task": filled(Task, then["text"].get("task"))}
    tokenizer = then["text"].get("tokenizer", {})
    then["text"]["tokenizer"] = {**tokenizer, "recipe": filled(TokenizerKind, tokenizer.get("recipe"))}
    for key in ("text", "model", "train"):
        place = difference(then.get(key), now[key], key)
        if place is not None:
            path, old, new = place
            raise messages.CHANGED_SETTING(key=path, old=_brief(old), folder=folder, new=_brief(new))
    if then.get("machine") != now["machine"]:
        old, new = (_machine(where.get("machine", {})) for where in (then, now))
        watcher.note(messages.OTHER_MACHINE(old=old, new=new))
    return changed


def filled(kind: Any, plain: Any) -> Any:
    """A description as it would be written today: parts that did not exist yet are what they are when not said."""
    try:
        return to_dict(from_dict(kind, plain, where=""))
    except (InputError, TypeError):
        return plain


def _machine(facts: Mapping[str, Any]) -> str:
    """Torch 2.13, 2 threads, cpu."""
    return f"torch {facts.get('torch')}, {facts.get('threads')} threads, {facts.get('device')}" + (
        f", {facts['processes']} processes" if facts.get("processes", 1) != 1 else ""
    )


def difference(old: Any, new: Any, path: str) -> tuple[str, Any, Any] | None:
    """The first place at which two trees differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*new, *(key for key in old if key not in new)]:
            found = difference(old.get(key), new.get(key), f"{path}.{key}")
            if found is not None:
                return found
        return None
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new)):
            found = difference(one, other, f"{path}[{place}]")
            if found is not None:
                return found
        return None
    return None if old == new else (path, old, new)


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
