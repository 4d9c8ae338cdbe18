"""Parts of a reader's own, as docs/parts.md teaches them; also a file for --parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
import torch.nn.functional as F

from regard.data.read.cache import Cache
from regard.data.tasks.classification import Classification
from regard.data.tasks.language_model import LanguageModel
from regard.layers.contract import Sublayer
from regard.layers.patterns import SelfPattern
from regard.layers.positions import EmbeddingPosition, EmbeddingPositionLayer, PositionBias, StackPosition
from regard.layers.scores import ScoreFunction


@dataclass(frozen=True)
class Mean:
    """Each token becomes the mean of all tokens up to itself."""

    name: ClassVar[str] = "mean"

    def build(self, width, source_width=None):
        return MeanLayer()


class MeanLayer(Sublayer):
    def forward(self, x, context, memory=None):
        before, count = (0, 0) if memory is None else memory
        total = x.cumsum(dim=1) + (0 if memory is None else before[:, None])
        counts = count + torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
        counts = counts.expand(x.shape[0], -1)
        return total / counts[..., None], (total[:, -1], counts[:, -1:])


@dataclass(frozen=True)
class Sharp:
    """How sharp `Cosine` is: a description inside a description."""

    scale: float = 10.0


@dataclass(frozen=True)
class Flat:
    """The other choice of `Cosine`."""


@dataclass(frozen=True)
class Cosine:
    """A score that ignores the length of queries and keys."""

    kind: ClassVar[str] = "my_cosine"
    sharpness: Sharp | Flat = field(default_factory=Sharp)

    def build(self, query_width, key_width, heads=1):
        return CosineScore(self.sharpness.scale if isinstance(self.sharpness, Sharp) else 1.0)


class CosineScore(ScoreFunction):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def queries(self, q):
        return F.normalize(q, dim=-1)

    def keys(self, k):
        return F.normalize(k, dim=-1)


@dataclass(frozen=True)
class Ramp(EmbeddingPosition):
    """A position that adds a slowly growing number."""

    step: float = 0.01

    def build(self, width):
        return RampLayer(self.step, width)


class RampLayer(EmbeddingPositionLayer):
    def __init__(self, step, width):
        super().__init__()
        self.step, self.width = step, width

    def table(self, positions):
        return (positions * self.step)[..., None].expand(*positions.shape, self.width)


@dataclass(frozen=True)
class Fading(StackPosition):
    """A position bias that falls with the distance."""

    def build(self, heads, causal):
        return FadingBias(heads, causal)


class FadingBias(PositionBias):
    def __init__(self, heads, causal):
        super().__init__(causal)
        self.rate = torch.nn.Parameter(torch.ones(heads))

    def bias(self, distance):
        return -distance.abs()[..., None, :, :] * self.rate[:, None, None]


@dataclass(frozen=True)
class Even(SelfPattern):
    """The keys before a query at an even distance."""

    causal = True

    def mask(self, queries, keys):
        back = queries[..., None] - keys
        return (back >= 0) & (back % 2 == 0)


@dataclass(frozen=True)
class Backwards(LanguageModel):
    """A language model of the text read backwards."""

    def samples(self, corpus, tokenizers, cache=Cache(), *, bpe_dropout=0.0):  # noqa: B008
        turned = replace(corpus, sources=[text[::-1] for text in corpus.sources])
        return super().samples(turned, tokenizers, cache, bpe_dropout=bpe_dropout)


@dataclass(frozen=True)
class Lengths(Classification):
    """Classify texts as short or long, whatever their labels are."""

    def with_labels_from(self, corpus):
        return replace(self, labels=("long", "short"))

    def samples(self, corpus, tokenizers, cache=Cache(), *, bpe_dropout=0.0):  # noqa: B008
        labels = ["short" if len(text) < 8 else "long" for text in corpus.sources]
        return super().samples(replace(corpus, targets=labels), tokenizers, cache, bpe_dropout=bpe_dropout)
