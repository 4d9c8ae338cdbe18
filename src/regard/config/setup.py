"""Setup of a run: a recipe becomes text, tokenizers, samples and a network, and the folder's description is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch

from regard import messages
from regard.config.pretrained import Pretrained, default_task, read_pretrained, require_shape, with_readout_for
from regard.config.recipe import FineTuning, Recipe, read_recipe
from regard.config.resume import check_resume, resume_facts, with_defaults
from regard.data.read.cache import Cache, default_cache
from regard.data.read.corpus import Corpus
from regard.data.read.report import DataReport, report_on
from regard.data.samples import Samples
from regard.data.tasks import Task
from regard.data.tokenize.characters import with_characters
from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import Saved, TokenizerKind, train_tokenizers
from regard.decode.inputs import capabilities, check_length
from regard.models.model import Model, Network
from regard.schema import to_dict, to_toml
from regard.show.html import data_page
from regard.store.checkpoint import Checkpoint
from regard.store.files import read_json, write_file
from regard.store.folder import read_description, read_tokenizers, write_description
from regard.store.loading import TRAINED_LENGTH
from regard.training.distributed import World
from regard.training.log import Watcher
from regard.training.loop import Job
from regard.training.probe import largest_batch
from regard.training.validate import require_metric
from regard.version import __version__

_LISTED = 100_000  # lines of left-out.tsv

Tokenizers = tuple[Tokenizer, Tokenizer | None]


@dataclass(frozen=True, eq=False)
class Setup:
    """What a recipe stands for: its corpora, task, tokenizers and model."""

    recipe: Recipe
    corpus: Corpus
    valid: Corpus | None
    task: Task
    tokenizers: Tokenizers
    cache: Cache
    model: Model
    vocabularies: tuple[int, int | None]  # the target's, and the source's where it has its own
    pretrained: Pretrained | None = None

    @cached_property
    def samples(self) -> Samples:
        """The training samples."""
        return self.samples_of(self.corpus, self.recipe.text.bpe_dropout)

    def samples_of(self, corpus: Corpus, bpe_dropout: float = 0.0) -> Samples:
        """A corpus as the model reads it: token ids, or the characters of each token."""
        samples = self.task.samples(corpus, self.tokenizers, self.cache, bpe_dropout=bpe_dropout)
        return with_characters(samples, self.tokenizers[0], self.model.embed.characters, self.cache)

    def network(self) -> Network:
        """Build the network with its initial weights, which depend on the seed alone, or with pretrained ones."""
        torch.manual_seed(self.recipe.train.seed)
        given = self.pretrained
        network = self.model.build(*self.vocabularies) if given is None else given.network(self.model)
        check_length(network, int(self.samples.lengths.max()), "a row of the text (text.task)")
        check_length(network, self.task.max_positions, "the range of positions (text.task.random_positions)")
        return network


def read_setup(recipe: Recipe, tokenizers: Tokenizers | None = None, resumed: Path | None = None) -> Setup:
    """Read the text and train the tokenizers, unless they are given; `resumed` is the folder of a run to continue."""
    cache, table = default_cache(), recipe.model if isinstance(recipe.model, FineTuning) else None
    corpus = recipe.text.read("train", cache)
    assert corpus is not None
    valid = recipe.text.read("valid", cache)
    pretrained = read_pretrained(table, recipe.parts) if table is not None and resumed is None else None
    vocabularies = None
    if table is not None and resumed is not None:
        (model, vocabularies), tokenizers = read_description(resumed, parts=recipe.parts), read_tokenizers(resumed)
    else:
        model = pretrained.model if pretrained else cast(Model, recipe.model)
    name, where = name_of_model(recipe)
    tokenizers = pretrained.tokenizers if pretrained else tokenizers
    sentinels = bool(tokenizers[0].sentinels if tokenizers else recipe.text.tokenizer.sentinels)
    task = (recipe.text.task or default_task(model, corpus, sentinels, name, where=where)).with_labels_from(corpus)
    require_shape(model, task, name, where=where)
    tokenizers = tokenizers or train_tokenizers(recipe.text.tokenizer, task.tokenizer_text(corpus), cache)
    model = with_readout_for(model, task, None if table is None else table.pool)
    vocabularies = vocabularies or vocabularies_of(tokenizers)
    return Setup(recipe, corpus, valid, task, tokenizers, cache, model, vocabularies, pretrained)


def name_of_model(recipe: Recipe) -> tuple[str, str]:
    """The model's name in error messages, and the recipe key that chose it."""
    table = recipe.tables.get("model", {})
    if isinstance(recipe.model, FineTuning):
        return recipe.model.init, "model.init"
    return ("this model", "model") if "kind" in table else (table.get("name", "transformer"), "model.name")


def vocabularies_of(tokenizers: Tokenizers) -> tuple[int, int | None]:
    """The size of the target's vocabulary, and of the source's where it has its own."""
    first, second = tokenizers
    return (first.vocabulary, None) if second is None else (second.vocabulary, first.vocabulary)


