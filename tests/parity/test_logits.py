"""Parity with transformers: logits, hidden states and attention weights, for any padding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import DamagedFile
from regard.layers.record import Record
from tests.parity import zoo
from tests.parity.folders import close, ours, perturbed, rows, save_theirs


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def pair(make: zoo.Make, folder: Path) -> tuple[Any, Any]:
    """Their model and ours."""
    theirs = perturbed(make())
    theirs.set_attn_implementation("eager")
    return theirs, ours(save_theirs(theirs, folder)).network


def segments(theirs: Any, ids: Tensor) -> dict[str, Tensor]:
    if getattr(theirs.config, "type_vocab_size", 0) < 2 or theirs.config.model_type == "distilbert":
        return {}
    return {"token_type_ids": (torch.arange(ids.shape[1]) > 4).long().expand_as(ids)}


def renamed(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"segments": given["token_type_ids"]} if given else {}


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", [*zoo.DECODERS, *zoo.DECODER_TOKEN_HEADS])
def test_decoders(name: str, batch: int, left: bool, tmp_path: Path):
    theirs, network = pair(zoo.ALL[name], tmp_path)
    ids, padding = rows(batch=batch, left=left)
    positions = (padding.long().cumsum(1) - 1).clamp_min(0)
    output = theirs(ids, attention_mask=padding.long(), position_ids=positions, output_hidden_states=True)
    found = network(ids, padding=padding)
    if name.endswith("bare"):
        expected = output.last_hidden_state @ theirs.get_input_embeddings().weight.T
    else:
        expected = torch.stack([output.start_logits, output.end_logits], -1) if "spans" in name else output.logits
    close(found, expected, padding)
    if not left:
        all_layers: list[Tensor] = []
        network.hidden_states(ids, padding=padding, all_layers=all_layers)
        assert len(all_layers) == len(output.hidden_states)
        for one, other in zip(all_layers, output.hidden_states):
            close(one, other, padding)


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
        {**zoo.LLAMA3, "original_max_position_embeddings": 32, "rope_theta": 10_000.0},
        {**zoo.LLAMA3, "factor": 3.0, "low_freq_factor": 0.5, "high_freq_factor": 7.5, "rope_theta": 200.0},
    ],
)
def test_scaled_rotary_positions_beyond_the_original_length(settings: dict[str, Any], tmp_path: Path):
    make = zoo.llama(head_dim=16, rope_parameters=settings, max_position_embeddings=512)
    theirs, network = pair(make, tmp_path / "new")
    ids, padding = rows(batch=2, length=300)
    expected = theirs(ids, attention_mask=padding.long()).logits
    close(network(ids, padding=padding), expected, padding)
    plain = zoo.llama(head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": settings["rope_theta"]})
    other = plain().eval()
    other.load_state_dict(theirs.state_dict())
    assert (other(ids, attention_mask=padding.long()).logits - expected)[padding].abs().max() > 1e-2
    config = tmp_path / "new" / "config.json"  # as older folders have it
    older = json.loads(config.read_text())
    scaling = older.pop("rope_parameters")
    config.write_text(json.dumps({**older, "rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}))
    assert ours(tmp_path / "new").network.description == network.description


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"low_freq_factor": None}, "low_freq_factor is missing"),
        ({"factor": 0.0}, "must be 1 or more, got 0.0"),
        ({"low_freq_factor": 4.0}, "0 < low < high"),
        ({"original_max_position_embeddings": -1}, "original_max_position_embeddings must be 1"),
    ],
)
def test_a_scaling_that_cannot_be_is_refused(settings: dict[str, Any], message: str, tmp_path: Path):
    save_theirs(zoo.llama(rope_parameters=zoo.LLAMA3)(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"] |= settings
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DamagedFile, match=message):
        ours(tmp_path)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", zoo.ENCODER_DECODERS)
def test_encoder_decoders(name: str, batch: int, tmp_path: Path):
    theirs, network = pair(zoo.ENCODER_DECODERS[name], tmp_path)
    ids, padding = rows(batch=batch)
    target, target_padding = rows(9, batch, 7)
    given = {"attention_mask": padding.long(), "decoder_input_ids": target}
    output = theirs(ids, **given, output_hidden_states=True, output_attentions=True)
    inputs = {"source_ids": ids, "source_padding": padding}
    close(network(target, target_padding=target_padding, **inputs), output.logits, target_padding)
    close(network.encode(ids, padding), output.encoder_last_hidden_state, padding)
    record, all_layers = Record(), []
    network.hidden_states(target, **inputs, record=record, all_layers=all_layers)
    for one, other in zip(all_layers, output.decoder_hidden_states, strict=True):
        close(one, other, target_padding)
    real = padding[:, None, :, None].expand(output.encoder_attentions[0].shape)
    for number, weights in enumerate(output.encoder_attentions):
        close(record.matrix(f"encoder.{number}.self"), weights, real)
    for number, weights in enumerate(output.decoder_attentions):
        real = target_padding[:, None, :, None]
        close(record.matrix(f"decoder.{number}.self"), weights, real.expand_as(weights))
        cross = output.cross_attentions[number]
        close(record.matrix(f"decoder.{number}.cross"), cross, real.expand_as(cross))


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", zoo.TOKEN_HEADS)
def test_heads_per_token(name: str, batch: int, tmp_path: Path):
    theirs, network = pair(zoo.TOKEN_HEADS[name], tmp_path)
    ids, padding = rows(batch=batch)
    ids = ids.masked_fill(~padding, theirs.config.pad_token_id)
    more = segments(theirs, ids)
    output = theirs(ids, attention_mask=padding.long(), **more, output_hidden_states=True, output_attentions=True)
    expected = torch.stack([output.start_logits, output.end_logits], -1) if "spans" in name else output.logits
    close(network(ids, padding=padding, **renamed(more)), expected, padding)
    record, all_layers = Record(), []
    network.hidden_states(ids, padding=padding, **renamed(more), record=record, all_layers=all_layers)
    for one, other in zip(all_layers, output.hidden_states, strict=True):
        close(one, other, padding)
    for number, weights in enumerate(output.attentions):
        close(record.matrix(f"encoder.{number}.self"), weights, padding[:, None, :, None].expand_as(weights))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", zoo.SEQUENCE_HEADS)
def test_heads_per_text(name: str, left: bool, tmp_path: Path):
    theirs, network = pair(zoo.SEQUENCE_HEADS[name], tmp_path)
    ids, padding = rows()
    ids = ids.masked_fill(~padding, theirs.config.pad_token_id)
    more = segments(theirs, ids)
    output = theirs(ids, attention_mask=padding.long(), **more).logits
    given = {**renamed(more), "padding": padding}
    if left:  # padding on the left changes nothing for us
        order = padding.long().argsort(dim=1, stable=True)
        ids, given = ids.gather(1, order), {key: value.gather(1, order) for key, value in given.items()}
    close(network(ids, **given), output)
    if "labels" in name:
        assert network.description.readout.labels == ("bad", "so so", "good")


@pytest.mark.parametrize("name", zoo.ENCODERS)
def test_encoders_without_a_head(name: str, tmp_path: Path):
    theirs, network = pair(zoo.ENCODERS[name], tmp_path)
    ids, padding = rows()
    ids = ids.masked_fill(~padding, theirs.config.pad_token_id)
    more = segments(theirs, ids)
    output = theirs(ids, attention_mask=padding.long(), **more)
    close(network.encode(ids, padding, **renamed(more)), output.last_hidden_state, padding)
    if getattr(output, "pooler_output", None) is not None:
        close(network(ids, padding=padding, **renamed(more)), output.pooler_output)


@pytest.mark.parametrize("name", zoo.PRETRAINING)
def test_masked_lm_and_sentence_heads_together(name: str, tmp_path: Path):
    theirs, network = pair(zoo.PRETRAINING[name], tmp_path)
    ids, padding = rows()
    more = segments(theirs, ids)
    output = theirs(ids, attention_mask=padding.long(), **more)
    states = network.hidden_states(ids, padding=padding, **renamed(more))
    close(network.readout(states, padding), output.prediction_logits, padding)
    close(network.auxiliary(states, padding), output.sop_logits if "albert" in name else output.seq_relationship_logits)


def test_a_discriminator_tells_replaced_tokens_with_the_same_probability(tmp_path: Path):
    theirs, network = pair(zoo.DISCRIMINATORS["electra, discriminator"], tmp_path)
    ids, padding = rows()
    found = network(ids, padding=padding).softmax(-1)[..., 1]
    close(found, theirs(ids, attention_mask=padding.long()).logits.sigmoid(), padding)
