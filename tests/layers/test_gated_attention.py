"""The parts of SHA-RNN compute what the paper says, and the cache holds no more than the window needs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import InputError
from regard.layers.cache import Layout
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
    """The paper's equations: gates on queries, keys and values, then a softmax over the window."""
    wide = layer.value.weight @ layer.value_gate.sigmoid() + layer.value.bias
    value_gate = wide[WIDTH:].sigmoid() * wide[:WIDTH].tanh()
    q = layer.norm(F.linear(x, layer.query.weight, layer.query.bias)) * layer.query_gate.sigmoid()
    k, v = x * layer.key_gate.sigmoid(), x * value_gate
    outputs = []
    for one in range(heads):
        part = slice(one * WIDTH // heads, (one + 1) * WIDTH // heads)
        scores = q[..., part] @ k[..., part].transpose(1, 2) / (WIDTH / heads) ** 0.5
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        scores = scores.masked_fill((distance < 0) | (distance >= window), -torch.inf)
        outputs.append(scores.softmax(-1) @ v[..., part])
    return torch.cat(outputs, dim=-1)


@pytest.mark.parametrize(("heads", "window"), [(1, 100), (3, 100), (2, 4)])
def test_the_gates_are_those_of_the_paper(heads: int, window: int):
    layer, x = attention(heads, window), torch.randn(2, 9, WIDTH)
    y, memory = layer(x, Context())
    torch.testing.assert_close(y, published(layer, x, heads, window))
    assert memory is None


def test_every_gate_gets_a_gradient():
    layer = attention(1, 5)
    layer(torch.randn(2, 9, WIDTH), Context())[0].square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in layer.parameters())


@pytest.mark.parametrize("segment", [1, 3, 40])
def test_the_cache_does_not_grow_with_the_text(segment: int):
    window = 16
    layer, x = attention(1, window), torch.randn(2, 400, WIDTH)
    parts, memory = [], None
    with torch.no_grad():
        for start in range(0, 400, segment):
            y, memory = layer(x[:, start : start + segment], Context(start=start, remember=True), memory)
            parts.append(y)
            assert memory.tensors[0].shape[1] <= 3 * window + segment
        torch.testing.assert_close(torch.cat(parts, dim=1), layer(x, Context())[0])


def test_rows_of_unequal_length_attend_to_the_window_of_each():
    layer, x = attention(1, 4), torch.randn(2, 30, WIDTH)
    lengths = torch.tensor([3, 20])
    padding = torch.arange(20) < lengths[:, None]
    with torch.no_grad():
        _, memory = layer(x[:, :20], Context(padding=padding, remember=True))
        assert memory.length == 20, "the short row still attends to its first token"
        layout = Layout.of_prompts(padding)
        for step in range(9):
            token = x[torch.arange(2), lengths + step][:, None]
            layout = layout.advanced(lengths + step)
            y, memory = layer(token, Context(start=20 + step, layout=layout, remember=True), memory)
        for row, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(y[row, 0], layer(x[row : row + 1, : length + 9], Context())[0][0, -1])


def test_boom_sums_the_parts_of_its_hidden_layer():
    torch.manual_seed(1)
    layer, x = Boom(3 * WIDTH).build(WIDTH), torch.randn(2, 5, WIDTH)
    hidden = F.gelu(F.linear(x, layer.up.weight, layer.up.bias))
    summed = hidden[..., :WIDTH] + hidden[..., WIDTH : 2 * WIDTH] + hidden[..., 2 * WIDTH :]
    torch.testing.assert_close(layer(x, Context())[0], summed)
    assert sum(parameter.numel() for parameter in layer.parameters()) == 3 * WIDTH * (WIDTH + 1)


def test_twin_norm_normalizes_the_residual_stream_too():
    torch.manual_seed(1)
    joined, x = TwinNorm().build(Boom(WIDTH).build(WIDTH), WIDTH, 0.0), 7 + 3 * torch.randn(2, 5, WIDTH)
    with torch.no_grad():
        joined.norm.weight.fill_(2.0)
        joined.residual_norm.bias.fill_(0.5)
    normed = F.layer_norm(x, (WIDTH,), eps=1e-12)
    torch.testing.assert_close(joined(x, Context())[0], normed + 0.5 + joined.sublayer(2 * normed, Context())[0])


def test_attention_is_in_the_layer_before_the_last_by_default():
    def attention_layers(**arguments: object) -> list[int]:
        layers = zoo.sha_rnn(WIDTH, **arguments).decoder.layers
        return [number for number, layer in enumerate(layers) if "self" in [part.name for part in layer]]

    assert attention_layers() == [2]
    assert attention_layers(depth=1) == [0]
    assert attention_layers(attention="all") == [0, 1, 2, 3]
    assert attention_layers(attention=()) == []
    assert attention_layers(attention=(0, 3)) == [0, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention": (4,)}, r"layers \[4\] cannot all attend \(model\.attention\)\. Use 0 to 3\."),
        ({"inner": 30}, r"inner = 30 is no multiple of width = 12 \(model\.inner\)\. Try 36\."),
        ({"heads": 5}, "heads"),
        ({"window": 0}, "window must be 1 or more"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        zoo.sha_rnn(WIDTH, **arguments).build(40)