def prepare(
    recipe: Recipe,
    folder: Path,
    world: World,
    watcher: Watcher,
    checkpoint: Checkpoint | None = None,
    *,
    new_data: bool = False,
) -> Job:
    """Set up a run, check that it can resume from its checkpoint, and write the folder's description."""
    saved = None if checkpoint is None else checkpoint.state()["resume_facts"]
    setup = read_setup(recipe, kept_tokenizers(recipe, folder, saved), folder if checkpoint else None)
    recipe = with_batch_size(setup, folder, world, watcher, saved)
    corpus, valid, tokenizers, task = setup.corpus, setup.valid, setup.tokenizers, setup.task
    facts = resume_facts(recipe, corpus, valid, tokenizers, task, world)
    changed: tuple[str, ...] = ()
    if saved is not None:
        texts = {"train": corpus, "valid": valid}
        changed = check_resume(saved, facts, folder, texts, watcher, recipe.parts, new_data=new_data)
    aligned = task.aligned and recipe.text.alignment == "checked"
    report = report_on(corpus, setup.samples, valid, setup.cache, aligned=aligned)
    network = setup.network()
    if valid is not None:
        require_metric(recipe.train.best, network.description, pairs=valid.targets is not None)
    verb = capabilities(network.description, tokenizers[0])[0]
    if world.first:
        write_file(folder / "recipe.toml", to_toml(recipe.tables).encode())
        write_report(folder, report, setup, watcher)
        write_description(
            folder, network, tokenizers, task=verb,
            generation_config=generation_config(recipe, tokenizers[1] or tokenizers[0]),
            extra_config={TRAINED_LENGTH: trained_length(setup, folder if checkpoint else None)},
        )  # fmt: skip
    return Job(
        network, tokenizers, setup.samples, None if valid is None else (valid, setup.samples_of(valid)), recipe.train,
        facts, card=lambda results: model_card(recipe, network, verb, results), start=checkpoint, changed=changed,
    )  # fmt: skip


def kept_tokenizers(recipe: Recipe, folder: Path, saved: Mapping[str, Any] | None) -> Tokenizers | None:
    """The tokenizers of a run to resume, which it keeps even for new text; a tokenizer file is read again."""
    kind = recipe.text.tokenizer
    if saved is None or isinstance(kind, Saved):
        return None
    known = with_defaults(TokenizerKind, saved["text"]["tokenizer"]["recipe"], recipe.parts)
    return read_tokenizers(folder) if known == to_dict(kind) else None


def with_batch_size(
    setup: Setup, folder: Path, world: World, watcher: Watcher, saved: Mapping[str, Any] | None
) -> Recipe:
    """The recipe with a number for `batch_tokens = "fit"`: the run's own, or the most that fits in memory."""
    recipe = setup.recipe
    if recipe.train.batch_tokens != "fit":
        return recipe
    if saved is not None:
        tokens = saved["train"]["batch_tokens"]
    elif world.first:
        tokens, fits = largest_batch(setup.network, setup.samples, recipe.train, world.device)
        found = f"batch_tokens = {tokens:,} fits (train.batch_tokens)."
        watcher.note(found if fits else messages.LITTLE_MEMORY(tokens=tokens))
    else:
        tokens = read_recipe(folder / "recipe.toml", parts=recipe.parts).train.budget
    tables = {**recipe.tables, "train": {**recipe.tables["train"], "batch_tokens": tokens}}
    return replace(recipe, tables=tables, train=replace(recipe.train, batch_tokens=tokens))


def trained_length(setup: Setup, resumed: Path | None) -> int:
    """The longest sequence, in tokens, of this training and of those before it."""
    now = max(setup.task.max_positions, int(setup.samples.lengths.max()))
    if setup.pretrained is not None:
        before = setup.pretrained.loaded
        return max(now, before.config.get(TRAINED_LENGTH) or before.network.max_positions or 0)
    known = read_json(resumed / "config.json") if resumed is not None and (resumed / "config.json").exists() else {}
    return max(now, int(known.get(TRAINED_LENGTH) or 0))


def write_report(folder: Path, report: DataReport, setup: Setup, watcher: Watcher) -> None:
    """Write the report on the data: data.txt, data.html and left-out.tsv; pass its warnings on."""
    listed = folder / "left-out.tsv"
    valid, left = setup.valid, setup.samples.left_out
    warnings = report.warnings(valid="valid" if valid is None else valid.names[0], listed=str(listed))
    rows = zip(left.index[:_LISTED].tolist(), left.reason[:_LISTED].tolist())
    lines = (f"{setup.corpus.where([index])}\t{left.reasons[reason]}\n" for index, reason in rows)
    write_file(listed, "".join(lines).encode())
    write_file(folder / "data.txt", "\n".join([report.text(), *warnings, ""]).encode())
    write_file(folder / "data.html", data_page(report, warnings).encode())
    for text in warnings:
        watcher.note(text)


def generation_config(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Any]:
    """The default decoding options, under Hugging Face's names."""
    return {
        "num_beams": recipe.decode.beam,
        "length_penalty": recipe.decode.length_penalty,
        "bos_token_id": tokenizer.bos,
        "decoder_start_token_id": tokenizer.bos,
        "eos_token_id": tokenizer.eos,
        "pad_token_id": tokenizer.pad,
    }


def model_card(recipe: Recipe, network: Network, verb: str, results: Mapping[str, Any]) -> str:
    """The model card (README.md): size, training, validation metrics, use, recipe."""
    best = results["best"] or {"step": results["steps"], "metrics": {}}
    metrics = "\n".join(f"| {name.replace('_', ' ')} | {value:.4g} |" for name, value in best["metrics"].items())
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return f"""---
library_name: regard
---
# {recipe.name}

{parameters:,} parameters, trained for {results["steps"]:,} steps in {results["seconds"] / 60:.1f} minutes by regard
{__version__}, seed {recipe.train.seed}. The weights are those of step {best["step"]:,}.

| validation | |
|---|---|
{metrics}

```sh
regard {verb} .        # in this folder
```

```toml
{to_toml(recipe.tables).strip()}
```
"""
