"""The character CNN against the same computation written out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.errors import InputError
from regard.layers.contract import Context
from regard.layers.embedding import CharacterCNN, CharacterCNNLayer, Highway

SMALL = CharacterCNN(9, 3, filters=((1, 4), (3, 5)), highways=2, characters=6)
WIDTH = 8


def built(description: CharacterCNN = SMALL, width: int = WIDTH) -> CharacterCNNLayer:
    torch.manual_seed(3)
    layer = description.build(width, vocabulary=0).eval()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    with torch.no_grad():
        layer.table.weight[0] = 0.0
    return layer


def words(*shape: int) -> Tensor:
    return torch.randint(1, 9, (*shape, 6), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_word_is_filtered_pooled_highwayed_and_projected(activation: str):
    layer = built(CharacterCNN(9, 3, ((1, 4), (3, 5)), 2, activation, 6))
    ids = words(2, 3)
    found = layer(ids, Context())
    for row in range(2):
        for position in range(3):
            vectors = layer.table.weight[ids[row, position]]
            pooled = []
            for (filter_width, count), convolution in zip(SMALL.filters, layer.filters):
                for number in range(count):
                    weight, bias = convolution.weight[number], convolution.bias[number]
                    windows = [vectors[start : start + filter_width].T for start in range(6 - filter_width + 1)]
                    pooled.append(max((weight * window).sum() + bias for window in windows))
            x = getattr(torch, activation)(torch.stack(pooled))
            for highway in layer.highways:
                gate = torch.sigmoid(highway.transform_gate.weight @ x + highway.transform_gate.bias)
                transformed = torch.relu(highway.transform.weight @ x + highway.transform.bias)
                x = gate * transformed + (1 - gate) * x
            x = layer.projection.weight @ x + layer.projection.bias
            torch.testing.assert_close(found[row, position], torch.cat([x, x]), atol=1e-5, rtol=1e-5)


def test_an_open_transform_gate_transforms_and_a_closed_one_carries():
    highway, x = Highway(4), torch.randn(2, 4)
    torch.nn.init.constant_(highway.transform_gate.bias, 100.0)
    torch.testing.assert_close(highway(x), highway.transform(x).relu())
    torch.nn.init.constant_(highway.transform_gate.bias, -100.0)
    torch.testing.assert_close(highway(x), x)


def test_a_word_has_the_same_vector_at_every_position():
    layer, ids = built(), words(2, 4)
    isolated = layer(ids[1:, 2:3], Context())
    torch.testing.assert_close(layer(ids, Context())[1:, 2:3], isolated)
    assert layer(ids.to(torch.int16), Context()).equal(layer(ids, Context()))


def test_padding_has_no_gradient():
    layer, ids = built(), words(2, 4)
    ids[:, 2:] = 0
    layer(ids, Context()).sum().backward()
    assert layer.table.weight.grad is not None
    assert not layer.table.weight.grad[0].any()
    assert layer.table.weight.grad[1:].any()
    assert not SMALL.build(WIDTH, 0).table.weight[0].any()


def test_as_many_filters_as_the_width_need_no_projection():
    layer = built(CharacterCNN(9, 3, ((1, 4), (3, 4)), 0, characters=6, copies=1))
    assert {name.split(".")[0] for name, _ in layer.named_parameters()} == {"table", "filters"}
    assert layer(words(2, 3), Context()).shape == (2, 3, 8)


def test_the_copies_have_independent_dropout():
    layer = CharacterCNN(9, 3, ((1, 4),), 0, characters=6, dropout=0.5).build(64, 0)
    torch.nn.init.constant_(layer.projection.bias, 5.0)
    first, second = layer(words(1, 9), Context()).chunk(2, dim=-1)
    assert not first.equal(second)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"filters": ()}, "filters is empty"),
        ({"filters": ((7, 3),), "characters": 6}, "3 filters of width 7 over 6 characters"),
        ({"filters": ((2, 0),)}, "0 filters of width 2"),
        ({"copies": 0}, "copies must be 1 or more"),
        ({"highways": -1}, "highways must be 0 or more"),
    ],
)
def test_impossible_settings_are_refused(description: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        CharacterCNN(**description)


def test_token_ids_are_refused():
    with pytest.raises(InputError, match="the 6 characters per word, not ids of shape 2x3"):
        built()(torch.ones(2, 3, dtype=torch.long), Context())
    with pytest.raises(InputError, match=r"width 7 is not divisible by 2 copies. Try width = 8"):
        SMALL.build(7, 0)
