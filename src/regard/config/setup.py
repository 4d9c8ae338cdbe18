"""A recipe becomes a run: text, tokenizers, network and folder, and what must stay the same for it to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch

from regard import messages
from regard.config.pretrained import Beginning, answering, default_task, read_beginning, require_shape
from regard.config.recipe import Init, Recipe, read_recipe
from regard.config.resume import filled, fingerprint_of, require_same
from regard.data.read.cache import Cache, default_cache
from regard.data.read.corpus import Corpus
from regard.data.read.report import DataReport, report_on
from regard.data.samples import Samples
from regard.data.tasks import Task
from regard.data.tokenize.characters import as_letters
from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import Saved, TokenizerKind, train_tokenizers
from regard.decode.generate import require_room
from regard.decode.inputs import verbs
from regard.models.model import Model, Network
from regard.schema import to_dict, to_toml
from regard.show.html import data_page
from regard.store.checkpoint import Checkpoint
from regard.store.files import read_json, write_file
from regard.store.folder import read_description, read_tokenizers, write_description
from regard.store.loading import LEARNT_LENGTH
from regard.training.distributed import World
from regard.training.log import Watcher
from regard.training.loop import Job
from regard.training.probe import fitting
from regard.training.validate import require_measure
from regard.version import __version__

_LISTED = 100_000


@dataclass(frozen=True, eq=False)
class Material:
    """The text of a recipe, read, and how it is cut into tokens."""

    recipe: Recipe
    corpus: Corpus
    valid: Corpus | None
    task: Task
    tokenizers: tuple[Tokenizer, Tokenizer | None]
    cache: Cache
    model: Model
    vocabularies: tuple[int, int | None]  # the target's, and the source's where it has its own
    beginning: Beginning | None = None

    @cached_property
    def samples(self) -> Samples:
        """What is learnt from."""
        dropout = self.recipe.text.bpe_dropout
        return self.of(self.corpus, dropout)

    def of(self, corpus: Corpus, dropout: float = 0.0) -> Samples:
        """A corpus as the model reads it: tokens by their numbers, or by their letters."""
        samples = self.task.samples(corpus, self.tokenizers, self.cache, dropout=dropout)
        return as_letters(samples, self.tokenizers[0], self.model.embed.letters, self.cache)

    def network(self) -> Network:
        """The model before it has learnt anything, the same each time."""
        torch.manual_seed(self.recipe.train.seed)
        begun = self.beginning
        network = self.model.build(*self.vocabularies) if begun is None else begun.network(self.model)
        require_room(network, int(self.samples.lengths.max()), "a row of the text (text.task)")
        require_room(network, self.task.reach, "where rows may stand (text.task.shift)")
        return network


def read_material(
    recipe: Recipe, tokenizers: tuple[Tokenizer, Tokenizer | None] | None = None, begun: Path | None = None
) -> Material:
    """Read the text, and train the tokenizers, unless there are some; a run that has `begun` knows its model."""
    cache = default_cache()
    corpus = recipe.text.read("train", cache)
    assert corpus is not None
    valid = recipe.text.read("valid", cache)
    init = recipe.model if isinstance(recipe.model, Init) else None
    beginning = read_beginning(init) if init is not None and begun is None else None
    vocabularies = None
    if init is not None and begun is not None:
        (model, vocabularies), tokenizers = read_description(begun), read_tokenizers(begun)
    else:
        model = beginning.model if beginning else cast(Model, recipe.model)
    name = recipe.plain.get("model", {}).get("name", "transformer") if init is None else init.init
    tokenizers = beginning.tokenizers if beginning else tokenizers
    sentinels = bool(tokenizers[0].sentinels if tokenizers else recipe.text.tokenizer.sentinels)
    task = (recipe.text.task or default_task(model, corpus, sentinels, name)).named(corpus)
    require_shape(model, task, name, where="model.name" if init is None else "model.init")
    tokenizers = tokenizers or train_tokenizers(recipe.text.tokenizer, task.wording(corpus), cache)
    model = answering(model, task, None if init is None else init.pool)
    vocabularies = vocabularies or vocabularies_of(tokenizers)
    return Material(recipe, corpus, valid, task, tokenizers, cache, model, vocabularies, beginning)


def vocabularies_of(tokenizers: tuple[Tokenizer, Tokenizer | None]) -> tuple[int, int | None]:
    """How many tokens are said, and how many are read where they are others."""
    first, second = tokenizers
    return (first.vocabulary, None) if second is None else (second.vocabulary, first.vocabulary)


def prepare(
    recipe: Recipe,
    folder: Path,
    world: World,
    watcher: Watcher,
    found: Checkpoint | None = None,
    *,
    new_data: bool = False,
) -> Job:
    """Read the text, train the tokenizers, build the network, and write the folder's description."""
    then = None if found is None else found.state()["fingerprint"]
    kind = recipe.text.tokenizer
    # A run keeps the tokenizers it began with, also when its text is new; a file that was named is read again.
    known = None if then is None else filled(TokenizerKind, then["text"]["tokenizer"]["recipe"])
    kept = known == to_dict(kind) and not isinstance(kind, Saved)
    material = read_material(recipe, read_tokenizers(folder) if kept else None, folder if found else None)
    if recipe.train.batch_tokens == "fit":
        if then is not None:
            recipe = with_batch(recipe, then["train"]["batch_tokens"])
        elif world.first:
            recipe = with_batch(recipe, fitted(material, world.device, watcher))
        else:
            recipe = with_batch(recipe, read_recipe(folder / "recipe.toml").train.budget)
    corpus, valid, tokenizers, task = material.corpus, material.valid, material.tokenizers, material.task
    fingerprint = fingerprint_of(recipe, corpus, valid, tokenizers, to_dict(task), world)
    changed: tuple[str, ...] = ()
    if then is not None:
        texts = {"train": corpus, "valid": valid}
        changed = require_same(then, fingerprint, folder, texts, watcher, new_data=new_data)
    samples = material.samples
    aligned = task.aligned and recipe.text.alignment == "checked"
    report = report_on(corpus, samples, valid, material.cache, aligned=aligned)
    network = material.network()
    if valid is not None:
        require_measure(recipe.train.best, network.description, pairs=valid.targets is not None)
    verb = verbs(network.description, tokenizers[0])[0]
    if world.first:
        write_file(folder / "recipe.toml", to_toml(recipe.plain).encode())
        write_report(folder, report, material, watcher)
        write_description(
            folder, network, tokenizers, task=verb,
            generation=generation_config(recipe, tokenizers[1] or tokenizers[0]),
            facts={LEARNT_LENGTH: learnt_length(material, folder if found else None)},
        )  # fmt: skip
    return Job(
        network,
        tokenizers,
        samples,
        None if valid is None else (valid, material.of(valid)),
        recipe.train,
        fingerprint,
        card=lambda results: model_card(recipe, network, verb, results),
        start=found,
        changed=changed,
    )


