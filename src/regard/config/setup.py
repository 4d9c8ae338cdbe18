"""Setup of a run: a recipe becomes text, tokenizers, samples and a network, and the folder's description is written.

Fine-tuning starts from a pretrained model; the task decides the readout, so it replaces only the readout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from regard import messages
from regard.config.fit import require_fit
from regard.config.recipe import FineTuning, Recipe, read_model, read_recipe
from regard.config.resume import check_resume, resume_facts, with_defaults
from regard.data.character_samples import with_characters
from regard.data.read.cache import Cache, default_cache
from regard.data.read.corpus import Corpus
from regard.data.read.report import DataReport, report_on
from regard.data.read.texts import text_parts
from regard.data.samples import Samples
from regard.data.tasks import Task
from regard.data.tasks.base import TaskBase, Tokenizers
from regard.data.tasks.bidirectional_lm import BidirectionalLM
from regard.data.tasks.classification import Classification
from regard.data.tasks.language_model import LanguageModel
from regard.data.tasks.masked_lm import MaskedLM
from regard.data.tasks.span_corruption import SpanCorruption
from regard.data.tasks.translation import Translation
from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import Saved, TokenizerKind, train_tokenizers
from regard.decode.inputs import capabilities, check_length
from regard.errors import InputError, RegardError
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation
from regard.layers.lora import adapted_maps, add_adapters
from regard.models.model import AnyReadout, Model, Network
from regard.models.readouts import NEXT_SENTENCE, First, Label, Last, LayerMix, Number, Pool, Tags, Vector
from regard.schema import kind_of, to_dict, to_toml
from regard.show.html import data_page
from regard.store.adapters import BASE_DIGEST, adapter_writer, digest_of, write_adapter_config
from regard.store.checkpoint import Checkpoint
from regard.store.files import read_json, write_file
from regard.store.folder import (
    read_description,
    read_folder,
    read_tokenizers,
    unique_parameters,
    write_description,
    write_weights,
)
from regard.store.loading import TRAINED_LENGTH, Loaded
from regard.store.manifest import write_model_files
from regard.training.distributed import World
from regard.training.log import Watcher
from regard.training.loop import Job
from regard.training.memory import largest_batch
from regard.training.settings import Training
from regard.training.validate import require_metric
from regard.version import __version__

_LISTED = 100_000  # lines of left-out.tsv


@dataclass(frozen=True)
class Pretrained:
    """A pretrained model, and the [model] table that fine-tunes it."""

    loaded: Loaded
    table: FineTuning

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """The model's own tokenizers, with the added words."""
        first, second = self.loaded.tokenizers
        return first.with_added_words(self.table.words) if self.table.words else first, second

    @cached_property
    def model(self) -> Model:
        """The pretrained model's description, with the table's number of positions."""
        model, max_positions = self.loaded.network.description, self.table.max_positions
        return model if max_positions is None else _with_positions(model, max_positions)

    def network(self, model: Model) -> Network:
        """Build a network for fine-tuning: pretrained weights where a part stays the same, fresh weights elsewhere."""
        old, (tokenizer, second) = self.loaded.network, self.tokenizers
        network = model.build(max(old.vocabulary, (second or tokenizer).vocabulary), old.source_vocabulary)
        known = {name: weight for name, weight in old.named_parameters() if _is_kept(name, old.description, model)}
        tables = {id(table) for table in _token_tables(network)}
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if name in known and (known[name].shape == parameter.shape or id(parameter) in tables):
                    parameter[: len(known[name])] = known[name]
                elif name in known and "embed.position." in name and known[name].shape[1:] == parameter.shape[1:]:
                    # A new position starts as the mean of the old ones.
                    parameter[: len(known[name])] = known[name]
                    parameter[len(known[name]) :] = known[name].mean(dim=0)
            for word in self.table.words:
                # A new word starts as the mean of the tokens that it consisted of.
                number, tokens = tokenizer.encode(word)[0], self.loaded.tokenizers[0].encode(word)
                for table in _token_tables(network):
                    table[number] = table[tokens].mean(dim=0)
        return network

    def fresh(self, network: Network) -> set[str]:
        """The names of the parameters that are not the pretrained model's: those of a new readout."""
        old = self.loaded.network
        known = {
            name: one.shape
            for name, one in old.named_parameters()
            if _is_kept(name, old.description, network.description)
        }
        return {name for name, parameter in network.named_parameters() if known.get(name) != parameter.shape}


