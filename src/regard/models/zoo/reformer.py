"""TODO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from regard.errors import InputError
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import PreNorm
from regard.layers.lsh.attention import LSHAttention
from regard.layers.lsh.masks import Chunks, Ranks, Whole
from regard.layers.positions import Axial, Learned, Rotary, Sinusoid
from regard.layers.reversible import Reversible
from regard.models.model import AnySublayer, Model, Stack
from regard.models.readouts import Vocabulary


def reformer(
    width: int = 256,
    depth: int = 6,
    heads: int = 4,
    *,
    shape: Literal["decoder", "encoder", "both"] = "decoder",
    attention: tuple[Literal["local", "lsh", "full"], ...] = ("local", "lsh"),
    pattern: Ranks | Chunks = Ranks(),  # noqa: B008
    buckets: int | tuple[int, ...] | None = 64,
    rounds: int = 2,
    inner: int | None = None,
    dropout: float = 0.05,
    position: Axial | Sinusoid | Learned | None = Axial((1024, 1024)),  # noqa: B008
    local: Rotary | None = Rotary(),  # noqa: B008
    join: Reversible | PreNorm = Reversible(),  # noqa: B008
    activation: Activation = "relu",
    tied: bool = True,
) -> Model:
    """The Reformer (Kitaev 2020): long texts, since a token asks only whom it shares a bucket with, or its neighbours.

    `attention`: which kind each layer has, from the first on and over again. `see`: `ranks`, which keeps every law, or
    the published `chunks`. Longer texts want more buckets, a million tokens (128, 128). `local`: positions within local
    attention besides those of the text; published ones have none. `shape`: a language model, a reader of masked words,
    or a translator.
    """
    if not attention:
        raise InputError('a layer needs a kind of attention (model.attention). Use ["local", "lsh"].')

    def layers(causal: bool, *besides: AnySublayer) -> tuple[tuple[AnySublayer, ...], ...]:
        kinds: dict[str, Callable[[int], AnySublayer]] = {
            "local": lambda seed: SelfAttention(heads, pattern=pattern.beside(causal), position=local, biased=False),
            "lsh": lambda seed: LSHAttention(heads, pattern, buckets, rounds, seed, causal),
            "full": lambda seed: LSHAttention(heads, Whole(), causal=causal),
        }
        looks = (kinds[attention[layer % len(attention)]](layer) for layer in range(depth))
        return tuple((look, *besides, FeedForward(inner or 4 * width, activation)) for look in looks)

    over = (CrossAttention(heads, biased=False),) if shape == "both" else ()
    return Model(
        width,
        embed=Embed(position, dropout=dropout),
        encoder=Stack(layers(False), join, dropout) if shape != "decoder" else None,
        decoder=Stack(layers(True, *over), join, dropout) if shape != "encoder" else None,
        readout=Vocabulary(tied=tied),
    )
