"""Is attention an explanation? Attention against gradient times input and against leaving the token out.

By rank correlation. If attention tells which tokens matter, its order of tokens should be that of the measures which
ask the model itself (Jain and Wallace 2019; Wiegreffe and Pinter 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from regard.lab.claim import CONFIRMED, HELD_OUT, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.lab.learning import Rows, build, learn, score
from regard.lab.tasks import BOS, lagged_copy, pairs
from regard.layers.join import PreNorm
from regard.layers.record import Record
from regard.models import zoo
from regard.models.model import Model
from regard.show.attribution import gradient_times_input, leave_one_out, prediction_scores, rank_correlation


@dataclass(frozen=True)
class Settings:
    """Sizes of task, model and training."""

    width: int = 64
    length: int = 10
    symbols: int = 16
    rows: int = 64  # per step
    texts: int = 64  # that are explained
    steps: int = 500


MODELS: dict[str, Callable[[Settings], Model]] = {
    "Transformer, cross-attention": lambda settings: zoo.transformer(settings.width, 2, 4, join=PreNorm(), dropout=0.0),
    "BERT, self-attention": lambda settings: zoo.bert(settings.width, 2, 4, max_positions=settings.length, dropout=0.0),
    "LSTM, additive attention": lambda settings: zoo.bahdanau(settings.width, 1),
}


def rows_for(model: Model, settings: Settings, count: int, seed: int) -> Rows:
    """Copying for an encoder-decoder, the token two positions before for an encoder."""
    if model.shape == "encoder":
        return lagged_copy(count, settings.length, settings.symbols, 2, seed)
    return pairs(count, (settings.length,), settings.symbols, seed)


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """Rank correlations of attention with both other measures, and of these with each other."""
    chosen, steps = trial.settings, trial.scaled("steps")
    model = MODELS[trial.arm](chosen)
    network = build(model, chosen.symbols + 1, trial.seed)
    learn(network, rows_for(model, chosen, chosen.rows * steps, trial.seed), trial, steps=steps, batch=chosen.rows)
    held_out = rows_for(model, chosen, chosen.texts, HELD_OUT)
    inputs: dict[str, Any] = dict(held_out.inputs)
    side = "ids" if model.shape == "encoder" else "source_ids"
    record = Record(lambda name: model.shape == "encoder" or not name.endswith("self"))
    network.hidden_states(**inputs, record=record)
    middle = chosen.length // 2
    layers = [record.matrix(name)[:, :, middle] for name in record.rows if name.startswith(("encoder", "decoder"))]
    attention = torch.stack([weights.mean(1) for weights in layers]).mean(0)
    at = torch.full((chosen.texts,), middle)
    with torch.no_grad():
        predicted = prediction_scores(network, inputs, at[:, None])[:, 0].argmax(-1)
    gradient = gradient_times_input(network, inputs, at, predicted, side)
    left_out = leave_one_out(network, inputs, at[:, None], predicted[:, None], side, BOS)[:, 0]
    top = (attention.argmax(1) == left_out.argmax(1)).float().mean()
    return {
        "accuracy": score(network, held_out).accuracy,
        "the most attended is the most needed": float(top),
        "correlation: gradient, leaving out": float(rank_correlation(gradient, left_out).mean()),
        "correlation: attention, gradient": float(rank_correlation(attention, gradient).mean()),
        "correlation: attention, leaving out": float(rank_correlation(attention, left_out).mean()),
    }


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    if min(value for arm in numbers.arms for value in numbers.values(arm, "accuracy")) < 0.8:
        return NOT_DECIDED
    found = [value for arm in numbers.arms for value in numbers.values(arm, "correlation: attention, leaving out")]
    if all(value > 0.7 for value in found):
        return CONFIRMED
    return REFUTED if all(value < 0.5 for value in found) else NOT_DECIDED


CLAIM = Claim(
    name="explanation",
    question="Is attention an explanation: does it rank tokens as leaving them out does?",
    source="Jain and Wallace 2019; Wiegreffe and Pinter 2019; notes on attention as an alignment between words",
    method="Three trained models: copying with a Transformer and with an additive-attention RNN, naming the token "
    "two before with BERT. For one prediction per text, three measures of each token: attention (mean of layers and "
    "heads), |gradient x input|, and the change of the prediction's log-probability when the token is replaced. "
    "Spearman's rank correlation, mean over 64 texts.",
    rule="Attention against leaving out. Confirmed if the correlation is above 0.7 in every model and seed; refuted "
    "if it is below 0.5 in every model and seed; between these, not decided. Not decided while a model is below 80% "
    "accuracy.",
    caveats="One token matters in these tasks, and all measures find it; the ranks of the others, which hardly "
    "matter, decide the correlation. So look at both numbers: the first choice may agree where the ranks do not.",
    minutes=3,
    fewest=2,
    arms=tuple(MODELS),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Rank correlation", "correlation:"),
)
