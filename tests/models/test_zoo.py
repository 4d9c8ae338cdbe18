"""The zoo against the papers, and against an independent implementation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.feedforward import FeedForward
from regard.layers.join import PostNorm
from regard.layers.positions import Concatenated, Sinusoid
from regard.models import zoo
from regard.models.model import Model, Network
from regard.schema import from_dict, to_dict
from tests.laws.zoo import MODELS


def parameters(network: Network) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_the_base_transformer_has_the_papers_parameters():
    width, inner, vocabulary = 512, 2048, 37_000
    attention = 4 * (width * width + width)
    feed = width * inner + inner + inner * width + width
    norm = 2 * width
    encoder = 6 * (attention + norm + feed + norm)
    decoder = 6 * (attention + norm + attention + norm + feed + norm)
    by_hand = encoder + decoder + vocabulary * width
    with torch.device("meta"):
        assert parameters(zoo.transformer().build(vocabulary)) == by_hand == 63_082_496


def test_the_base_transformer_has_the_papers_layers():
    description = zoo.transformer()
    encoder, decoder = description.encoder, description.decoder
    assert (description.width, len(encoder.layers), len(decoder.layers)) == (512, 6, 6)
    assert [part.name for part in encoder.layers[0]] == ["self", "feedforward"]
    assert [part.name for part in decoder.layers[0]] == ["self", "cross", "feedforward"]
    assert encoder.layers[0][0].heads == 8
    assert encoder.layers[0][1] == FeedForward(2048, "relu")
    assert decoder.layers[0][0].pattern.causal
    assert not encoder.layers[0][0].pattern.causal
    assert encoder.join == PostNorm()
    assert (encoder.dropout, description.embed.dropout) == (0.1, 0.1)
    assert description.embed.scaled
    assert description.embed.position == Sinusoid()
    network = description.build(50)
    assert network.readout.lm_head.weight is network.embed.table.weight is network.source_embed.table.weight


@pytest.mark.parametrize(
    ("tied", "shared", "tables"), [(True, True, 1), (True, False, 2), (False, True, 2), (False, False, 3)]
)
def test_embeddings_are_tied_two_and_three_ways(tied: bool, shared: bool, tables: int):
    network = zoo.transformer(8, 1, 2, tied=tied, shared=shared).build(50)
    weights = [network.embed.table.weight, network.source_embed.table.weight, network.readout.lm_head.weight]
    assert len({id(weight) for weight in weights}) == tables


def test_two_vocabularies_have_two_embedding_tables():
    network = zoo.transformer(8, 1, 2).build(50, 70)
    assert network.source_embed.table.num_embeddings == 70
    assert network(torch.tensor([[1, 2]]), source_ids=torch.tensor([[69, 3]])).shape == (1, 2, 50)


def theirs(width: int, heads: int, inner: int, depth: int) -> nn.Transformer:
    return nn.Transformer(
        width, heads, depth, depth, inner, dropout=0.0, batch_first=True,
    ).eval()  # fmt: skip


def copy_into(network: Network, other: nn.Transformer) -> None:
    """Torch's own Transformer as the oracle: the same weights under other names."""
    pairs: list[tuple[nn.Module, nn.Module]] = []

    def attention(ours: nn.Module, them: nn.MultiheadAttention, cross: bool) -> None:
        width = them.embed_dim
        if cross:
            ours.query.weight.copy_(them.in_proj_weight[:width])
            ours.query.bias.copy_(them.in_proj_bias[:width])
            ours.key_value.weight.copy_(them.in_proj_weight[width:])
            ours.key_value.bias.copy_(them.in_proj_bias[width:])
        else:
            ours.query_key_value.weight.copy_(them.in_proj_weight)
            ours.query_key_value.bias.copy_(them.in_proj_bias)
        pairs.append((ours.out, them.out_proj))

    for side, layers in ((network.encoder, other.encoder.layers), (network.decoder, other.decoder.layers)):
        for ours, them in zip(side.layers, layers):
            attention(ours["self"].sublayer, them.self_attn, False)
            pairs.append((ours["self"].norm, them.norm1))
            if "cross" in ours:
                attention(ours["cross"].sublayer, them.multihead_attn, True)
                pairs.append((ours["cross"].norm, them.norm2))
            pairs.append((ours["feedforward"].norm, them.norm3 if "cross" in ours else them.norm2))
            pairs.append((ours["feedforward"].sublayer.up, them.linear1))
            pairs.append((ours["feedforward"].sublayer.down, them.linear2))
    for ours, them in pairs:
        ours.weight.copy_(them.weight)
        ours.bias.copy_(them.bias)


@pytest.mark.filterwarnings("ignore:.*nested.tensor")
@pytest.mark.parametrize(("width", "heads", "inner", "depth"), [(24, 3, 20, 2), (12, 4, 50, 1), (16, 1, 16, 3)])
def test_the_stacks_compute_what_torchs_own_transformer_does(width: int, heads: int, inner: int, depth: int):
    torch.manual_seed(1)
    network = zoo.transformer(width, depth, heads, inner=inner).build(40).eval()
    other = theirs(width, heads, inner, depth)
    other.encoder.norm = other.decoder.norm = None  # the paper has no norm after the last layer
    with torch.no_grad():
        copy_into(network, other)
        ids, source_ids = torch.randint(3, 40, (4, 7)), torch.randint(3, 40, (4, 9))
        padding = torch.arange(9) < torch.tensor([9, 3, 1, 6])[:, None]
        ours = network(ids, source_ids=source_ids, source_padding=padding)

        def embedded(tokens: Tensor) -> Tensor:
            position = torch.arange(tokens.shape[1], dtype=torch.float)[:, None]
            angles = position / 10_000 ** (torch.arange(0, width, 2) / width)
            return network.embed.table(tokens) * width**0.5 + torch.cat([angles.sin(), angles.cos()], 1)

        states = other(
            embedded(source_ids), embedded(ids), tgt_mask=nn.Transformer.generate_square_subsequent_mask(7),
            src_key_padding_mask=~padding, memory_key_padding_mask=~padding,
        )  # fmt: skip
        expected = states @ network.embed.table.weight.T
    assert (ours - expected).abs().max() < 1e-5 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("name", MODELS)
def test_a_description_survives_being_saved(name: str):
    assert from_dict(Model, to_dict(MODELS[name]), where="here") == MODELS[name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"width": 10, "heads": 3}, "not divisible by 3 heads"), ({"width": 9, "heads": 3}, "even width"),
     ({"width": 8, "heads": 2, "position": Concatenated(8)}, "leaves no room")],
)  # fmt: skip
def test_impossible_widths_are_refused_with_a_remedy(arguments: dict, message: str):
    with pytest.raises(InputError, match=message):
        zoo.transformer(**arguments).build(10)
