"""What a run begins with: the model that answers its problem, from nothing or from one that has learnt before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from regard.config.recipe import Init
from regard.data.read.corpus import Corpus
from regard.data.tasks import Task
from regard.data.tasks.bidirectional_lm import BidirectionalLM
from regard.data.tasks.classification import Classification, Regression
from regard.data.tasks.contrastive import Contrastive
from regard.data.tasks.language_model import LanguageModel
from regard.data.tasks.masked_lm import MaskedLM
from regard.data.tasks.span_corruption import SpanCorruption
from regard.data.tasks.tagging import Tagging
from regard.data.tasks.translation import Translation
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation
from regard.layers.positions import Axial, Learned
from regard.models.model import Model, Network, Readout
from regard.models.readouts import NEXT_SENTENCE, First, Label, Last, Mix, Number, Pool, Tags, Vector
from regard.schema import kind_of
from regard.store.folder import read_folder
from regard.store.loading import Loaded

Tokenizers = tuple[Tokenizer, Tokenizer | None]

_PLACES = ("embed.position.weight", "embed.position.rows")  # what has a row for each position, or for some


@dataclass(frozen=True)
class Beginning:
    """A model that has learnt before, and what is to become of it."""

    loaded: Loaded
    init: Init

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """The model's own, grown by new words."""
        first, second = self.loaded.tokenizers
        return first.extended(self.init.words) if self.init.words else first, second

    @cached_property
    def model(self) -> Model:
        """What the model is, with as many positions as it is to have."""
        model, max_positions = self.loaded.network.description, self.init.max_positions
        return model if max_positions is None else _grown(model, max_positions)

    def network(self, model: Model) -> Network:
        """A network that begins with the weights this one has learnt, wherever it has the same parts."""
        old, (tokenizer, second) = self.loaded.network, self.tokenizers
        network = model.build(max(old.vocabulary, (second or tokenizer).vocabulary), old.source_vocabulary)
        known = {
            name: tensor
            for name, tensor in old.named_parameters()
            if _kept(name, self.loaded.network.description, model)
        }
        tables = {id(table) for table in _word_tables(network)}
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if name in known and (known[name].shape == parameter.shape or id(parameter) in tables):
                    parameter[: len(known[name])] = known[name]
                elif name in known and name.endswith(_PLACES) and known[name].shape[1:] == parameter.shape[1:]:
                    # A new place begins as the mean of the old ones.
                    parameter[: len(known[name])] = known[name]
                    parameter[len(known[name]) :] = known[name].mean(dim=0)
            for word in self.init.words:
                # A new word begins as the mean of the tokens it was cut into before.
                number, parts = tokenizer.encode(word)[0], self.loaded.tokenizers[0].encode(word)
                for table in _word_tables(network):
                    table[number] = table[parts].mean(dim=0)
        return network


def _grown(model: Model, max_positions: int) -> Model:
    """The model with positions for so many tokens."""
    match model.embed:
        case Embed(position=Learned() | Axial() as position) as embed:
            if max_positions >= position.max_positions:
                return replace(model, embed=replace(embed, position=position.grown(max_positions)))
            raise InputError(
                f"max_positions = {max_positions:,} is less than the {position.max_positions:,} tokens that this model reads already "
                "(model.max_positions). Use more, or leave it out."
            )
    raise InputError("this model has no learnt positions that could grow (model.max_positions). Leave it out.")


def _kept(name: str, old: Model, new: Model) -> bool:
    """Whether a parameter means the same in both: of a readout that says something else, only what stands before it."""
    part, _, rest = name.partition(".")
    if part not in ("readout", "aside"):
        return True
    before, after = getattr(old, part), getattr(new, part)
    if _answer(before) == _answer(after):
        return True
    return rest.startswith("inner.") and getattr(before, "inner", None) == getattr(after, "inner", 0)


def _answer(readout: Readout | None) -> object:
    """What a readout says, whatever it is made of."""
    return readout and (type(readout), getattr(readout, "names", ()))


def read_beginning(init: Init) -> Beginning:
    """The model that a run begins with."""
    found = read_folder(Path(init.init), torch.device("cpu"))
    if init.words and found.tokenizers[1] is not None:
        raise InputError("words can be added to a model with one vocabulary only (model.words). Leave them out.")
    return Beginning(found, init)


def default_task(model: Model, corpus: Corpus, sentinels: bool, name: str) -> Task:
    """What a model of this shape learns of a corpus when nothing is said."""
    if corpus.targets is not None:
        return Translation() if model.decoder is not None else Classification()
    if model.encoder is None:
        return LanguageModel()
    if model.decoder is not None and sentinels:
        return SpanCorruption()
    if model.decoder is not None:
        raise InputError(
            f'{corpus.names[0]} has one side, which "{name}" does not learn (model.name). Try model.name = "gpt2", or '
            "learn spans: text.tokenizer.sentinels = 100."
        )
    return BidirectionalLM() if model.readout.sides == BidirectionalLM.sides else MaskedLM()


def answering(model: Model, task: Task, pool: Pool | None = None) -> Model:
    """The model with the readout that a problem asks for; of two stacks, answers for whole texts need the first."""
    own = pool or (Last() if model.encoder is None else First())
    inner: Activation | None = None if model.encoder is None else "tanh"
    stack = model.encoder or model.decoder
    dropout = stack.dropout if stack else 0.0
    readout: Readout
    match task:
        case Classification():
            readout = Label(task.names, own, inner, dropout)
        case Regression():
            readout = Number(own, inner, dropout)
        case Tagging():
            readout = Tags(task.names, dropout)
        case Contrastive():
            readout = Vector() if pool is None else Vector(pool)
        case MaskedLM(next_sentence=True):
            # One answer counts as much as all the words of its text.
            auxiliary = model.auxiliary if isinstance(model.auxiliary, Label) else Label(NEXT_SENTENCE, dropout=dropout)
            return replace(model, auxiliary=replace(auxiliary, weight=task.share * task.length))
        case _:
            return replace(model, auxiliary=None)
    mix = Mix() if model.readout.sides > 1 else model.mix
    decoder = model.decoder if model.encoder is None else None
    return replace(model, decoder=decoder, readout=readout, auxiliary=None, mix=mix)


def require_shape(model: Model, task: Task, name: str, *, where: str = "model.name") -> None:
    """Refuse a problem that a model of this shape cannot learn."""
    if task.stacks is None:
        return
    if model.readout.says != "words":
        raise InputError(
            f'"{name}" says {model.readout.says}, not words ({where}). Begin with a model that says words, or choose '
            "another text.task."
        )
    if (
        model.encoder is not None,
        model.decoder is not None,
    ) == task.stacks and model.readout.sides == task.sides:
        return
    kind = kind_of(type(task)).replace("_", " ")
    other = f'Try model.name = "{task.like}"' if where == "model.name" else f"Begin with a {task.like}"
    raise InputError(f'"{name}" does not learn this text as {kind} ({where}). {other}, or choose another text.task.')


def _word_tables(network: Network) -> list[Tensor]:
    """The tensors that have a row for each word."""
    named = network.named_parameters()
    return [tensor for name, tensor in named if name.endswith(("embed.table.weight", "words.weight", "words.bias"))]