def learnt_length(material: Material, begun: Path | None) -> int:
    """How many tokens a model learns to read at once, or has learnt to before."""
    now = max(material.task.reach, int(material.samples.lengths.max()))
    if material.beginning is not None:
        before = material.beginning.loaded
        return max(now, before.config.get(LEARNT_LENGTH) or before.network.max_positions or 0)
    known = read_json(begun / "config.json") if begun is not None and (begun / "config.json").exists() else {}
    return max(now, int(known.get(LEARNT_LENGTH) or 0))


def fitted(material: Material, device: torch.device, watcher: Watcher) -> int:
    """As many tokens a step as memory holds."""
    tokens, fits = fitting(material.network, material.samples, material.recipe.train, device)
    said = f"batch_tokens = {tokens:,} fits (train.batch_tokens)."
    watcher.note(said if fits else messages.LITTLE_MEMORY(tokens=tokens))
    return tokens


def with_batch(recipe: Recipe, tokens: int) -> Recipe:
    """A recipe with so many tokens a step."""
    table = {**recipe.plain["train"], "batch_tokens": tokens}
    return replace(recipe, plain={**recipe.plain, "train": table}, train=replace(recipe.train, batch_tokens=tokens))


def write_report(folder: Path, report: DataReport, material: Material, watcher: Watcher) -> None:
    """What the text is like: data.txt, data.html, left-out.tsv, and what a person should know of it."""
    listed = folder / "left-out.tsv"
    valid, left = material.valid, material.samples.left_out
    warnings = report.warnings(valid="valid" if valid is None else valid.names[0], listed=str(listed))
    rows = zip(left.index[:_LISTED].tolist(), left.reason[:_LISTED].tolist())
    write_file(
        listed,
        "".join(f"{material.corpus.where([index])}\t{left.reasons[reason]}\n" for index, reason in rows).encode(),
    )
    write_file(folder / "data.txt", "\n".join([report.text(), *warnings, ""]).encode())
    write_file(folder / "data.html", data_page(report, warnings).encode())
    for text in warnings:
        watcher.note(text)


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


def model_card(recipe: Recipe, network: Network, verb: str, results: Mapping[str, Any]) -> str:
    """The README.md of a model folder: what it is, what it is for, how it was made, how well it does."""
    best = results["best"] or {"step": results["steps"], "numbers": {}}
    numbers = "\n".join(f"| {name.replace('_', ' ')} | {value:.4g} |" for name, value in best["numbers"].items())
    parameters = sum(parameter.numel() for parameter in network.parameters())
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
