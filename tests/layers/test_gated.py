"""The parts of SHA-RNN do what their paper says, and remember no more than they see."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import InputError
from regard.layers.contract import Context
from regard.layers.feedforward import Boom
from regard.layers.gated_attention import GatedAttention, GatedAttentionLayer
from regard.layers.join import TwinNorm
from regard.layers.patterns import Window
from regard.models import zoo

WIDTH = 12


def attention(heads: int, window: int) -> GatedAttentionLayer:
    torch.manual_seed(1)
    layer = GatedAttention(heads, Window(window)).build(WIDTH)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    return layer


def published(layer: GatedAttentionLayer, x: Tensor, heads: int, window: int) -> Tensor:
    """As the paper's equations have it: gates on queries, keys and values, then softmax over the last tokens."""
    wide = layer.value.weight @ layer.value_gate.sigmoid() + layer.value.bias
    value_gate = wide[WIDTH:].sigmoid() * wide[:WIDTH].tanh()
    q = layer.norm(F.linear(x, layer.query.weight, layer.query.bias)) * layer.query_gate.sigmoid()
    k, v = x * layer.key_gate.sigmoid(), x * value_gate
    apart = []
    for one in range(heads):
        part = slice(one * WIDTH // heads, (one + 1) * WIDTH // heads)
        energy = q[..., part] @ k[..., part].transpose(1, 2) / (WIDTH / heads) ** 0.5
        behind = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        energy = energy.masked_fill((behind < 0) | (behind >= window), -torch.inf)
        apart.append(energy.softmax(-1) @ v[..., part])
    return torch.cat(apart, dim=-1)


@pytest.mark.parametrize(("heads", "window"), [(1, 100), (3, 100), (2, 4)])
def test_gates_stand_where_the_paper_has_them(heads: int, window: int):
    layer, x = attention(heads, window), torch.randn(2, 9, WIDTH)
    y, kept = layer(x, Context())
    torch.testing.assert_close(y, published(layer, x, heads, window))
    assert kept is None


def test_every_gate_learns():
    layer = attention(1, 5)
    layer(torch.randn(2, 9, WIDTH), Context())[0].square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in layer.parameters())


@pytest.mark.parametrize("piece", [1, 3, 40])
def test_what_is_remembered_does_not_grow_with_the_text(piece: int):
    window = 16
    layer, x = attention(1, window), torch.randn(2, 400, WIDTH)
    parts, memory = [], None
    with torch.no_grad():
        for start in range(0, 400, piece):
            y, memory = layer(x[:, start : start + piece], Context(start=start, remember=True), memory)
            parts.append(y)
            assert memory.states.shape[1] <= 3 * window + piece
        torch.testing.assert_close(torch.cat(parts, dim=1), layer(x, Context())[0])


def test_rows_of_unequal_length_keep_what_each_still_sees():
    layer, x = attention(1, 4), torch.randn(2, 30, WIDTH)
    lengths = torch.tensor([3, 20])
    seen = torch.arange(20) < lengths[:, None]
    with torch.no_grad():
        _, memory = layer(x[:, :20], Context(padding=seen, remember=True))
        assert int(memory.first[0]) == 0, "the short row still sees its first token"
        for step in range(9):
            token = x[torch.arange(2), lengths + step][:, None]
            y, memory = layer(token, Context(start=lengths + step, end=21 + step, remember=True), memory)
        assert int(memory.first[0]) > 0
        for row, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(y[row, 0], layer(x[row : row + 1, : length + 9], Context())[0][0, -1])


def test_boom_sums_the_parts_of_its_inside():
    torch.manual_seed(1)
    layer, x = Boom(3 * WIDTH).build(WIDTH), torch.randn(2, 5, WIDTH)
    inside = F.gelu(F.linear(x, layer.up.weight, layer.up.bias))
    summed = inside[..., :WIDTH] + inside[..., WIDTH : 2 * WIDTH] + inside[..., 2 * WIDTH :]
    torch.testing.assert_close(layer(x, Context())[0], summed)
    assert sum(parameter.numel() for parameter in layer.parameters()) == 3 * WIDTH * (WIDTH + 1)


def test_a_twin_norm_norms_the_stream_too():
    torch.manual_seed(1)
    joined, x = TwinNorm().build(Boom(WIDTH).build(WIDTH), WIDTH, 0.0), 7 + 3 * torch.randn(2, 5, WIDTH)
    with torch.no_grad():
        joined.norm.weight.fill_(2.0)
        joined.stream.bias.fill_(0.5)
    normed = F.layer_norm(x, (WIDTH,), eps=1e-12)
    torch.testing.assert_close(joined(x, Context())[0], normed + 0.5 + joined.sublayer(2 * normed, Context())[0])


def test_the_paper_has_one_head_before_the_last_layer():
    def attending(**arguments: object) -> list[int]:
        layers = zoo.sha_rnn(WIDTH, **arguments).decoder.layers
        return [place for place, layer in enumerate(layers) if "self" in [part.name for part in layer]]

    assert attending() == [2]
    assert attending(depth=1) == [0]
    assert attending(attention="all") == [0, 1, 2, 3]
    assert attending(attention=()) == []
    assert attending(attention=(0, 3)) == [0, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention": (4,)}, r"layers \[4\] cannot all attend \(model\.attention\)\. Use 0 to 3\."),
        ({"inner": 30}, r"inner = 30 is no multiple of width = 12 \(model\.inner\)\. Try 36\."),
        ({"heads": 5}, "heads"),
        ({"window": 0}, "window must be 1 or more"),
    ],
)
def test_what_cannot_be_built_is_refused(arguments: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        zoo.sha_rnn(WIDTH, **arguments).build(40)