def _with_positions(model: Model, max_positions: int) -> Model:
    """The model with learned positions for this many tokens."""
    embed = model.embed
    if isinstance(embed, Embed) and embed.position is not None and embed.max_positions is not None:
        if max_positions >= embed.max_positions:
            return replace(model, embed=replace(embed, position=embed.position.grown(max_positions)))
        raise InputError(
            f"max_positions = {max_positions:,} is less than the {embed.max_positions:,} positions it has "
            "(model.max_positions). Use more, or leave it out."
        )
    raise InputError("this model has no table of positions that could grow (model.max_positions). Leave it out.")


def _is_kept(name: str, old: Model, new: Model) -> bool:
    """Whether a parameter has the same meaning in both models; of a changed readout only the inner layer may have."""
    part, _, rest = name.partition(".")
    if part not in ("readout", "auxiliary"):
        return True
    before, after = getattr(old, part), getattr(new, part)
    if _output_of(before) == _output_of(after):
        return True
    return rest.startswith("inner.") and getattr(before, "inner", None) == getattr(after, "inner", 0)


def _output_of(readout: AnyReadout | None) -> object:
    """What a readout predicts: its class and its labels."""
    return readout and (type(readout), readout.labels if isinstance(readout, Label | Tags) else ())


def _token_tables(network: Network) -> list[Tensor]:
    """The parameters with a row per token of the vocabulary."""
    names = ("embed.table.weight", "lm_head.weight", "lm_head.bias")
    return [tensor for name, tensor in network.named_parameters() if name.endswith(names)]


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
        return self.samples_of(self.corpus, self.recipe.text.bpe_dropout)

    def samples_of(self, corpus: Corpus, bpe_dropout: float = 0.0) -> Samples:
        """A corpus as the model reads it: token ids, or the characters of each token."""
        samples = self.task.samples(corpus, self.tokenizers, self.cache, bpe_dropout=bpe_dropout)
        return with_characters(samples, self.tokenizers[0], self.model.embed.characters, self.cache)

    def resized(self, key: str, value: int) -> Model:
        """The model with another argument of its zoo function, such as its width."""
        table = {**self.recipe.tables.get("model", {}), key: value}
        model = read_model({"model": table}, where="model", parts=self.recipe.parts)
        if isinstance(model, FineTuning):
            raise InputError("a pretrained model keeps its size (model.init).")
        return with_readout_for(model, self.task)

    def network(self) -> Network:
        """Build the network with its initial weights, which depend on the seed alone, or with pretrained ones."""
        torch.manual_seed(self.recipe.train.seed)
        given = self.pretrained
        network = self.adapted(self.model.build(*self.vocabularies) if given is None else given.network(self.model))
        check_length(network, int(self.samples.lengths.max()), "a row of the text (text.task)")
        check_length(network, self.task.max_positions, "the range of positions (text.task.random_positions)")
        return network

    def adapted(self, network: Network) -> Network:
        """The network, with adapters if the recipe trains them."""
        if (lora := self.recipe.train.lora) is not None:
            assert self.pretrained is not None
            add_adapters(network, lora, self.pretrained.fresh(network))
        return network


