"""What a model attends to, as numbers with names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.alignment import links, moses
from regard.decode.fill import encode_masked, encode_spans
from regard.decode.inputs import as_read, row_of
from regard.decode.options import Options
from regard.errors import InputError
from regard.models.model import Network
from regard.show.ablation import heads_of
from regard.show.collect import Layer, Reading, Shape
from regard.show.payload import Shown
from regard.show.summary import Side, by_words, measured, rollout, side_of

Kind = Literal["encoder", "decoder", "cross"]
"""Which layers: the encoder's among themselves, the decoder's among themselves, or those over the source."""

Tokenizers = tuple[Tokenizer, Tokenizer]


@dataclass(frozen=True, eq=False)
class Text:
    """What was looked at: a network, its tokenizers, what it was given to read, and the tokens of both sides."""

    reading: Reading
    tokenizers: Tokenizers
    source: list[int]
    said: list[int]
    beams: list[dict[str, Any]] | None = None  # the tree of the search that said it
    options: Options = field(default_factory=Options)  # how this model searches

    @property
    def network(self) -> Network:
        """Who reads."""
        return self.reading.network

    @property
    def read(self) -> list[int]:
        """The tokens that the decoder reads, or the encoder where there is none."""
        if self.network.encoder is None or self.network.decoder is None:
            return self.said or self.source
        return [self.tokenizers[1].begin, *self.said[:-1]]


@dataclass(frozen=True, eq=False)
class Seen(Shown):
    """Tokens and the weights of every layer and head: each tensor is heads, queries, keys."""

    source_tokens: list[str]
    target_tokens: list[str]
    weights: Mapping[str, Tensor] = field(repr=False)
    aligners: tuple[tuple[int, int], ...] = ()  # the layers and heads that align best, where they are known
    words: tuple[Side, ...] = field(default=(), repr=False)  # of the source, if there is one, and of the target
    text: Text | None = field(default=None, repr=False)  # None: of weights that came from elsewhere

    @cached_property
    def sides(self) -> dict[str, Side]:
        """What rows and columns stand for: the source, what a decoder reads, and what it says of a source."""
        given = [tokens for tokens in (self.source_tokens, self.target_tokens) if tokens]
        sides = list(self.words or map(Side.bare, given))
        if not self.source_tokens or not self.target_tokens:
            return {"source" if self.source_tokens else "read": side for side in sides}
        begin = "" if self.text is None else self.text.tokenizers[1].token_texts(self.text.read[:1])[0]
        return {"source": sides[0], "read": sides[1].behind(begin), "said": sides[1]}

    @property
    def source_words(self) -> list[str]:
        """The words of the source."""
        return self.sides["source"].word_texts if self.source_tokens else []

    @property
    def target_words(self) -> list[str]:
        """The words that are said, or read where there is no source."""
        return self.sides["said" if self.source_tokens else "read"].word_texts if self.target_tokens else []

    def axes(self, name: str) -> tuple[str, str]:
        """Which side a layer's queries are, and which its keys."""
        if name.startswith("encoder"):
            return "source", "source"
        return ("said", "source") if name.endswith("cross") else ("read", "read")

    @property
    def encoder_attentions(self) -> tuple[Tensor, ...]:
        """Per layer (1, heads, source, source)."""
        return tuple(weights[None] for weights in self._of("encoder"))

    @property
    def decoder_attentions(self) -> tuple[Tensor, ...]:
        """Per layer (1, heads, target, target)."""
        return tuple(weights[None] for weights in self._of("decoder"))

    @property
    def cross_attentions(self) -> tuple[Tensor, ...]:
        """Per layer (1, heads, target, source)."""
        return tuple(weights[None] for weights in self._of("cross"))

    @property
    def telling(self) -> Mapping[str, Tensor]:
        """The weights to look at first: of the heads that align best, or all of them where none is known to."""
        if not self.aligners:
            return self.weights
        chosen: dict[str, Tensor] = {}
        for layer in sorted({layer for layer, _ in self.aligners}):
            heads = [head for of, head in self.aligners if of == layer]
            names = [name for name in self.weights if name.startswith(f"decoder.{layer}.") and name.endswith("cross")]
            chosen |= {name: self.weights[name][heads] for name in names}
        return chosen

    def alignment(self) -> Tensor:
        """Target by source: how much each target token attends to each source token; the mean of what tells most."""
        telling = self.telling
        crossing = [telling[name] for name in telling if name.endswith("cross")]
        if not crossing:
            raise InputError("this model does not attend to a source, so there is no alignment.")
        return torch.cat(crossing).mean(dim=0)

    def moses(self) -> str:
        """Which words of the source and of what is said belong together, as Moses writes it: 0-0 1-2."""
        source, said = (self.sides.get(name, Side.bare(())).numbers for name in ("source", "said"))
        return moses(links(self.alignment(), said, source))

    def by_word(self, name: str) -> Tensor:
        """Heads, words, words: a word's keys add up, its queries are averaged."""
        rows, columns = (self.sides[side].words for side in self.axes(name))
        return by_words(self.weights[name], rows, columns)

    def mean(self, kind: Kind) -> Tensor:
        """Queries by keys: the mean over the layers of a kind and their heads."""
        return torch.cat(self._some(kind)).mean(dim=0)

    def maximum(self, kind: Kind) -> Tensor:
        """Queries by keys: the greatest weight in any layer of a kind and any head."""
        return torch.cat(self._some(kind)).amax(dim=0)

    def rollout(self, kind: Kind) -> Tensor:
        """Tokens by tokens: what reaches each token through all layers of the encoder or the decoder (Abnar 2020)."""
        if kind == "cross":
            raise InputError('what is rolled out is one side\'s layers. Ask for "encoder" or "decoder".')
        missing = self.missing(kind)
        if missing:
            raise InputError(f'a rollout needs all layers, {", ".join(missing)} too. Look with layers="*".')
        return rollout(self._some(kind))

    def missing(self, name: str) -> list[str]:
        """The layers that attend to their own side, the side of this name, and were not looked at."""
        known = heads_of(self.text.network) if self.text is not None else {}
        side = name.split(".")[0]
        return [
            other for other in known if other.startswith(side) and other.endswith("self") and other not in self.weights
        ]

    def norm_weighted(self, name: str) -> Tensor:
        """Heads, queries, keys: how long each value is that a query is given (Kobayashi 2020)."""
        norms = self.layers[name].norms if name in self.layers else None
        if norms is None:
            raise InputError(f"nothing is known of the values of {name!r}. Look with model.look.")
        return self.weights[name] * norms[:, None]

    @property
    def entropy(self) -> dict[str, Tensor]:
        """Of each head of each layer, in bits: how widely its queries look, in the mean."""
        return {name: layer.entropy for name, layer in self.layers.items()}

    @property
    def distance(self) -> dict[str, Tensor]:
        """Of each head of each layer, in tokens: how far from themselves its queries look, in the mean."""
        return {name: layer.distance for name, layer in self.layers.items()}

    @property
    def buckets(self) -> dict[str, Tensor]:
        """Of layers that hash: heads, tokens, rounds."""
        return {name: layer.buckets for name, layer in self.layers.items() if layer.buckets is not None}

    @cached_property
    def layers(self) -> dict[str, Layer]:
        """What is known of each layer; of a long text it is worked out when first asked for."""
        return self.text.reading.layers if self.text else {name: _given(heads) for name, heads in self.weights.items()}

    def rows(self, name: str, head: int, first: int, last: int) -> Tensor:
        """Queries from `first` to before `last`, by keys: what they attend to in one head, however long the text is."""
        if self.text is None or isinstance(self.weights, dict):
            return self.weights[name][head, first:last]
        return self.text.reading.rows(name, head, first, last)

    @property
    def looks(self) -> tuple[tuple[str, Seen], ...]:
        """Itself, alone on its page."""
        return (("", self),)

    def _of(self, kind: Kind) -> list[Tensor]:
        """The weights of the layers of a kind."""
        side, end = ("decoder", "cross") if kind == "cross" else (kind, "self")
        return [self.weights[name] for name in self.weights if name.startswith(side) and name.endswith(end)]

    def _some(self, kind: Kind) -> list[Tensor]:
        found = self._of(kind)
        if not found:
            raise InputError(f'no layer was looked at that is of kind "{kind}". Known: {", ".join(self.weights)}.')
        return found


