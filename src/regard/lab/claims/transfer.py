"""Transfer: does a pre-trained LSTM help as much as a pre-trained Transformer?

ULMFiT and ELMo (2018) did. Both models are pre-trained as causal language models on the same texts, then fine-tuned
with few labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from regard.data.tasks.language_model import LanguageModel
from regard.lab.claim import CONFIRMED, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.lab.pretrain import LENGTH, Sizes, compare
from regard.layers.positions import Learned
from regard.models import zoo
from regard.models.model import Model

MODELS: dict[str, Callable[[Sizes], Model]] = {
    "LSTM": lambda sizes: zoo.lstm_lm(sizes.width, sizes.depth, dropout=0.0),
    "Transformer": lambda sizes: zoo.gpt2(sizes.width, sizes.depth, 4, position=Learned(LENGTH), dropout=0.0),
}


def measure(trial: Trial[Sizes]) -> Mapping[str, float]:
    """The accuracy with few labels, from scratch and after pre-training."""
    return compare(MODELS[trial.arm](trial.settings), LanguageModel(LENGTH), trial)


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    lstm, transformer = numbers.values("LSTM", "gain"), numbers.values("Transformer", "gain")
    if min(transformer) < 0.05 and min(lstm) < 0.05:
        return NOT_DECIDED
    if all(one < 0.5 * two for one, two in zip(lstm, transformer)):
        return CONFIRMED
    return REFUTED if all(one > 0.8 * two for one, two in zip(lstm, transformer)) else NOT_DECIDED


CLAIM = Claim(
    name="transfer",
    question="Is it near impossible to transfer an LSTM: does pre-training help it less than half as much as a "
    "Transformer?",
    source="notes ('Very hard/near impossible to apply transfer learning techniques on LSTMs'); Howard 2018; Peters "
    "2018",
    method="Texts in twelve languages: 6,000 without labels, 96 with, 600 for the test. LSTM and Transformer of one "
    "width and depth, causal pre-training, equal steps of pre-training and of fine-tuning, one learning rate (tuned "
    "for neither).",
    rule="Gain = accuracy after pre-training - from scratch. Confirmed if in every seed the LSTM gains less than "
    "half of what the Transformer gains; refuted if more than 80% of it in every seed. Not decided if neither gains 5 "
    "points.",
    caveats="Steps were raised after a pilot with seed 1 of the claim `pretraining`. One small task of bytes. "
    "Transfer across tasks and of large models is not asked.",
    minutes=10,
    fewest=4,
    arms=tuple(MODELS),
    settings=Sizes(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Accuracy with few labels", "accuracy,"),
)
