"""Words read by their characters, against the same by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.errors import InputError
from regard.layers.character_cnn import Highway, Spelled, SpelledLayer
from regard.layers.contract import Context

SPELLED = Spelled(characters=9, inner=3, filters=((1, 4), (3, 5)), highways=2, letters=6)
WIDTH = 8


def built(description: Spelled = SPELLED, width: int = WIDTH) -> SpelledLayer:
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
    layer = built(Spelled(9, 3, ((1, 4), (3, 5)), 2, activation, 6))
    ids = words(2, 3)
    found = layer(ids, Context())
    for row in range(2):
        for place in range(3):
            vectors = layer.table.weight[ids[row, place]]
            strongest = []
            for (over, count), one in zip(SPELLED.filters, layer.filters):
                for number in range(count):
                    answers = [
                        (one.weight[number] * vectors[start : start + over].T).sum() + one.bias[number]
                        for start in range(6 - over + 1)
                    ]
                    strongest.append(max(answers))
            x = getattr(torch, activation)(torch.stack(strongest))
            for high in layer.highways:
                gate = torch.sigmoid(high.gate.weight @ x + high.gate.bias)
                x = gate * torch.relu(high.change.weight @ x + high.change.bias) + (1 - gate) * x
            x = layer.projection.weight @ x + layer.projection.bias
            torch.testing.assert_close(found[row, place], torch.cat([x, x]), atol=1e-5, rtol=1e-5)


def test_an_open_gate_lets_the_change_through_and_a_closed_one_lets_it_by():
    high, x = Highway(4), torch.randn(2, 4)
    torch.nn.init.constant_(high.gate.bias, 100.0)
    torch.testing.assert_close(high(x), high.change(x).relu())
    torch.nn.init.constant_(high.gate.bias, -100.0)
    torch.testing.assert_close(high(x), x)


def test_a_word_is_the_same_wherever_it_stands():
    layer, ids = built(), words(2, 4)
    apart = layer(ids[1:, 2:3], Context())
    torch.testing.assert_close(layer(ids, Context())[1:, 2:3], apart)
    assert layer(ids.to(torch.int16), Context()).equal(layer(ids, Context()))


def test_padding_learns_nothing():
    layer, ids = built(), words(2, 4)
    ids[:, 2:] = 0
    layer(ids, Context()).sum().backward()
    assert layer.table.weight.grad is not None
    assert not layer.table.weight.grad[0].any()
    assert layer.table.weight.grad[1:].any()
    assert not SPELLED.build(WIDTH, 0).table.weight[0].any()


def test_without_a_projection_the_filters_are_as_many_as_the_width():
    layer = built(Spelled(9, 3, ((1, 4), (3, 4)), 0, letters=6, copies=1))
    assert {name.split(".")[0] for name, _ in layer.named_parameters()} == {"table", "filters"}
    assert layer(words(2, 3), Context()).shape == (2, 3, 8)


def test_dropout_treats_the_copies_apart():
    layer = Spelled(9, 3, ((1, 4),), 0, letters=6, dropout=0.5).build(64, 0)
    torch.nn.init.constant_(layer.projection.bias, 5.0)
    first, second = layer(words(1, 9), Context()).chunk(2, dim=-1)
    assert not first.equal(second)


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ({"filters": ()}, "at least one filter"),
        ({"filters": ((7, 3),), "letters": 6}, "3 over 7 characters of 6"),
        ({"filters": ((2, 0),)}, "0 over 2 characters"),
        ({"copies": 0}, "copies must be 1 or more"),
        ({"highways": -1}, "highways must be 0 or more"),
    ],
)
def test_what_cannot_be_is_refused(description: dict[str, object], said: str):
    with pytest.raises(InputError, match=said):
        Spelled(**description)


def test_ids_of_words_are_refused():
    with pytest.raises(InputError, match="the 6 characters of each word, not ids of 2x3"):
        built()(torch.ones(2, 3, dtype=torch.long), Context())
    with pytest.raises(InputError, match=r"do not fill a width of 7. Try width = 8"):
        SPELLED.build(7, 0)
