"""The Reformer (Kitaev 2020): LSH and local attention in a reversible stack, for long texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from regard.errors import InputError
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.contract import require_counts
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import PreNorm
from regard.layers.lsh.attention import LSHAttention
from regard.layers.lsh.masks import Chunks, Full, RankWindow
from regard.layers.positions import Axial, Position, Rotary
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
    pattern: RankWindow | Chunks = RankWindow(),  # noqa: B008
    buckets: int | tuple[int, ...] | None = 64,
    rounds: int = 2,
    inner: int | None = None,
    dropout: float = 0.05,
    position: Position | None = Axial((1024, 1024)),  # noqa: B008
    local: Position | None = Rotary(),  # noqa: B008
    join: Reversible | PreNorm = Reversible(),  # noqa: B008
    activation: Activation = "relu",
    tied: bool = True,
) -> Model:
    """The Reformer (Kitaev 2020): a query attends to keys of its own LSH bucket, or of a local window.

    `attention`: the kind of each layer, repeated cyclically. `pattern`: `rank_window`, which keeps every law, or the
    published `chunks`. Longer texts need more buckets: (128, 128) for a million tokens. `local`: the position of local
    attention, in addition to `position`; published models have none. `shape`: a language model ("decoder"), a masked
    language model ("encoder"), or an encoder-decoder ("both").
    """
    require_counts(width=width, depth=depth, heads=heads, inner=inner, rounds=rounds)
    if not attention:
        raise InputError('a layer needs a kind of attention (model.attention). Use ["local", "lsh"].')

    def layers(causal: bool, *cross: AnySublayer) -> tuple[tuple[AnySublayer, ...], ...]:
        local_pattern = pattern.local_pattern(causal)
        kinds: dict[str, Callable[[int], AnySublayer]] = {
            "local": lambda seed: SelfAttention(heads, pattern=local_pattern, position=local, biased=False),
            "lsh": lambda seed: LSHAttention(heads, pattern, buckets, rounds, seed, causal),
            "full": lambda seed: LSHAttention(heads, Full(), causal=causal),
        }
        self_attention = (kinds[attention[layer % len(attention)]](layer) for layer in range(depth))
        return tuple((one, *cross, FeedForward(inner or 4 * width, activation)) for one in self_attention)

    cross = (CrossAttention(heads, biased=False),) if shape == "both" else ()
    return Model(
        width,
        embed=Embed(position, dropout=dropout),
        encoder=Stack(layers(False), join, dropout) if shape != "decoder" else None,
        decoder=Stack(layers(True, *cross), join, dropout) if shape != "encoder" else None,
        readout=Vocabulary(tied=tied),
    )
