"""A recipe becomes a run: text, tokenizers, network and folder, and what must stay the same for it to go on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.api import LoadedModel, load
from regard.decode.generate import require_room
from regard.describe import to_plain, to_toml
from regard.errors import CannotResume, InputError
from regard.learn.guard import only_one
from regard.learn.loop import Job, Run, checkpoints
from regard.learn.progress import Quiet, Watcher
from regard.learn.settings import FREE
from regard.models.device import choose_device
from regard.models.model import Network
from regard.recipe import Recipe, read_recipe
from regard.store.checkpoint import newest_checkpoint
from regard.store.files import write_file
from regard.store.folder import write_description
from regard.text.corpus import Corpus
from regard.text.problem import default_problem
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import train_tokenizers
from regard.version import __version__


def train(
    recipe: str | Path,
    out: str | Path | None = None,
    *,
    settings: Sequence[str] = (),
    device: str = "auto",
    watcher: Watcher | None = None,
) -> LoadedModel:
    """Train what a recipe describes, or go on with what the folder holds; -> the model."""
    parsed = read_recipe(recipe, settings)
    folder = Path(out) if out is not None else Path("runs") / parsed.name
    watcher = watcher or Quiet()
    with only_one(folder):
        chosen = choose_device(device)
        Run(prepare(parsed, folder, chosen, watcher), folder, chosen, watcher).go()
    return load(folder, device=device)


def prepare(recipe: Recipe, folder: Path, device: torch.device, watcher: Watcher) -> Job:
    """Read the text, train the tokenizers, build the network, and write the folder's description."""
    corpus = recipe.text.read("train")
    assert corpus is not None
    valid = recipe.text.read("valid")
    problem = recipe.text.problem or default_problem(corpus)
    require_own(folder)
    found = newest_checkpoint(checkpoints(folder), lambda text: None)
    tokenizers = train_tokenizers(recipe.text.tokenizer, corpus)
    fingerprint = fingerprint_of(recipe, corpus, valid, tokenizers, to_plain(problem), device)
    if found is not None:
        compare(found.state()["fingerprint"], fingerprint, folder, watcher)
    samples = problem.samples(corpus, tokenizers)
    for reason, count in samples.dropped.items():
        watcher.note(f"{corpus.names[0]}: {count:,} of {len(corpus):,} left out, {reason}")
    torch.manual_seed(recipe.train.seed)
    first, second = tokenizers
    network = recipe.model.build(first.vocabulary) if second is None else recipe.model.build(
        second.vocabulary, first.vocabulary
    )  # fmt: skip
    require_shape(network, corpus, recipe)
    require_room(network, int(samples.lengths.max()), "a row of the text (text.problem)")
    write_file(folder / "recipe.toml", to_toml(recipe.plain).encode())
    write_description(
        folder, network, tokenizers, task="translate" if network.encoder else "generate",
        generation=generation_config(recipe, second or first),
    )  # fmt: skip
    return Job(
        network,
        tokenizers,
        samples,
        None if valid is None else (valid, problem.samples(valid, tokenizers)),
        recipe.train,
        fingerprint,
        card=lambda results: model_card(recipe, network, results),
    )


def require_own(folder: Path) -> None:
    """Refuse to write over a model that no run of ours is making here."""
    if (folder / "model.safetensors").exists() and not checkpoints(folder).exists():
        raise InputError(f"{folder} holds a model but no checkpoints to go on from. Choose another --out.")


def require_shape(network: Network, corpus: Corpus, recipe: Recipe) -> None:
    """A model with an encoder learns pairs, one without learns plain text."""
    if (network.encoder is not None) != (corpus.targets is not None):
        name, text = recipe.plain.get("model", {}).get("name", "transformer"), corpus.names[0]
        sides = "two sides" if corpus.targets is not None else "one side"
        other = "gpt2" if corpus.targets is None else "transformer"
        raise InputError(f'{text} has {sides}, which "{name}" does not learn (model.name). Try model.name = "{other}".')


def generation_config(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Any]:
    """How the model speaks, in the ecosystem's names."""
    return {
        "num_beams": recipe.decode.beam,
        "length_penalty": recipe.decode.length_penalty,
        "bos_token_id": tokenizer.begin,
        "decoder_start_token_id": tokenizer.begin,
        "eos_token_id": tokenizer.end,
        "pad_token_id": tokenizer.pad,
    }


def fingerprint_of(
    recipe: Recipe,
    corpus: Corpus,
    valid: Corpus | None,
    tokenizers: tuple[Tokenizer, Tokenizer | None],
    problem: dict[str, Any],
    device: torch.device,
) -> dict[str, Any]:
    """What must be the same for a run to go on bit by bit; `machine` only makes it close."""
    settings = {key: value for key, value in to_plain(recipe.train).items() if key not in FREE}
    if recipe.train.schedule.aims:
        settings["steps"] = recipe.train.steps
    return {
        "train": settings,
        "model": to_plain(recipe.model),
        "text": {
            "train": corpus.digest,
            "valid": None if valid is None else valid.digest,
            "tokenizer": [None if tokenizer is None else tokenizer.digest for tokenizer in tokenizers],
            "problem": problem,
        },
        "machine": {"torch": torch.__version__, "threads": torch.get_num_threads(), "device": device.type},
    }


def compare(then: dict[str, Any], now: dict[str, Any], folder: Path, watcher: Watcher) -> None:
    """Refuse to go on with something else than what the checkpoint was made with."""
    for key in ("text", "model", "train"):
        place = difference(then.get(key), now[key], key)
        if place is not None:
            path, old, new = place
            raise CannotResume(
                f"cannot resume: {path} was {_brief(old)} when {folder} was last saved, now it is {_brief(new)}. "
                "Put it back, or choose another --out."
            )
    if then.get("machine") != now["machine"]:
        old, new = then.get("machine", {}), now["machine"]
        watcher.note(
            f"note: checkpoint made with torch {old.get('torch')}, {old.get('threads')} threads, "
            f"{old.get('device')}; now {new['torch']}, {new['threads']}, {new['device']}. "
            "Results will be close but not bit-identical."
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


def model_card(recipe: Recipe, network: Network, results: Mapping[str, Any]) -> str:
    """The README.md of a model folder: what it is, how it was made, how well it does."""
    best = results["best"] or {"step": results["steps"], "numbers": {}}
    numbers = "\n".join(f"| {name.replace('_', ' ')} | {value:.4g} |" for name, value in best["numbers"].items())
    parameters = sum(parameter.numel() for parameter in network.parameters())
    verb = "translate" if network.encoder is not None else "generate"
    return f"""---
library_name: regard
---
# {recipe.name}

{parameters:,} parameters, trained for {results["steps"]:,} steps in {results["seconds"] / 60:.1f} minutes by regard
{__version__}, seed {recipe.train.seed}. The weights are those of step {best["step"]:,}.

| validation | |
|---|---|
{numbers}

```sh
regard {verb} .        # in this folder
```

```toml
{to_toml(recipe.plain).strip()}
```
"""


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
