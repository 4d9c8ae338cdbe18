"""Tasks: what is to be learnt of a text, as a translation, a language model, a masked language model and so on."""

from __future__ import annotations

from regard.data.read.corpus import Corpus
from regard.data.tasks.bidirectional_lm import BothWays
from regard.data.tasks.classification import Labels, Scores
from regard.data.tasks.contrastive import Contrast
from regard.data.tasks.language_model import NextToken, Stream
from regard.data.tasks.masked_lm import Masked
from regard.data.tasks.span_corruption import Spans
from regard.data.tasks.tagging import Tagging
from regard.data.tasks.translation import Translation

Problem = Translation | NextToken | Stream | Masked | Spans | BothWays | Labels | Scores | Tagging | Contrast


def default_problem(corpus: Corpus) -> Translation | NextToken:
    """A translation where there are pairs, else the next token."""
    return NextToken() if corpus.targets is None else Translation()
