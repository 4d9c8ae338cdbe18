"""Tasks: what a model is trained to predict, such as translation, language modelling or masked language modelling."""

from __future__ import annotations

from regard.data.tasks.bidirectional_lm import BidirectionalLM
from regard.data.tasks.classification import Classification, Regression
from regard.data.tasks.contrastive import Contrastive
from regard.data.tasks.language_model import LanguageModel, TruncatedBPTT
from regard.data.tasks.masked_lm import MaskedLM
from regard.data.tasks.span_corruption import SpanCorruption
from regard.data.tasks.tagging import Tagging
from regard.data.tasks.translation import Translation

Pretraining = LanguageModel | TruncatedBPTT | MaskedLM | SpanCorruption | BidirectionalLM
Labelling = Classification | Regression | Tagging | Contrastive
Task = Translation | Pretraining | Labelling
