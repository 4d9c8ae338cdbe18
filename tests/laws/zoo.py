"""Small models of every kind, to which the laws apply. A model added here gets all of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from regard.layers.attention import SelfAttention
from regard.layers.attention_decoder import AttentionDecoder
from regard.layers.convolution import Convolution, ScaledResidual
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.gated_attention import GatedAttention
from regard.layers.join import LayerNorm, PreNorm, PreNormExceptFirst, Replace, ResidualPostNorm, RMSNorm
from regard.layers.lsh.masks import RankWindow
from regard.layers.patterns import Causal, CentredWindow, Full, LocalM, LocalP, Pattern, SourcePattern, Window
from regard.layers.positions import ALiBi, Axial, Concatenated, Learned, RelativeBias, Rotary, Sinusoid
from regard.layers.recurrent import GRU, LSTM, RNN, Averaged
from regard.layers.reversible import Reversible
from regard.layers.scores import Additive, Dot, General, ReducedRank, Uniform
from regard.models import zoo
from regard.models.model import Model, Network, Stack
from regard.models.readouts import (
    Dense,
    Label,
    Last,
    LayerMix,
    Max,
    Mean,
    MultiLabel,
    Number,
    Tags,
    Transform,
    Vector,
    Vocabulary,
    WeightedMean,
)

VOCABULARY = 40
WIDTH = 24
BEGIN, END = 1, 2
NAMES = ("one", "two", "three")
RECURRENT = {"width": WIDTH, "depth": 2, "dropout": 0.1}
SMALL = {"width": WIDTH, "depth": 2, "heads": 3, "inner": 40, "dropout": 0.1}


def windowed() -> Model:
    """A language model with a sliding window."""
    layer = (SelfAttention(2, pattern=Window(5), position=Rotary()), FeedForward(32, "silu", gated=True))
    return Model(WIDTH, Embed(), decoder=Stack(2 * (layer,), PreNorm(RMSNorm())))


def llama(pattern: Pattern) -> Model:
    """A decoder as Llama's: grouped keys, rotary positions, RMS norms, a gated feed-forward."""
    attention = SelfAttention(6, pattern, position=Rotary(), key_heads=2, biased=True, out_biased=False)
    layer = attention, FeedForward(32, "silu", gated=True, biased=False)
    return Model(WIDTH, Embed(), decoder=Stack(2 * (layer,), PreNorm(RMSNorm())))


def albert() -> Model:
    """An encoder as ALBERT's: a narrow embedding, and layers that share weights."""
    model = zoo.bert(**SMALL | {"depth": 3}, max_positions=64)
    readout = replace(model.readout, transform=replace(model.readout.transform, width=10))
    encoder = replace(model.encoder, groups=2)
    return replace(model, embed=replace(model.embed, inner=10), encoder=encoder, readout=readout)


def modernbert() -> Model:
    """An encoder as ModernBERT's: all keys or windows, norms without a bias, none before the first sublayer."""
    norm, feedforward = LayerNorm(biased=False), FeedForward(32, "gelu", gated=True, biased=False)
    patterns = Full(), CentredWindow(3), CentredWindow(3)
    layers = tuple((SelfAttention(3, one, position=Rotary(), biased=False), feedforward) for one in patterns)
    readout = Vocabulary(biased=True, transform=Transform("gelu", norm, biased=False))
    return Model(WIDTH, Embed(norm=norm), encoder=Stack(layers, PreNormExceptFirst(norm), 0.1), readout=readout)


def sharing(model: Model) -> Model:
    """The model with layers that share weights in all its stacks."""
    stacks = {name: replace(stack, groups=1) for name, stack in model.stacks.items()}
    return replace(model, **stacks)


def transformer_with(pattern: SourcePattern) -> Model:
    """A Transformer whose cross-attention has this pattern."""
    model = zoo.transformer(**SMALL)
    layers = tuple((self, replace(cross, pattern=pattern), feed) for self, cross, feed in model.decoder.layers)
    return replace(model, decoder=replace(model.decoder, layers=layers))


def gated_under_alibi() -> Model:
    """A layer that adds no position bias in a stack that has one."""
    layers = (SelfAttention(2, pattern=Causal()), FeedForward(32)), (GatedAttention(2, Window(4)), FeedForward(32))
    return Model(WIDTH, Embed(), decoder=Stack(layers, PreNorm(), position=ALiBi()))


def gated_convolutions() -> Model:
    """A language model of gated convolutions only (Dauphin 2016)."""
    return Model(WIDTH, Embed(), decoder=Stack(3 * ((Convolution(4, causal=True, dropout=0.1),),), ScaledResidual()))


