"""Nearest neighbours against all cosines computed at once; positional encodings against the network's own."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from regard.data.tasks.masked_lm import ordinary_tokens
from regard.data.tokenize.train import BPE
from regard.layers.embedding import Embed
from regard.layers.positions import Axial, Concatenated, Learned, RelativeBias, Rotary, Sinusoid
from regard.models import zoo
from regard.models.model import Network
from regard.show import embeddings as module
from regard.show.embeddings import nearest_neighbours, position_tables
from tests.laws.zoo import MODELS, SMALL, WIDTH, build
from tests.small import TEXTS, WORDPIECE, small

pytestmark = pytest.mark.usefixtures("no_gradients")

ORDINARY = ordinary_tokens(WORDPIECE)
IDS = [WORDPIECE.bos, *WORDPIECE.encode("the cat sat on the mat"), WORDPIECE.eos]


def expected(weight: torch.Tensor, token: int, count: int = 8) -> list[tuple[str, float]]:
    """The nearest ordinary tokens without the token itself."""
    cosines = F.cosine_similarity(weight[token][None], weight)
    ordinary = [n for n in range(WORDPIECE.vocabulary) if ORDINARY[n] and n != token]
    best = sorted(ordinary, key=lambda n: -float(cosines[n]))[:count]
    return [(WORDPIECE.token_texts([n])[0], float(cosines[n])) for n in best]


def check(found: list, weight: torch.Tensor, ids: list[int], count: int = 8) -> None:
    assert len(found) == len(ids)
    for token, row in zip(ids, found):
        texts, cosines = zip(*expected(weight, token, count))
        assert [text for text, _ in row] == list(texts)
        assert [cosine for _, cosine in row] == pytest.approx(cosines, abs=1e-5)


@pytest.mark.parametrize("name", [name for name in MODELS if not MODELS[name].embed.characters])
def test_the_nearest_neighbours_have_the_highest_cosines(name: str):
    network = small(MODELS[name]).network
    found = json.loads(json.dumps(nearest_neighbours(network, WORDPIECE, IDS, side="decoder_input"), allow_nan=False))
    check(found, network.embed.table.weight, IDS)


def test_each_side_has_its_own_embedding():
    network = small(zoo.transformer(16, 1, 2, shared=False)).network
    check(nearest_neighbours(network, WORDPIECE, IDS, side="source"), network.source_embed.table.weight, IDS)
    check(nearest_neighbours(network, WORDPIECE, IDS, side="target"), network.embed.table.weight, IDS)
    assert nearest_neighbours(network, WORDPIECE, IDS, side="source") != nearest_neighbours(
        network, WORDPIECE, IDS, side="decoder_input"
    )


def test_a_large_vocabulary_is_compared_in_blocks(monkeypatch: pytest.MonkeyPatch):
    network = small(zoo.gpt2(16, 1, 2)).network
    monkeypatch.setattr(module, "_ROWS", 7)
    monkeypatch.setattr(module, "_QUERIES", 3)
    check(
        nearest_neighbours(network, WORDPIECE, IDS, side="decoder_input", count=5), network.embed.table.weight, IDS, 5
    )


def test_a_small_vocabulary_returns_all_its_tokens():
    network = small(zoo.gpt2(16, 1, 2)).network
    ordinary = int(ORDINARY.sum())
    found = nearest_neighbours(network, WORDPIECE, [IDS[0], IDS[1]], side="decoder_input", count=500)
    assert [len(row) for row in found] == [ordinary, ordinary - 1]


def test_rows_beyond_the_vocabulary_are_no_neighbours():
    tokenizer = BPE(270).train(TEXTS * 4)
    network = zoo.gpt2(16, 1, 2).build(300)
    network.embed.table.weight[270:] = network.embed.table.weight[100]
    (row,) = nearest_neighbours(network, tokenizer, [100], side="decoder_input")
    assert len(row) == 8
    assert all(cosine < 0.9999 for _, cosine in row)


def test_no_tokens_have_no_neighbours_and_characters_no_table():
    assert nearest_neighbours(small(zoo.gpt2(16, 1, 2)).network, WORDPIECE, [], side="decoder_input") == []
    assert nearest_neighbours(zoo.elmo("small", width=16, inner=8).build(40), WORDPIECE, IDS, side="source") is None


def named(network: Network, length: int = 6) -> dict[str, dict]:
    return {entry["name"]: entry for entry in position_tables(network, length)}


def test_sinusoids_are_those_of_the_paper():
    (entry,) = position_tables(build("transformer"), 9)
    assert (entry["name"], entry["kind"], entry["first"]) == ("encoder and decoder: sinusoid", "table", 0)
    for position, row in enumerate(entry["table"].tolist()):
        angles = [position / 10_000 ** (i / (WIDTH // 2)) for i in range(WIDTH // 2)]
        assert row == pytest.approx([*map(math.sin, angles), *map(math.cos, angles)], abs=1e-6)


def test_learned_tables_belong_to_one_side():
    network = build("pre-norm")
    found = named(network)
    assert list(found) == ["encoder: learned", "decoder: learned"]
    assert torch.equal(found["encoder: learned"]["table"], network.source_embed.position.weight[:6])
    assert torch.equal(found["decoder: learned"]["table"], network.embed.position.weight[:6])
    assert list(named(build("bert"))) == ["encoder: learned"]
    assert list(named(build("gpt2"))) == ["decoder: learned"]


def test_axial_tables_concatenate_rows_and_columns():
    network = build("gpt2, axial, side by side")
    table, position = named(network, 30)["decoder: axial"]["table"], network.embed.position
    for at in (0, 6, 7, 29):
        assert torch.equal(table[at], torch.cat([position.rows[at // 7], position.columns[at % 7]]))


def test_a_concatenated_position_has_its_own_width():
    assert named(build("concatenated"))["encoder and decoder: concatenated"]["table"].shape == (6, 8)
    learned = zoo.gpt2(**SMALL, position=Concatenated(8, Learned(5))).build(40)
    table = named(learned)["decoder: concatenated"]["table"]
    assert torch.equal(table, learned.embed.position.inner.weight)


def test_a_rotary_table_rotates_queries_as_the_layer_does():
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


def test_a_reformer_rotates_in_its_local_layers_only():
    found = named(build("reformer, several rounds"))
    assert list(found) == ["decoder: sinusoid", "decoder: rotary in layer 0"]
    assert list(named(build("windowed"))) == ["decoder: rotary"]


@pytest.mark.parametrize("name", ["relative bias", "gpt2, relative bias", "bert, reversible, relative bias"])
def test_a_bias_is_the_one_added_to_the_scores(name: str):
    network, along = build(name), torch.arange(12)
    for entry in position_tables(network, 12):
        stack, what = entry["name"].split(": ")
        layer = getattr(network, stack).position
        assert (what, entry["kind"]) == ("relative bias", "bias")
        matrix = layer(along, along)[0]
        causal = stack == "decoder"
        assert (entry["table"].shape, entry["first"]) == (((3, 12), 0) if causal else ((3, 23), -11))
        for query in range(12):
            for key in range(query + 1 if causal else 12):
                distance = query - key if causal else key - query
                assert torch.equal(entry["table"][:, distance - entry["first"]], matrix[:, query, key])
    assert len(position_tables(network, 12)) == (2 if name == "relative bias" else 1)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_position_tables_or_no_positional_encoding(name: str):
    network = build(name)
    recurrent = name.startswith(("seq2seq", "bahdanau", "luong", "sha-rnn", "lstm", "elmo", "gated"))
    for length in (1, 40):
        found = position_tables(network, length)
        assert (found == []) == (recurrent or name in ("gpt2, additive", "convs2s, even kernel"))
        for entry in found:
            assert entry["table"].isfinite().all()
            columns = entry["kind"] == "bias"
            assert entry["table"].shape[1 if columns else 0] in ((length, 2 * length - 1) if columns else (length,))


def test_there_are_512_positions_at_most_and_no_more_than_were_trained():
    assert named(build("gpt2"), 5_000)["decoder: learned"]["table"].shape == (512, WIDTH)
    assert named(build("bert"), 5_000)["encoder: learned"]["table"].shape == (64, WIDTH)
    assert named(build("relative bias"), 5_000)["decoder: relative bias"]["table"].shape == (3, 512)
    long = replace(zoo.gpt2(**SMALL), embed=Embed(Axial((9, 20)))).build(40)
    assert named(long, 5_000)["decoder: axial"]["table"].shape == (180, WIDTH)


def test_character_embeddings_have_no_positions():
    assert position_tables(zoo.elmo("small", width=16, inner=8).build(40), 5) == []
    assert [entry["kind"] for entry in position_tables(zoo.gpt2(**SMALL, position=Sinusoid()).build(40), 5)] == [
        "table"
    ]
    assert position_tables(zoo.t5(**SMALL, position=RelativeBias(8, 20)).build(40), 0) == []
