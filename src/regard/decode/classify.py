"""Classification, regression and tagging: a label or a number per text, or a tag per word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.generate import QUIET, Progress
from regard.decode.inputs import batched_inputs, text_template
from regard.decode.requests import NO_TAG as NO_TAG
from regard.decode.requests import LabelPrediction as LabelPrediction
from regard.decode.requests import NumberPrediction as NumberPrediction
from regard.decode.requests import Prediction as Prediction
from regard.decode.requests import TagPrediction as TagPrediction
from regard.decode.requests import Text as Text
from regard.decode.requests import encode_classified
from regard.decode.workers import Workers
from regard.errors import InputError
from regard.models.model import AnyReadout, Model, Network
from regard.models.readouts import NEXT_SENTENCE, Label, MultiLabel, Tags


def classify(
    network: Network, tokenizer: Tokenizer, texts: Sequence[Text], progress: Progress = QUIET
) -> list[Prediction]:
    """The prediction for each text or pair of texts."""
    readout = predicted_readout(network.description)
    if predicts_next_sentence(network.description) and any(isinstance(text, str) for text in texts):
        raise InputError("this model tells whether one text follows another (regard classify). Give pairs of texts.")
    if readout.outputs == "labels" and readout.tokenwise:
        return list(_predict_tags(network, tokenizer, texts, progress))
    found: dict[int, Prediction] = {}
    for indices, outputs in _outputs(network, tokenizer, texts, progress):
        if isinstance(readout, Label | MultiLabel):
            rows = readout.probabilities(outputs)
            found |= {index: _predict_label(network, row) for index, row in zip(indices, rows)}
        else:
            found |= {index: NumberPrediction(float(row[0])) for index, row in zip(indices, outputs)}
    return [found[index] for index in range(len(texts))]


def predicted_readout(model: Model) -> AnyReadout:
    """The readout that classifies: of a model that predicts tokens, the auxiliary one (BERT's next sentence)."""
    auxiliary = model.auxiliary
    return auxiliary if model.readout.outputs == "tokens" and auxiliary is not None else model.readout


def predicts_next_sentence(model: Model) -> bool:
    """Whether it tells if one text follows another, so that it reads pairs."""
    readout = predicted_readout(model)
    return isinstance(readout, Label) and readout.labels == NEXT_SENTENCE


def label_names(network: Network) -> tuple[str, ...]:
    """The labels that a model predicts; none for regression."""
    readout = predicted_readout(network.description)
    return readout.labels if isinstance(readout, Label | MultiLabel | Tags) else ()


def _predict_label(network: Network, probabilities: Tensor) -> LabelPrediction:
    return LabelPrediction.of(label_names(network), probabilities.tolist())


def _predict_tags(
    network: Network, tokenizer: Tokenizer, texts: Sequence[Text], progress: Progress
) -> Iterator[TagPrediction]:
    """The tag of each word: the prediction at its first token."""
    labels, single = label_names(network), [text for text in texts if isinstance(text, str)]
    if len(single) < len(texts):
        raise InputError("this model tags the words of one text, not of two (regard classify). Leave out --pairs.")
    predicted: dict[int, list[int]] = {}
    start = len(text_template(network, tokenizer).prefix)
    for indices, outputs in _outputs(network, tokenizer, texts, progress):
        predicted |= dict(zip(indices, outputs.argmax(-1).tolist()))
    for index, text in enumerate(single):
        yield TagPrediction.of(tokenizer, text, labels, predicted[index][start:])


@torch.inference_mode()
def _outputs(
    network: Network, tokenizer: Tokenizer, texts: Sequence[Text], progress: Progress
) -> Iterator[tuple[list[int], Tensor]]:
    """Batches of texts: their indices and the readout's outputs."""
    segments = encode_classified(tokenizer, texts)
    main = predicted_readout(network.description) is network.description.readout
    readout = network.readout if main or network.auxiliary is None else network.auxiliary

    def outputs(batch: tuple[list[int], dict[str, Tensor]]) -> Tensor:
        states = network.hidden_states(**batch[1])  # type: ignore[arg-type]
        found: Tensor = readout(states, batch[1].get("padding"))
        return found.float().cpu()

    joined = [text if isinstance(text, str) else "\t".join(text) for text in texts]
    batches = batched_inputs(network, tokenizer, segments, texts=joined)
    for (indices, _), found in Workers(network).run(batches, outputs):
        yield indices, found
        progress(len(indices))
