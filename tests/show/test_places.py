"""Tables of positions: what the page shows is what the network adds, turns by, or weighs with."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from regard.layers.embedding import Embed
from regard.layers.positions import Axial, Concatenated, Learned, RelativeBias, Rotary, Sinusoid
from regard.models import zoo
from regard.models.model import Network
from regard.show.positions import positions
from tests.laws.zoo import MODELS, SMALL, WIDTH, build


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def named(network: Network, length: int = 6) -> dict[str, dict]:
    return {place["name"]: place for place in positions(network, length)}


def test_sinusoids_are_the_papers():
    (place,) = positions(build("transformer"), 9)
    assert (place["name"], place["kind"], place["first"]) == ("encoder and decoder: sinusoid", "table", 0)
    for position, row in enumerate(place["table"].tolist()):
        angles = [position / 10_000 ** (i / (WIDTH // 2)) for i in range(WIDTH // 2)]
        assert row == pytest.approx([*map(math.sin, angles), *map(math.cos, angles)], abs=1e-6)


def test_learnt_tables_are_each_sides_own():
    network = build("pre-norm")
    found = named(network)
    assert list(found) == ["encoder: learned", "decoder: learned"]
    assert torch.equal(found["encoder: learned"]["table"], network.source_embed.position.weight[:6])
    assert torch.equal(found["decoder: learned"]["table"], network.embed.position.weight[:6])
    assert list(named(build("bert"))) == ["encoder: learned"]
    assert list(named(build("gpt2"))) == ["decoder: learned"]


def test_a_grid_puts_rows_beside_columns():
    network = build("gpt2, axial, side by side")
    table, position = named(network, 30)["decoder: axial"]["table"], network.embed.position
    for place in (0, 6, 7, 29):
        assert torch.equal(table[place], torch.cat([position.rows[place // 7], position.columns[place % 7]]))


def test_what_stands_beside_the_embedding_is_as_wide_as_it_is():
    assert named(build("concatenated"))["encoder and decoder: concatenated"]["table"].shape == (6, 8)
    learned = zoo.gpt2(**SMALL, position=Concatenated(8, Learned(5))).build(40)
    table = named(learned)["decoder: concatenated"]["table"]
    assert torch.equal(table, learned.embed.position.inner.weight)


def test_a_rotary_table_turns_queries_as_the_layer_does():
    network = build("rotary")
    found = named(network)
    assert list(found) == ["encoder: rotary", "decoder: rotary"]
    table, rotary = found["decoder: rotary"]["table"], Rotary().build(8)
    cosines, sines = table.chunk(2, dim=-1)
    x = torch.randn(1, 1, 6, 8)
    first, second = x[0, 0].chunk(2, dim=-1)
    turned = torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
    torch.testing.assert_close(rotary(x, torch.arange(6))[0, 0], turned)
    assert found["decoder: rotary"]["kind"] == "rotary"


def test_a_reformer_turns_in_its_local_layers_only():
    found = named(build("reformer, several rounds"))
    assert list(found) == ["decoder: sinusoid", "decoder: rotary in layer 0"]
    assert list(named(build("windowed"))) == ["decoder: rotary"]


@pytest.mark.parametrize("name", ["relative bias", "gpt2, relative bias", "bert, reversible, relative bias"])
def test_a_bias_is_what_is_added_to_the_scores(name: str):
    network, along = build(name), torch.arange(12)
    for place in positions(network, 12):
        stack, what = place["name"].split(": ")
        layer = getattr(network, stack).bias
        assert (what, place["kind"]) == ("relative bias", "bias")
        matrix = layer(along, along)[0]
        causal = stack == "decoder"
        assert (place["table"].shape, place["first"]) == (((3, 12), 0) if causal else ((3, 23), -11))
        for query in range(12):
            for key in range(query + 1 if causal else 12):
                distance = query - key if causal else key - query
                assert torch.equal(place["table"][:, distance - place["first"]], matrix[:, query, key])
    assert len(positions(network, 12)) == (2 if name == "relative bias" else 1)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_says_where_its_tokens_stand_or_knows_no_positions(name: str):
    network = build(name)
    recurrent = name.startswith(("seq2seq", "bahdanau", "luong", "sha-rnn", "lstm", "elmo"))
    for length in (1, 40):
        found = positions(network, length)
        assert (found == []) == (recurrent or name == "gpt2, additive")
        for place in found:
            assert place["table"].isfinite().all()
            columns = place["kind"] == "bias"
            assert place["table"].shape[1 if columns else 0] in ((length, 2 * length - 1) if columns else (length,))


def test_there_are_512_positions_at_most_and_no_more_than_were_learnt():
    assert named(build("gpt2"), 5_000)["decoder: learned"]["table"].shape == (512, WIDTH)
    assert named(build("bert"), 5_000)["encoder: learned"]["table"].shape == (64, WIDTH)
    assert named(build("relative bias"), 5_000)["decoder: relative bias"]["table"].shape == (3, 512)
    long = replace(zoo.gpt2(**SMALL), embed=Embed(Axial((9, 20)))).build(40)
    assert named(long, 5_000)["decoder: axial"]["table"].shape == (180, WIDTH)


def test_letters_have_no_positions():
    assert positions(zoo.elmo("small", width=16, inner=8).build(40), 5) == []
    assert [place["kind"] for place in positions(zoo.gpt2(**SMALL, position=Sinusoid()).build(40), 5)] == ["table"]
    assert positions(zoo.t5(**SMALL, position=RelativeBias(8, 20)).build(40), 0) == []
