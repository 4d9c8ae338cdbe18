"""ConvS2S, convolutional sequence to sequence learning (Gehring 2017): an encoder-decoder of convolutions."""

from __future__ import annotations

from regard.layers.contract import require_counts
from regard.layers.convolution import Convolution, MultiStepAttention, ScaledResidual
from regard.layers.embedding import Embed
from regard.layers.positions import Learned
from regard.layers.scores import Dot, Score
from regard.models.model import Model, Stack
from regard.models.readouts import Vocabulary


def convs2s(
    width: int = 512,
    depth: int = 20,
    *,
    kernel_width: int = 3,
    decoder_depth: int | None = None,
    score: Score = Dot(scaled=False),  # noqa: B008
    position: Learned | None = Learned(1024),  # noqa: B008
    dropout: float = 0.2,
    tied: bool = False,
    shared: bool = False,
) -> Model:
    """Convolutional sequence to sequence learning (Gehring 2017); the defaults are its English to Romanian model.

    Encoder and decoder are gated convolutions, and every decoder layer attends to the source. Unlike the published
    code, all layers have the width of the embeddings, there is no weight normalisation, and the gradients of the
    encoder are not scaled down, which Adam would undo.
    """
    require_counts(width=width, depth=depth, kernel_width=kernel_width, decoder_depth=decoder_depth)
    encoder = (Convolution(kernel_width, dropout=dropout),)
    decoder = (MultiStepAttention(kernel_width, dropout, score),)
    return Model(
        width,
        embed=Embed(position, dropout=dropout, init_std=0.1),
        encoder=Stack(depth * (encoder,), ScaledResidual()),
        decoder=Stack((decoder_depth or depth) * (decoder,), ScaledResidual()),
        readout=Vocabulary(tied=tied, biased=True),
        shared=shared,
    )