def read_setup(recipe: Recipe, tokenizers: Tokenizers | None = None, resumed: Path | None = None) -> Setup:
    """Read the text and train the tokenizers, unless they are given; `resumed` is the folder of a run to continue."""
    cache, table = default_cache(), recipe.model if isinstance(recipe.model, FineTuning) else None
    if recipe.train.lora is not None:
        require_pretrained(table)
        resumed = None  # a checkpoint holds the adapters alone, so the pretrained model is read again
    corpus = recipe.text.read("train", cache)
    assert corpus is not None
    if not any(part.strip() for _, part in text_parts(corpus.sources)):
        raise InputError(f"{', '.join(corpus.names)} holds only blank lines (text.train). Name a file that holds text.")
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
    task = recipe.text.task or default_task(model, corpus, sentinels, name, where=where)
    # A rare label may be held out altogether, and is still a label.
    whole = replace(recipe.text, valid=None, test=None).read("train", cache) if recipe.text.held_out else corpus
    task = task.with_labels_from(whole or corpus)
    require_shape(model, task, name, where=where)
    if table is None and model.auxiliary is not None and not getattr(task, "next_sentence", False):
        raise InputError(
            f'"{name}" has a readout for the next sentence, which this task does not train (model.next_sentence). '
            'Use text.task = { kind = "masked_lm", next_sentence = true }, or leave it out.'
        )
    tokenizers = tokenizers or train_tokenizers(recipe.text.tokenizer, task.tokenizer_text(corpus), cache)
    model = with_readout_for(model, task, None if table is None else table.pool)
    if vocabularies is None:
        first, second = tokenizers
        vocabularies = (first.vocabulary, None) if second is None else (second.vocabulary, first.vocabulary)
    return Setup(recipe, corpus, valid, task, tokenizers, cache, model, vocabularies, pretrained)


def require_pretrained(table: FineTuning | None) -> None:
    """Refuse adapters for a model that is not pretrained, or whose vocabulary or positions grow."""
    if table is None:
        raise InputError("lora trains adapters of a pretrained model (train.lora). Name one: model.init.")
    for key, grown in {"words": bool(table.words), "max_positions": table.max_positions is not None}.items():
        if grown:
            raise InputError(f"lora freezes the embeddings, so they cannot grow (model.{key}). Leave it out.")


def name_of_model(recipe: Recipe) -> tuple[str, str]:
    """The model's name in error messages, and the recipe key that chose it."""
    table = recipe.tables.get("model", {})
    if isinstance(recipe.model, FineTuning):
        return recipe.model.init, "model.init"
    return ("this model", "model") if "kind" in table else (table.get("name", "transformer"), "model.name")


def read_pretrained(table: FineTuning, parts: Sequence[type] = ()) -> Pretrained:
    """Load the pretrained model that a [model] table names."""
    found = read_folder(Path(table.init), torch.device("cpu"), parts=parts)
    if table.words and found.tokenizers[1] is not None:
        raise InputError("words can be added to a model with one vocabulary only (model.words). Leave them out.")
    return Pretrained(found, table)


def default_task(model: Model, corpus: Corpus, sentinels: bool, name: str, *, where: str = "model.name") -> Task:
    """The task of a recipe that names none, by the shape of its model and the sides of its corpus."""
    if corpus.targets is not None:
        return Translation() if model.shape != "encoder" else Classification()
    if model.shape == "encoder-decoder" and not sentinels:
        pair = "Give it a pair, as in text.train = 'data/train.{de,en}'"
        other = f'{pair}, or try model.name = "gpt2"' if where == "model.name" else "Give it two parallel texts"
        raise InputError(
            f'{corpus.names[0]} has one side, but "{name}" is trained on pairs ({where}). {other}, '
            "or span corruption: text.tokenizer.sentinels = 100."
        )
    auxiliary = isinstance(model.auxiliary, Label)
    task: LanguageModel | SpanCorruption | BidirectionalLM | MaskedLM = MaskedLM(next_sentence=auxiliary)
    if model.shape != "encoder":
        task = LanguageModel() if model.shape == "decoder" else SpanCorruption()
    elif model.readout.directions == BidirectionalLM.directions:
        task = BidirectionalLM()
    return replace(task, length=min(task.length, model.embed.max_positions or task.length))


