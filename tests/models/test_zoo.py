"""The zoo against the papers, and against an independent implementation."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.embedding import CharacterCNN, Embed
from regard.layers.feedforward import FeedForward
from regard.layers.join import PostNorm
from regard.layers.positions import Concatenated, Sinusoid
from regard.models import zoo
from regard.models.model import Model, Network, Stack
from regard.schema import from_dict, to_dict
from tests.laws.zoo import MODELS


def parameters(network: nn.Module) -> int:
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
    return nn.Transformer(width, heads, depth, depth, inner, dropout=0.0, batch_first=True).eval()


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


CHARACTERS = CharacterCNN(12, 4, filters=((1, 8), (2, 8), (3, 8)), highways=1, characters=6)
WORDS = 20


def small_elmo(embed: CharacterCNN | Embed = CHARACTERS, clip: float | None = 3.0) -> Network:
    torch.manual_seed(0)
    return zoo.elmo(width=32, inner=48, embed=embed, clip=clip, dropout=0.0).build(WORDS)


def counting_texts(characters: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Texts that count upwards from anywhere, so that a word determines both its neighbours."""
    draw = torch.Generator().manual_seed(1)
    starts = torch.randint(WORDS, (16, 1), generator=draw)
    words = (starts + torch.arange(9)) % WORDS
    padding = torch.arange(9) < torch.randint(3, 10, (16, 1), generator=draw)
    targets = torch.stack([words.roll(-1, 1), words.roll(1, 1)], dim=-1)
    targets[:, 0, 1] = -100
    targets[~padding] = -100
    targets[torch.arange(16), padding.sum(1) - 1, 0] = -100
    table = torch.randint(1, 12, (WORDS, 6), generator=draw)
    return {"ids": table[words] if characters else words, "padding": padding}, targets


@pytest.mark.parametrize(("size", "millions"), [("small", 13.6), ("medium", 28.0), ("original", 93.6)])
def test_the_sizes_of_elmo_are_the_published_ones(size: str, millions: float):
    with torch.device("meta"):
        network = zoo.elmo(size).build(1)
    count = parameters(network) - parameters(network.readout)
    # The published count leaves out the second bias that torch's cells have.
    spare = sum(p.numel() for name, p in network.named_parameters() if "bias_hh" in name)
    assert round((count - spare) / 1e6, 1) == millions


@pytest.mark.parametrize("embed", [CHARACTERS, Embed()])
@pytest.mark.parametrize("clip", [3.0, None])
def test_training_elmo_fits_both_neighbours_of_each_word(embed: CharacterCNN | Embed, clip: float | None):
    network = small_elmo(embed, clip)
    inputs, targets = counting_texts(isinstance(embed, CharacterCNN))
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    count = int((targets >= 0).sum())
    first = float(network.loss(inputs, targets).detach()) / count
    for _ in range(60):
        optimizer.zero_grad()
        loss = network.loss(inputs, targets) / count
        loss.backward()
        optimizer.step()
    assert first > 2.0
    assert float(loss.detach()) < 0.3
    logits = network(**inputs)
    assert logits.shape == (16, 9, 2, WORDS)
    right = logits.argmax(-1) == targets
    assert right[targets >= 0].float().mean() > 0.95


def test_neither_direction_of_elmo_sees_its_target():
    network = small_elmo().eval()
    inputs, _ = counting_texts(True)
    ids = inputs["ids"][:1]
    changed = ids.clone()
    changed[0, 4] = 12 - changed[0, 4]
    with torch.no_grad():
        before, after = network(ids), network(changed)
    assert before[0, :4, 0].equal(after[0, :4, 0])
    assert before[0, 5:, 1].equal(after[0, 5:, 1])
    assert not before[0, 5:, 0].allclose(after[0, 5:, 0])
    assert not before[0, :4, 1].allclose(after[0, :4, 1])


def test_the_description_of_elmo_survives_being_saved():
    model = zoo.elmo("small")
    assert from_dict(Model, to_dict(model), where="here") == model


def test_token_ids_instead_of_characters_are_refused():
    with pytest.raises(InputError, match="reads the 6 characters per word"):
        small_elmo()(torch.ones(2, 3, dtype=torch.long))


COUNTS = ("width", "depth", "heads", "inner", "decoder_depth", "key_width", "kernel_width")
SIZES = [
    (name, key) for name in zoo.__all__ for key in COUNTS if key in inspect.signature(getattr(zoo, name)).parameters
]


@pytest.mark.parametrize("count", [0, -3, 10**12])
@pytest.mark.parametrize(("name", "key"), SIZES)
def test_no_size_of_a_model_is_zero_negative_or_absurd(name: str, key: str, count: int):
    with pytest.raises(InputError, match=rf"^{key} must be (1 or more|at most [\d,]+), got {count:,}"):
        getattr(zoo, name)(**{key: count})


def test_a_stack_has_at_most_1000_layers():
    attention = zoo.gpt2(8, 1, 2).decoder.layers[0]
    with pytest.raises(InputError, match="depth must be at most 1,000, got 20,000"):
        Stack(20_000 * (attention,), PostNorm())
