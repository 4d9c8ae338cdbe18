"""Published models answer as their makers' library has it: logits, states, attention, whatever the padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.layers.record import Record
from tests.parity import zoo
from tests.parity.folders import close, ours, rows, saved, shaken


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def pair(make: zoo.Make, folder: Path) -> tuple[Any, Any]:
    """Their model and ours."""
    theirs = shaken(make())
    theirs.set_attn_implementation("eager")
    return theirs, ours(saved(theirs, folder)).network


def segments(theirs: Any, ids: Tensor) -> dict[str, Tensor]:
    if getattr(theirs.config, "type_vocab_size", 0) < 2 or theirs.config.model_type == "distilbert":
        return {}
    return {"token_type_ids": (torch.arange(ids.shape[1]) > 4).long().expand_as(ids)}


def renamed(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"segments": given["token_type_ids"]} if given else {}


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", [*zoo.SPEAKERS, *zoo.GPT2_TAGGERS])
def test_decoders(name: str, batch: int, left: bool, tmp_path: Path):
    theirs, network = pair(zoo.ALL[name], tmp_path)
    ids, padding = rows(batch=batch, left=left)
    places = (padding.long().cumsum(1) - 1).clamp_min(0)
    said = theirs(ids, attention_mask=padding.long(), position_ids=places, output_hidden_states=True)
    found = network(ids, padding=padding)
    if name == "gpt2, bare":
        expected = said.last_hidden_state @ theirs.wte.weight.T
    else:
        expected = torch.stack([said.start_logits, said.end_logits], -1) if "spans" in name else said.logits
    close(found, expected, padding)
    if not left:
        all_layers: list[Tensor] = []
        network.hidden_states(ids, padding=padding, all_layers=all_layers)
        assert len(all_layers) == len(said.hidden_states)
        for one, other in zip(all_layers, said.hidden_states):
            close(one, other, padding)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", zoo.TRANSLATORS)
def test_encoder_decoders(name: str, batch: int, tmp_path: Path):
    theirs, network = pair(zoo.TRANSLATORS[name], tmp_path)
    ids, padding = rows(batch=batch)
    target, target_padding = rows(9, batch, 7)
    given = {"attention_mask": padding.long(), "decoder_input_ids": target}
    said = theirs(ids, **given, output_hidden_states=True, output_attentions=True)
    inputs = {"source_ids": ids, "source_padding": padding}
    close(network(target, target_padding=target_padding, **inputs), said.logits, target_padding)
    close(network.encode(ids, padding), said.encoder_last_hidden_state, padding)
    record, all_layers = Record(), []
    network.hidden_states(target, **inputs, record=record, all_layers=all_layers)
    for one, other in zip(all_layers, said.decoder_hidden_states, strict=True):
        close(one, other)
    seen = padding[:, None, :, None].expand(said.encoder_attentions[0].shape)
    for number, weights in enumerate(said.encoder_attentions):
        close(record.matrix(f"encoder.{number}.self"), weights, seen)
    for number, weights in enumerate(said.decoder_attentions):
        close(record.matrix(f"decoder.{number}.self"), weights)
        close(record.matrix(f"decoder.{number}.cross"), said.cross_attentions[number])


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", zoo.FILLERS)
def test_encoders_that_answer_token_by_token(name: str, batch: int, tmp_path: Path):
    theirs, network = pair(zoo.FILLERS[name], tmp_path)
    ids, padding = rows(batch=batch)
    ids = ids.masked_fill(~padding, theirs.config.pad_token_id)
    more = segments(theirs, ids)
    said = theirs(ids, attention_mask=padding.long(), **more, output_hidden_states=True, output_attentions=True)
    expected = torch.stack([said.start_logits, said.end_logits], -1) if "spans" in name else said.logits
    close(network(ids, padding=padding, **renamed(more)), expected, padding)
    record, all_layers = Record(), []
    network.hidden_states(ids, padding=padding, **renamed(more), record=record, all_layers=all_layers)
    for one, other in zip(all_layers, said.hidden_states, strict=True):
        close(one, other, padding)
    for number, weights in enumerate(said.attentions):
        close(record.matrix(f"encoder.{number}.self"), weights, padding[:, None, :, None].expand_as(weights))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", zoo.JUDGES)
def test_models_that_judge_a_text(name: str, left: bool, tmp_path: Path):
    theirs, network = pair(zoo.JUDGES[name], tmp_path)
    ids, padding = rows()
    ids = ids.masked_fill(~padding, theirs.config.pad_token_id)
    more = segments(theirs, ids)
    said = theirs(ids, attention_mask=padding.long(), **more).logits
    given = {**renamed(more), "padding": padding}
    if left:  # moved to the other side, which changes nothing for us
        order = padding.long().argsort(dim=1, stable=True)
        ids, given = ids.gather(1, order), {key: value.gather(1, order) for key, value in given.items()}
    close(network(ids, **given), said)
    if "labels" in name:
        assert network.description.readout.names == ("bad", "so so", "good")


@pytest.mark.parametrize("name", zoo.READERS)
def test_models_that_only_read(name: str, tmp_path: Path):
    theirs, network = pair(zoo.READERS[name], tmp_path)
    ids, padding = rows()
    ids = ids.masked_fill(~padding, theirs.config.pad_token_id)
    more = segments(theirs, ids)
    said = theirs(ids, attention_mask=padding.long(), **more)
    close(network.encode(ids, padding, **renamed(more)), said.last_hidden_state, padding)
    if getattr(said, "pooler_output", None) is not None:
        close(network(ids, padding=padding, **renamed(more)), said.pooler_output)


def test_words_and_the_next_sentence_at_once(tmp_path: Path):
    theirs, network = pair(zoo.BOTH["bert, pretraining"], tmp_path)
    ids, padding = rows()
    more = segments(theirs, ids)
    said = theirs(ids, attention_mask=padding.long(), **more)
    states = network.hidden_states(ids, padding=padding, **renamed(more))
    close(network.readout(states, padding), said.prediction_logits, padding)
    close(network.auxiliary(states, padding), said.seq_relationship_logits)