def with_readout_for(model: Model, task: TaskBase, pool: Pool | None = None) -> Model:
    """The model with the readout of a task; to classify whole texts, an encoder-decoder keeps only its encoder."""
    pool = pool or getattr(model.readout, "pool", None)
    own = pool or (Last() if model.shape == "decoder" else First())
    inner: Activation | None = None if model.shape == "decoder" else "tanh"
    stack = model.encoder or model.decoder
    dropout = stack.dropout if stack else 0.0
    readout: AnyReadout
    match task.outputs:
        case "labels":
            readout = Label(task.labels, own, inner, dropout)
        case "numbers":
            readout = Number(own, inner, dropout)
        case "tags":
            readout = Tags(task.labels, dropout)
        case "vectors":
            readout = Vector() if pool is None else Vector(pool)
        case "tokens" if isinstance(task, MaskedLM) and task.next_sentence:
            # The label of a text weighs as much in the loss as all its masked tokens.
            auxiliary = model.auxiliary if isinstance(model.auxiliary, Label) else Label(NEXT_SENTENCE, dropout=dropout)
            return replace(model, auxiliary=replace(auxiliary, weight=task.mlm_probability * task.length))
        case _:
            return replace(model, auxiliary=None)
    mix = LayerMix() if model.readout.directions > 1 else model.mix
    decoder = model.decoder if model.shape == "decoder" else None
    return replace(model, decoder=decoder, readout=readout, auxiliary=None, mix=mix)


def require_shape(model: Model, task: TaskBase, name: str, *, where: str = "model.name") -> None:
    """Refuse a task that a model of this shape cannot be trained on."""
    if task.model_shape is None:
        return
    if task.outputs == "tokens" and model.readout.outputs != "tokens":
        raise InputError(
            f'"{name}" outputs {model.readout.outputs}, not tokens ({where}). Start from another model, or choose '
            "another text.task."
        )
    if model.shape == task.model_shape and model.readout.directions == task.directions:
        return
    kind = kind_of(type(task)).replace("_", " ")
    like = task.suggested_model
    other = f'Try model.name = "{like}"' if where == "model.name" else f"Start from a {like}"
    raise InputError(f'"{name}" cannot be trained as {kind} ({where}). {other}, or choose another text.task.')


def prepare(
    recipe: Recipe, folder: Path, world: World, watcher: Watcher, checkpoint: Checkpoint | None = None, *,
    new_data: bool = False,
) -> Job:  # fmt: skip
    """Set up a run, check that it can resume from its checkpoint, and write the folder's description."""
    saved = None if checkpoint is None else checkpoint.state()["resume_facts"]
    setup = read_setup(recipe, kept_tokenizers(recipe, folder, saved), folder if checkpoint else None)
    require_fit(setup, world)
    recipe = with_batch_size(setup, folder, world, watcher, saved)
    corpus, valid, tokenizers, task = setup.corpus, setup.valid, setup.tokenizers, setup.task
    facts = resume_facts(recipe, corpus, valid, tokenizers, task, world)
    adapting, facts["base"] = setup.pretrained if recipe.train.lora else None, None
    if adapting is not None:
        facts["base"] = digest_of(adapting.loaded.network)
    changed: tuple[str, ...] = ()
    if saved is not None:
        texts = {"train": corpus, "valid": valid}
        changed = check_resume(saved, facts, folder, texts, watcher, recipe.parts, new_data=new_data)
    aligned = task.aligned and recipe.text.alignment == "checked"
    report = report_on(corpus, setup.samples, held_out_texts(setup, watcher), setup.cache, aligned=aligned)
    network = setup.network()
    if valid is not None:
        require_metric(recipe.train.best, network.description, pairs=valid.targets is not None)
    else:
        require_validation(recipe.train)
    verb, write, base_digest = capabilities(network.description, tokenizers[0])[0], write_weights, dict[str, Any]()
    if adapting is not None and recipe.train.lora is not None:
        named = adapter_base(adapting.table.init)
        adapter_config, write = adapter_writer(network, recipe.train.lora, adapting.loaded, named)
        base_digest = {BASE_DIGEST: facts["base"]}
    if world.first:
        write_model_files(folder, {"recipe.toml": to_toml(recipe.tables).encode()})
        write_report(folder, report, setup, watcher)
        write_description(
            folder, network, tokenizers, task=verb,
            generation_config=generation_config(recipe, tokenizers[1] or tokenizers[0], network.description),
            extra_config={TRAINED_LENGTH: trained_length(setup, folder if checkpoint else None), **base_digest},
        )  # fmt: skip
        if base_digest:
            write_adapter_config(folder, adapter_config)
    return Job(
        network, tokenizers, setup.samples, None if valid is None else (valid, setup.samples_of(valid)), recipe.train,
        facts, card=lambda results: model_card(recipe, network, verb, results), start=checkpoint,
        write=write, changed=changed,
    )  # fmt: skip


