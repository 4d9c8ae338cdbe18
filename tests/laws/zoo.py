"""Small models of every kind, to which the laws apply. A model added here gets all of them."""

from __future__ import annotations

import torch

from regard.models import zoo
from regard.models.model import Model, Network
from regard.models.readout import Vocabulary
from regard.models.stack import Stack
from regard.parts.attention import SelfAttention
from regard.parts.embed import Embed
from regard.parts.feedforward import FeedForward
from regard.parts.join import PreNorm, Replace, RMSNorm
from regard.parts.pattern import Window
from regard.parts.position import Concatenated, Learned, RelativeBias, Rotary, Sinusoid
from regard.parts.recurrent import Attentive, Recurrent
from regard.parts.reversible import Reversible
from regard.parts.score import Additive, Dot, General, ReducedRank

VOCABULARY = 40
WIDTH = 24
BEGIN, END = 1, 2
SMALL = {"width": WIDTH, "depth": 2, "heads": 3, "inner": 40, "dropout": 0.1}


def recurrent(score: Dot | General | ReducedRank | Additive, both_ways: bool) -> Model:
    """An LSTM encoder, and an LSTM decoder with attention and input feeding."""
    return Model(
        WIDTH,
        embed=Embed(dropout=0.1),
        encoder=Stack(((Recurrent(both_ways=both_ways),),), Replace(), 0.1),
        decoder=Stack(((Attentive(score),),), Replace(), 0.1),
        readout=Vocabulary(tied=False, biased=True),
    )


def windowed() -> Model:
    """A language model that sees only the last few tokens."""
    layer = (SelfAttention(2, see=Window(5), position=Rotary()), FeedForward(32, "silu", gated=True))
    return Model(WIDTH, Embed(), decoder=Stack(2 * (layer,), PreNorm(RMSNorm())))


TRANSLATORS: dict[str, Model] = {
    "transformer": zoo.transformer(**SMALL),
    "pre-norm": zoo.transformer(**SMALL, join=PreNorm(), position=Learned(128), tied=False, decoder_depth=1),
    "rotary": zoo.transformer(**SMALL, position=Rotary(), shared=False),
    "concatenated": zoo.transformer(**SMALL, position=Concatenated(8, Sinusoid())),
    "relative bias": zoo.transformer(**SMALL, position=RelativeBias(8, 20), score=Dot(scaled=False)),
    "additive score": zoo.transformer(**SMALL, score=Additive()),
    "general score": zoo.transformer(**SMALL, score=General()),
    "reduced rank score": zoo.transformer(**SMALL, score=ReducedRank(3)),
    "reversible": zoo.transformer(**SMALL, join=Reversible(slice_length=5)),
    "reversible, relative bias": zoo.transformer(**SMALL, join=Reversible(), position=RelativeBias(8, 20)),
    "recurrent, additive": recurrent(Additive(), both_ways=True),
    "recurrent, general": recurrent(General(), both_ways=False),
}
LANGUAGE_MODELS: dict[str, Model] = {
    "gpt2": zoo.gpt2(**SMALL),
    "gpt2, relative bias": zoo.gpt2(**SMALL, position=RelativeBias(8, 20)),
    "gpt2, rotary": zoo.gpt2(**SMALL, position=Rotary()),
    "gpt2, reversible": zoo.gpt2(**SMALL, join=Reversible()),
    "gpt2, additive": zoo.gpt2(**SMALL, score=Additive(7), position=None),
    "windowed": windowed(),
}
MODELS = TRANSLATORS | LANGUAGE_MODELS


def build(name: str, seed: int = 0) -> Network:
    """The network in evaluation mode, with parameters large enough for differences to show."""
    torch.manual_seed(seed)
    network = MODELS[name].build(VOCABULARY)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return network.eval()
