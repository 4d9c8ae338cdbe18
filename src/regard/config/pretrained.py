"""Fine-tuning: a run that starts from a pretrained model, and the readout that its task needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from regard.config.recipe import FineTuning
from regard.data.read.corpus import Corpus
from regard.data.tasks import Task
from regard.data.tasks.base import TaskBase
from regard.data.tasks.bidirectional_lm import BidirectionalLM
from regard.data.tasks.classification import Classification
from regard.data.tasks.language_model import LanguageModel
from regard.data.tasks.masked_lm import MaskedLM
from regard.data.tasks.span_corruption import SpanCorruption
from regard.data.tasks.translation import Translation
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation
from regard.models.model import AnyReadout, Model, Network
from regard.models.readouts import NEXT_SENTENCE, First, Label, Last, LayerMix, Number, Pool, Tags, Vector
from regard.schema import kind_of
from regard.store.folder import read_folder
from regard.store.loading import Loaded

Tokenizers = tuple[Tokenizer, Tokenizer | None]


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
        known = {
            name: tensor
            for name, tensor in old.named_parameters()
            if _is_kept(name, self.loaded.network.description, model)
        }
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
        other = 'Try model.name = "gpt2"' if where == "model.name" else "Give it two parallel texts"
        raise InputError(
            f'{corpus.names[0]} has one side, but "{name}" is trained on pairs ({where}). {other}, '
            "or span corruption: text.tokenizer.sentinels = 100."
        )
    task: LanguageModel | SpanCorruption | BidirectionalLM | MaskedLM = MaskedLM()
    if model.shape != "encoder":
        task = LanguageModel() if model.shape == "decoder" else SpanCorruption()
    elif model.readout.directions == BidirectionalLM.directions:
        task = BidirectionalLM()
    return replace(task, length=min(task.length, model.embed.max_positions or task.length))


def with_readout_for(model: Model, task: TaskBase, pool: Pool | None = None) -> Model:
    """The model with the readout of a task; to classify whole texts, an encoder-decoder keeps only its encoder."""
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


def _token_tables(network: Network) -> list[Tensor]:
    """The parameters with a row per token of the vocabulary."""
    names = ("embed.table.weight", "lm_head.weight", "lm_head.bias")
    return [tensor for name, tensor in network.named_parameters() if name.endswith(names)]