def adapter_base(init: str) -> str:
    """The name of a pretrained model in adapter_config.json: a folder's path, or a name on the hub."""
    return init.removeprefix("hf:") if init.startswith("hf:") else str(Path(init).resolve())


def held_out_texts(setup: Setup, watcher: Watcher) -> dict[str, Corpus]:
    """The validation and test text, to look for them in the training text; built-in corpora have no overlap to test."""
    found = {} if setup.valid is None else {"valid": setup.valid}
    text = setup.recipe.text
    if text.corpus is None and text.test is not None and text.test != "-":
        try:
            test = text.read("test", setup.cache)
            found |= {} if test is None else {"test": test}
        except RegardError as error:
            watcher.note(f"warning: the test text cannot be read: {error}")
    return found


def require_validation(settings: Training) -> None:
    """Refuse settings that only a validation can use."""
    for key, used in {"patience": settings.patience is not None, "best": settings.best != "loss"}.items():
        if used:
            raise InputError(f"nothing is validated (train.{key}). Name a text to validate on (text.valid), or leave "
                             "it out.")  # fmt: skip


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
    left, warnings = setup.samples.left_out, report.warnings(listed=str(listed))
    rows = zip(left.index[:_LISTED].tolist(), left.reason[:_LISTED].tolist())
    lines = (f"{setup.corpus.where([index])}\t{left.reasons[reason]}\n" for index, reason in rows)
    write_file(listed, "".join(lines).encode())
    write_file(folder / "data.txt", "\n".join([report.text(), *warnings, ""]).encode())
    write_file(folder / "data.html", data_page(report, warnings).encode())
    for text in warnings:
        watcher.note(text)


def generation_config(recipe: Recipe, tokenizer: Tokenizer, model: Model) -> dict[str, Any]:
    """The default decoding options, under Hugging Face's names; a model of one text samples, without beams."""
    searches = {"num_beams": recipe.decode.beam, "length_penalty": recipe.decode.length_penalty}
    return {
        **(searches if model.shape == "encoder-decoder" else {}),
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
    adapter = ""
    if (lora := recipe.train.lora) is not None and isinstance(recipe.model, FineTuning):
        trained = sum(one.numel() for one in unique_parameters(network).values())
        adapter = (
            f"\nIt is an adapter (LoRA of rank {lora.rank} on {len(adapted_maps(network)):,} linear maps) of "
            f"`{recipe.model.init}`, and trains {trained:,} of these parameters.\n"
        )
    return f"""---
library_name: regard
---
# {recipe.name}

{parameters:,} parameters, trained for {results["steps"]:,} steps in {results["seconds"] / 60:.1f} minutes by regard
{__version__}, seed {recipe.train.seed}. The weights are those of step {best["step"]:,}.
{adapter}
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
