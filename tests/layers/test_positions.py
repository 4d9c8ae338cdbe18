"""Positional encodings: the axial grid, ALiBi's slopes, and the slots that positions attach to."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import get_args

import pytest
import torch

from regard.errors import InputError
from regard.layers.attention import SelfAttention
from regard.layers.contract import Context
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.join import PreNorm
from regard.layers.patterns import Causal
from regard.layers.positions import (
    ALiBi,
    Axial,
    Concatenated,
    EmbeddingPosition,
    EmbeddingPositionLayer,
    Learned,
    Position,
    RelativeBias,
    Rotary,
    Sinusoid,
    position_for,
)
from regard.models import zoo
from regard.models.model import Model, Stack
from regard.schema import from_dict, kind_of, to_dict
from tests.laws.zoo import SMALL, VOCABULARY, build


@pytest.mark.parametrize(("widths", "expected"), [(None, (4, 5)), ((2, 7), (2, 7))])
def test_an_axial_position_is_its_row_and_its_column(widths: tuple[int, int] | None, expected: tuple[int, int]):
    layer = Axial((3, 5), widths).build(9)
    assert (layer.rows.shape, layer.columns.shape) == ((3, expected[0]), (5, expected[1]))
    for length in (1, 4, 5, 7, 15):  # whether it fills rows or not
        found = layer.table(torch.arange(length))
        for position in range(length):
            row, column = divmod(position, 5)
            assert torch.equal(found[position], torch.cat([layer.rows[row], layer.columns[column]]))


def test_positions_may_differ_by_row_and_start_anywhere():
    layer = Axial((3, 5)).build(8)
    positions = torch.tensor([[0, 1, 2], [9, 10, 11]])
    x = torch.randn(2, 3, 8)
    assert torch.equal(layer(x, positions)[1], x[1] + layer.table(torch.arange(15))[9:12])


def test_every_axial_vector_gets_the_gradients_of_its_positions():
    layer = Axial((3, 5)).build(8)
    layer.table(torch.arange(7)).sum().backward()
    assert layer.rows.grad[:, 0].tolist() == [5, 2, 0]
    assert layer.columns.grad[:, 0].tolist() == [2, 2, 1, 1, 1]


@pytest.mark.parametrize("scaled", [False, True])
def test_an_embedding_reads_as_many_tokens_as_there_are_axial_positions(scaled: bool):
    embed = Embed(Axial((3, 5)), scaled=scaled).build(8, 20)
    assert embed.max_positions == 15
    ids = torch.randint(20, (2, 15))
    factor = 8**0.5 if scaled else 1.0
    assert torch.allclose(embed(ids, Context()), embed.table(ids) * factor + embed.position.table(torch.arange(15)))
    with pytest.raises(InputError, match="16 tokens, this model reads 15"):
        embed(torch.randint(20, (2, 16)), Context())


@pytest.mark.parametrize(
    ("max_positions", "shape"), [(15, (3, 5)), (16, (4, 5)), (20, (4, 5)), (1_048_576, (209_716, 5))]
)  # fmt: skip
def test_a_grid_grows_by_whole_rows(max_positions: int, shape: tuple[int, int]):
    assert Axial((3, 5), (1, 7)).grown(max_positions) == Axial(shape, (1, 7))
    assert Learned(3).grown(max_positions) == Learned(max_positions)
    assert Concatenated(4, Learned(3)).grown(max_positions) == Concatenated(4, Learned(max_positions))


@pytest.mark.parametrize(
    ("shape", "widths", "width", "message"),
    [((3, 0), None, 8, "shape of 1 or more"), ((3, 5), (0, 8), 8, "widths of 1 or more"),
     ((3, 5), (3, 4), 8, "width 8"), ((3, 5), None, 1, "width 1")],
)  # fmt: skip
def test_an_impossible_grid_is_refused(shape, widths, width, message):
    with pytest.raises(InputError, match=message):
        Axial(shape, widths).build(width)


def authors_slopes(heads: int) -> list[float]:
    """ALiBi's slopes as in github.com/ofirpress/attention_with_linear_biases."""
    if math.log2(heads).is_integer():
        first = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [first ** (head + 1) for head in range(heads)]
    power = 2 ** math.floor(math.log2(heads))
    return authors_slopes(power) + authors_slopes(2 * power)[0::2][: heads - power]


@pytest.mark.parametrize("heads", [*range(1, 18), 25, 32])
def test_alibi_has_the_authors_slopes(heads: int):
    slopes = ALiBi().build(heads, causal=True).slopes(torch.device("cpu"))
    torch.testing.assert_close(slopes, torch.tensor(authors_slopes(heads)))


@pytest.mark.parametrize("causal", [True, False])
def test_alibi_lowers_scores_by_the_distance(causal: bool):
    layer, positions = ALiBi().build(4, causal), torch.arange(6)
    bias = layer(positions, positions)
    assert bias.shape == (1, 4, 6, 6)
    for head, slope in enumerate([1 / 4, 1 / 16, 1 / 64, 1 / 256]):
        for query in range(6):
            for key in range(query + 1 if causal else 6):
                assert bias[0, head, query, key] == -slope * abs(query - key)
    rows = layer(torch.stack([positions, positions + 9]), torch.stack([positions, positions + 3]))
    assert torch.equal(rows[1, :, 0, 0], bias[0, :, 0, 5] * 6 / 5)
    assert not list(layer.parameters())