def hybrid() -> Model:
    """A Transformer encoder, and a recurrent decoder whose initial state is the mean of the encoder's states."""
    decoder = Stack(((AttentionDecoder(initial_state=Averaged()),),), Replace(), 0.1)
    return replace(zoo.transformer(**SMALL), decoder=decoder)


TRANSLATORS: dict[str, Model] = {
    "transformer": zoo.transformer(**SMALL),
    "pre-norm": zoo.transformer(**SMALL, join=PreNorm(), position=Learned(128), tied=False, decoder_depth=1),
    "rotary": zoo.transformer(**SMALL, position=Rotary(), shared=False),
    "shared layers": sharing(zoo.transformer(**SMALL, position=Sinusoid(2e4, first=2), join=PreNorm())),
    "shared layers, reversible": sharing(zoo.transformer(**SMALL, join=Reversible())),
    "concatenated": zoo.transformer(**SMALL, position=Concatenated(8, Sinusoid())),
    "relative bias": zoo.transformer(**SMALL, position=RelativeBias(8, 20), score=Dot(scaled=False)),
    "alibi": zoo.transformer(**SMALL, position=ALiBi()),
    "additive score": zoo.transformer(**SMALL, score=Additive()),
    "general score": zoo.transformer(**SMALL, score=General()),
    "reduced rank score": zoo.transformer(**SMALL, score=ReducedRank(3)),
    "norm inside the residual": zoo.transformer(**SMALL, join=ResidualPostNorm()),
    "reversible": zoo.transformer(**SMALL, join=Reversible(slice_length=5)),
    "reversible, side by side": zoo.transformer(**SMALL, join=Reversible(output="concatenated")),
    "reformer, translating": zoo.reformer(**SMALL, shape="both", pattern=RankWindow(2), buckets=4),
    "reversible, relative bias": zoo.transformer(**SMALL, join=Reversible(), position=RelativeBias(8, 20)),
    "local-m in a transformer": transformer_with(LocalM(3)),
    "local-p in a transformer": transformer_with(LocalP(3)),
    "uniform score": zoo.transformer(**SMALL, score=Uniform()),
    "seq2seq": zoo.seq2seq(**RECURRENT, direction="forward"),
    "seq2seq, reversed source": zoo.seq2seq(**RECURRENT),
    "seq2seq, both ways": zoo.seq2seq(**RECURRENT, direction="bidirectional"),
    "seq2seq, gru": zoo.seq2seq(**RECURRENT, cell=GRU(), direction="forward"),
    "seq2seq, tanh": zoo.seq2seq(**RECURRENT, cell=RNN(), direction="bidirectional"),
    "bahdanau": zoo.bahdanau(WIDTH, dropout=0.1),
    "bahdanau, stacked lstm": zoo.bahdanau(**RECURRENT, cell=LSTM(), tied=True, shared=True),
    "bahdanau, tanh, local-p": zoo.bahdanau(**RECURRENT, cell=RNN(), pattern=LocalP(3), direction="forward"),
    "luong": zoo.luong(**RECURRENT),
    "luong, dot, local-m": zoo.luong(**RECURRENT, score=Dot(), pattern=LocalM(3), direction="bidirectional"),
    "luong, general, local-p": zoo.luong(**RECURRENT, pattern=LocalP(3), cell=GRU()),
    "luong, additive": zoo.luong(**RECURRENT, score=Additive(9), cell=RNN()),
    "luong, reduced rank": zoo.luong(**RECURRENT, score=ReducedRank(3), direction="bidirectional"),
    "luong, mean pooling": zoo.luong(**RECURRENT, score=Uniform()),
    "luong, no feeding": zoo.luong(**RECURRENT, input_feeding=False),
    "luong, no feeding, local-p": zoo.luong(
        **RECURRENT, input_feeding=False, pattern=LocalP(3), score=Additive(), cell=GRU()
    ),
    "luong, no feeding, local-m": zoo.luong(
        **RECURRENT, input_feeding=False, pattern=LocalM(3), score=Dot(scaled=False)
    ),
    "transformer encoder, recurrent decoder": hybrid(),
    "convs2s": zoo.convs2s(WIDTH, 2, dropout=0.1, position=Learned(128)),
    "convs2s, even kernel": zoo.convs2s(WIDTH, 2, kernel_width=4, decoder_depth=3, position=None, score=Additive()),
    "convs2s, kernel of one": zoo.convs2s(WIDTH, 1, kernel_width=1, position=Learned(128), tied=True, shared=True),
    "t5": zoo.t5(**SMALL, position=RelativeBias(8, 20)),
    "t5, 1.0": zoo.t5(**SMALL, version="1.0", key_width=5, decoder_depth=1, position=RelativeBias(8, 20)),
}
LANGUAGE_MODELS: dict[str, Model] = {
    "gpt2": zoo.gpt2(**SMALL),
    "gpt2, relative bias": zoo.gpt2(**SMALL, position=RelativeBias(8, 20)),
    "gpt2, alibi": zoo.gpt2(**SMALL, position=ALiBi()),
    "gpt2, rotary": zoo.gpt2(**SMALL, position=Rotary()),
    "gpt2, reversible": zoo.gpt2(**SMALL, join=Reversible()),
    "gpt2, axial, side by side": zoo.gpt2(
        **SMALL, join=Reversible(output="concatenated"), position=Axial((20, 7)), tied=False
    ),
    "gpt2, additive": zoo.gpt2(**SMALL, score=Additive(7), position=None),
    "windowed": windowed(),
    "llama": llama(Causal()),
    "llama, windowed": llama(Window(5)),
    "reformer": zoo.reformer(
        **SMALL, pattern=RankWindow(3), buckets=4, rounds=1, attention=("lsh",), position=Axial((9, 20))
    ),
    "reformer, several rounds": zoo.reformer(
        **SMALL, pattern=RankWindow(2), buckets=(4, 2), rounds=3, position=Sinusoid()
    ),
    "reformer, full, pre-norm": zoo.reformer(**SMALL, attention=("full", "local"), join=PreNorm(), tied=False),
    "sha-rnn": zoo.sha_rnn(WIDTH, 2, window=6, dropout=0.1),
    "alibi, gated attention": gated_under_alibi(),
    "sha-rnn, wide window": zoo.sha_rnn(WIDTH, 2, heads=3, inner=WIDTH, attention=(0,), dropout=0.1, tied=False),
    "sha-rnn, two heads everywhere": zoo.sha_rnn(WIDTH, 3, heads=2, attention="all", window=1, dropout=0.1),
    "gated convolutions": gated_convolutions(),
    "lstm-lm": zoo.lstm_lm(WIDTH, 2, dropout=0.1),
    "lstm-lm, replacing": zoo.lstm_lm(WIDTH, 2, join=Replace(), dropout=0.1, tied=False),
}
CLASSIFIERS: dict[str, Model] = {  # decoders that output labels
    "gpt2, label": replace(zoo.gpt2(**SMALL), readout=Label(NAMES, Last(), inner=None)),
    "gpt2, tags": replace(zoo.gpt2(**SMALL), readout=Tags(NAMES)),
}
ENCODERS: dict[str, Model] = {
    "bert": zoo.bert(**SMALL, max_positions=64),
    "bert, next sentence": zoo.bert(**SMALL, max_positions=64, next_sentence=True),
    "bert, rotary, pre-norm": zoo.bert(**SMALL, position=Rotary(), join=PreNorm()),
    "bert, alibi": zoo.bert(**SMALL, position=ALiBi()),
    "bert, reversible, relative bias": zoo.bert(**SMALL, position=RelativeBias(8, 20), join=Reversible()),
    "reformer, reading": zoo.reformer(**SMALL, shape="encoder", pattern=RankWindow(2), buckets=4, position=Sinusoid()),
    "elmo, words": zoo.elmo(width=WIDTH, inner=20, embed=Embed(), clip=None),
    "elmo, words, mixed": replace(
        zoo.elmo(width=WIDTH, inner=20, embed=Embed(), clip=0.3),
        readout=Label(NAMES, Mean()),
        mix=LayerMix(normed=True),
    ),
    "albert": albert(),
    "modernbert": modernbert(),
    "electra, discriminator": replace(zoo.bert(**SMALL, max_positions=64), readout=Tags(NAMES, inner="gelu")),
    "bert, label": replace(zoo.bert(**SMALL, max_positions=64), readout=Label(NAMES)),
    "bert, number": replace(zoo.bert(**SMALL, max_positions=64), readout=Number(Max(), inner=None)),
    "bert, tags": replace(zoo.bert(**SMALL, max_positions=64), readout=Tags(NAMES)),
    "bert, vector": replace(zoo.bert(**SMALL, max_positions=64), readout=Vector(Mean())),
    "bert, several labels": replace(zoo.bert(**SMALL, max_positions=64), readout=MultiLabel(NAMES)),
    "bert, dense vector": replace(
        zoo.bert(**SMALL, max_positions=64), readout=Vector(WeightedMean(), dense=(Dense(10), Dense(7, None)))
    ),
}
GENERATORS = TRANSLATORS | LANGUAGE_MODELS
MODELS = GENERATORS | CLASSIFIERS | ENCODERS


def build(name: str, seed: int = 0) -> Network:
    """The network in evaluation mode, with parameters large enough for differences to show."""
    torch.manual_seed(seed)
    network = MODELS[name].build(VOCABULARY)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return network.eval()
