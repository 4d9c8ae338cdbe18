"""Tasks: what is to be learnt of a text, as a translation, a language model, a masked language model and so on."""

from __future__ import annotations

from regard.data.read.corpus import Corpus
from regard.data.tasks.bidirectional_lm import BidirectionalLM
from regard.data.tasks.classification import Classification, Regression
from regard.data.tasks.contrastive import Contrastive
from regard.data.tasks.language_model import LanguageModel, TruncatedBPTT
from regard.data.tasks.masked_lm import MaskedLM
from regard.data.tasks.span_corruption import SpanCorruption
from regard.data.tasks.tagging import Tagging
from regard.data.tasks.translation import Translation

Task = Translation | LanguageModel | TruncatedBPTT | MaskedLM | SpanCorruption | BidirectionalLM | Classification | Regression | Tagging | Contrastive


def default_task(corpus: Corpus) -> Translation | LanguageModel:
    """A translation where there are pairs, else the next token."""
    return LanguageModel() if corpus.targets is None else Translation()