def test_alibi_is_part_of_the_scores():
    network, ids = build("gpt2, alibi"), torch.randint(3, VOCABULARY, (2, 9))
    with torch.no_grad():
        found = network(ids)
        network.decoder.position = None
        assert (network(ids) - found).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["alibi", "gpt2, alibi", "bert, alibi", "relative bias"])
def test_a_position_bias_is_the_same_in_double_precision(name: str):
    network, ids = build(name), torch.randint(3, VOCABULARY, (2, 28))
    inputs = {"source_ids": ids[:, :20]} if network.shape == "encoder-decoder" else {}
    with torch.no_grad():
        single = network(ids, **inputs)
        torch.testing.assert_close(network.double()(ids, **inputs).float(), single, atol=1e-4, rtol=1e-4)


def test_alibi_is_written_as_alibi():
    assert kind_of(ALiBi) == "alibi"
    model = zoo.gpt2(**SMALL, position=ALiBi())
    assert to_dict(model)["decoder"]["position"] == {"kind": "alibi"}
    assert from_dict(Model, to_dict(model), where="here") == model


CREATED = (Sinusoid(), Learned(), Axial(), Concatenated(), Rotary(), RelativeBias(), ALiBi())


def stack(position: Position | None = None, attention: SelfAttention | None = None) -> Stack:
    return Stack(((attention or SelfAttention(2, pattern=Causal()), FeedForward(8)),), PreNorm(), position=position)


def slot(name: str, position: Position) -> object:
    match name:
        case "embedding":
            return Embed(position)
        case "attention":
            return SelfAttention(2, position=position)
    return stack(position)


@pytest.mark.parametrize("position", CREATED, ids=lambda position: kind_of(type(position)))
def test_every_slot_refuses_a_position_that_attaches_elsewhere(position: Position):
    assert {type(one) for one in CREATED} == set(get_args(Position))
    for name in ("embedding", "attention", "stack"):
        if name == position.attaches:
            slot(name, position)
            assert position_for(name, position) is position
            continue
        assert position_for(name, position) is None
        kind, others = kind_of(type(position)), {"attention": "rotary", "stack": "relative_bias or alibi"}
        with pytest.raises(
            InputError, match=rf"{kind} attaches to the {position.attaches}, not to the {name}\. Use "
        ) as e:
            slot(name, position)
        assert str(e.value).endswith(f"Use {others.get(name, 'sinusoid, learned, axial or concatenated')} there.")


@pytest.mark.parametrize("position", CREATED, ids=lambda position: kind_of(type(position)))
@pytest.mark.parametrize("model", [zoo.transformer, zoo.gpt2, zoo.bert, zoo.t5], ids=lambda model: model.__name__)
def test_every_transformer_takes_every_position(model, position: Position):
    description = model(48, 1, 2, position=replace(position))
    stacks = [one for one in (description.encoder, description.decoder) if one is not None]
    attached = [description.embed.position, stacks[0].layers[0][0].position, stacks[0].position]
    assert [one for one in attached if one is not None] == [position]
    with torch.device("meta"):
        description.build(10)


def test_a_position_bias_needs_self_attention_with_equal_heads():
    with pytest.raises(InputError, match=r"needs self-attention layers .*got none \(model\.position\)"):
        Stack(((FeedForward(8),),), PreNorm(), position=ALiBi()).build(8)
    mixed = replace(stack(ALiBi()), layers=((SelfAttention(2),), (SelfAttention(4),)))
    with pytest.raises(InputError, match=r"the same heads in every layer, got \[2, 4\]"):
        mixed.build(8)


def test_a_position_knows_how_many_positions_there_are():
    bounds = {kind_of(type(position)): position.max_positions for position in CREATED}
    assert bounds == {**dict.fromkeys(bounds), "learned": 512, "axial": 4096}
    assert Concatenated(4, Learned(7)).max_positions == Embed(Concatenated(4, Learned(7))).max_positions == 7
    assert Rotary().grown(100) == Rotary()


@dataclass(frozen=True)
class Ramp(EmbeddingPosition):
    """A position of a user's own: its number, in every dimension."""

    def build(self, width: int) -> EmbeddingPositionLayer:
        return RampLayer()


class RampLayer(EmbeddingPositionLayer):
    def table(self, positions: torch.Tensor) -> torch.Tensor:
        return positions[..., None].float()


def test_a_position_of_ones_own_needs_only_its_base_class():
    embed = Embed(Ramp()).build(8, 20)
    ids = torch.randint(20, (1, 4))
    assert torch.equal(embed(ids, Context()), embed.table(ids) + torch.arange(4.0)[:, None])
    assert torch.equal(embed.position.curves(torch.arange(3)).values, torch.arange(3.0)[:, None])
    with pytest.raises(InputError, match="ramp attaches to the embedding, not to the stack"):
        stack(Ramp())