def _given(weights: Tensor) -> Layer:
    """What is known of weights alone."""
    heads, queries, keys = weights.shape
    entropy, distance, peak = measured(weights.float()) / max(1, queries)
    return Layer(Shape(heads, queries, keys, 0), weights, None, None, entropy, distance, peak)


class Weights(Mapping[str, Tensor]):
    """The weights of a long text's layers, worked out when they are asked for and not kept."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.reading.shapes:
            raise KeyError(name)
        return self.reading.matrix(name)

    def __contains__(self, name: object) -> bool:
        return name in self.reading.shapes  # without working it out

    def __iter__(self) -> Iterator[str]:
        return iter(self.reading.shapes)

    def __len__(self) -> int:
        return len(self.reading.shapes)


def trace(
    network: Network,
    tokenizers: Tokenizers,
    text: str,
    target: str | Sequence[int] | None,
    aligners: tuple[tuple[int, int], ...] = (),
    *,
    layers: str | Sequence[str] = "*",
    beams: list[dict[str, Any]] | None = None,
    options: Options = Options(),  # noqa: B008 (frozen)
) -> Seen:
    """Read a text (and say a target, or its tokens) once, and look at what these layers attend to.

    What a model says by itself is looked at by reading it again, so that rows follow the beam that won. `options`: how
    it searches, for who asks what else it would say.
    """
    inputs, source, said = read_once(network, tokenizers, text, target)
    asked = [layers] if isinstance(layers, str) else list(layers)
    reading = Reading(network, inputs, lambda name: any(fnmatchcase(name, pattern) for pattern in asked))
    _require_layers(reading, asked)
    sides: list[tuple[Tokenizer, list[int], str | None]] = [(tokenizers[0], source, text)] if source else []
    if said:
        spoken = target if isinstance(target, str) else None
        if network.encoder is None and (target is None or spoken is not None):
            spoken = text + (spoken or "")
        sides.append((tokenizers[1], said, spoken))
    words = tuple(side_of(*side) for side in sides)
    tokens = [tokenizers[0].token_texts(source), tokenizers[1].token_texts(said)]
    looked = Text(reading, tokenizers, source, said, beams, options)
    whole = all(plan.whole for plan in reading.plans.values())
    weights: Mapping[str, Tensor] = Weights(reading)
    if whole:
        weights = {name: layer.weights for name, layer in reading.layers.items() if layer.weights is not None}
    return Seen(tokens[0], tokens[1], weights, aligners, words, looked)


def _require_layers(reading: Reading, asked: Sequence[str]) -> None:
    """Refuse names that no layer has, unless all are asked for."""
    for pattern in asked:
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in reading.shapes):
            known = Reading(reading.network, reading.inputs).shapes
            raise InputError(
                f'no layer of this model is named "{pattern}" (layers). Known: {", ".join(known) or "none"}.'
            )


def read_once(
    network: Network, tokenizers: Tokenizers, text: str, target: str | Sequence[int] | None
) -> tuple[dict[str, Any], list[int], list[int]]:
    """What a network is given to read a text (and say a target) once; the tokens of the source and of what is said.

    A target is a text, or what a model said: its tokens. Where there is no source, it goes on with the text.
    """
    tokenizer, target_tokenizer = tokenizers
    device = next(network.parameters()).device
    inputs: dict[str, Any] = {}
    if network.encoder is None or network.decoder is None:
        joined = text + target if isinstance(target, str) and network.encoder is None else text
        masked = network.decoder is None and network.description.readout.says == "words"
        ids = [*row_of(network, tokenizer, encode_masked(tokenizer, text) if masked else tokenizer.encode(joined))]
        if network.encoder is None and target is not None and not isinstance(target, str):
            ids += target
        source, said = ([], ids) if network.encoder is None else (ids, [])
    else:
        source = [*encode_spans(tokenizer, text), tokenizer.end]
        inputs["source_ids"] = torch.tensor([source], device=device)
        said = encode_spans(target_tokenizer, target) if isinstance(target, str) else [*(target or ())]
        ids = [target_tokenizer.begin, *said]
        said = [*said, target_tokenizer.end]
    inputs["ids"] = as_read(network, tokenizer, torch.tensor([ids], device=device), text=text)
    return inputs, source, said
