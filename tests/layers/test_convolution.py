"""Gated convolutions and multi-step attention against the paper's equations, written out token by token in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.contract import Ablation, Context, Source, select
from regard.layers.convolution import Convolution, ConvolutionLayer, MultiStepAttention, ScaledResidual
from regard.layers.patterns import LocalP
from regard.layers.record import Record
from regard.layers.reversible import Reversible
from regard.models import zoo
from regard.models.model import Stack

WIDTH = 6
LENGTHS = (7, 3, 5)
PADDING = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
KERNELS = [(1, False), (2, False), (3, False), (4, False), (1, True), (2, True), (3, True), (4, True)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def exact(layer: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    layer = layer.double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.6)
    return layer


def source(padding: Tensor | None = PADDING) -> Source:
    return Source(drawn(3, 7, WIDTH, seed=4), padding, embedded=drawn(3, 7, WIDTH, seed=5))


def gated(layer: ConvolutionLayer, read: list[Tensor]) -> Tensor:
    """[A; B] = W [x_1; ...; x_k] + b, then A * sigmoid(B): one token."""
    both = layer.kernel.weight @ torch.cat(read) + layer.kernel.bias
    a, b = both[:WIDTH], both[WIDTH:]
    return a * (1 / (1 + torch.exp(-b)))


def convolved(layer: ConvolutionLayer, x: Tensor, kernel_width: int, causal: bool) -> Tensor:
    """TD -> TD: the definition, for a row without padding."""
    first = 1 - kernel_width if causal else -(kernel_width // 2)
    nothing = torch.zeros(WIDTH, dtype=x.dtype)
    found = []
    for i in range(len(x)):
        slots = range(i + first, i + first + kernel_width)
        found.append(gated(layer, [x[j] if 0 <= j < len(x) else nothing for j in slots]))
    return torch.stack(found)


@pytest.mark.parametrize(("kernel_width", "causal"), KERNELS)
def test_a_convolution_is_what_its_definition_says(kernel_width: int, causal: bool):
    layer, x = exact(Convolution(kernel_width, causal).build(WIDTH)), drawn(3, 7, WIDTH)
    found, _ = layer(x, Context(padding=PADDING))
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(found[row, :length], convolved(layer, x[row, :length], kernel_width, causal))


def test_a_convolution_is_torchs_own():
    layer, x = exact(Convolution(3).build(WIDTH)), drawn(3, 7, WIDTH)
    weight = layer.kernel.weight.unflatten(1, (3, WIDTH)).transpose(1, 2)
    expected = F.glu(F.conv1d(x.transpose(1, 2), weight, layer.kernel.bias, padding=1), dim=1).transpose(1, 2)
    torch.testing.assert_close(layer(x, Context())[0], expected)


def test_the_gate_opens_and_closes():
    layer, x = exact(Convolution(1).build(WIDTH)), drawn(1, 4, WIDTH)
    with torch.no_grad():
        layer.kernel.weight[WIDTH:] = 0
        for bias, share in ((50.0, 1.0), (0.0, 0.5), (-50.0, 0.0)):
            layer.kernel.bias[WIDTH:] = bias
            through = F.linear(x, layer.kernel.weight[:WIDTH], layer.kernel.bias[:WIDTH])
            torch.testing.assert_close(layer(x, Context())[0], share * through)


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize(("kernel_width", "causal"), KERNELS)
def test_the_receptive_field_grows_by_kernel_width_less_one_per_layer(kernel_width: int, causal: bool, depth: int):
    stack = exact(Stack(depth * ((Convolution(kernel_width, causal),),), ScaledResidual()).build(WIDTH))
    x = drawn(1, 31, WIDTH).requires_grad_()
    stack(x, Context())[0][0, 15].sum().backward()
    read = (x.grad[0].abs().sum(-1) > 0).nonzero().flatten().tolist()
    before = depth * (kernel_width - 1 if causal else kernel_width // 2)
    assert read == list(range(15 - before, 15 - before + depth * (kernel_width - 1) + 1))


@pytest.mark.parametrize("kernel_width", [1, 2, 3, 5])
@pytest.mark.parametrize("step", [1, 2, 5])
def test_stepping_equals_reading_at_once(kernel_width: int, step: int):
    layer, x = exact(Convolution(kernel_width, causal=True).build(WIDTH)), drawn(3, 9, WIDTH)
    whole, memory = layer(x, Context())
    assert memory is None
    parts = []
    for start in range(0, 9, step):
        part, memory = layer(x[:, start : start + step], Context(start=start, remember=True), memory)
        parts.append(part)
        assert memory.shape == (3, kernel_width - 1, WIDTH)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    assert torch.equal(memory, x[:, 10 - kernel_width :])


@pytest.mark.parametrize("kernel_width", [1, 2, 3, 5])
def test_a_padded_row_remembers_its_last_tokens(kernel_width: int):
    layer, x, following = exact(Convolution(kernel_width, causal=True).build(WIDTH)), drawn(3, 7, WIDTH), drawn(3, 1, 6)
    _, memory = layer(x, Context(padding=PADDING, remember=True))
    order = torch.tensor([2, 0, 0, 1])
    found, _ = layer(following[order], Context(start=7, remember=True), select(memory, order))
    for row, old in enumerate(order.tolist()):
        read = torch.cat([x[old, : LENGTHS[old]], following[old]])
        torch.testing.assert_close(found[row, 0], convolved(layer, read, kernel_width, True)[-1])


@pytest.mark.parametrize(("kernel_width", "causal"), KERNELS)
def test_packed_documents_do_not_read_each_other(kernel_width: int, causal: bool):
    layer, x = exact(Convolution(kernel_width, causal).build(WIDTH)), drawn(2, 9, WIDTH)
    document = torch.tensor([[0, 0, 0, 0, 1, 2, 2, 2, 2], 9 * [3]])
    packed, _ = layer(x, Context(document=document))
    for row, start, end in ((0, 0, 4), (0, 4, 5), (0, 5, 9), (1, 0, 9)):
        torch.testing.assert_close(packed[row, start:end], layer(x[row : row + 1, start:end], Context())[0][0])


def attended(layer: nn.Module, x: Tensor, g: Tensor, z: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """TD over SD -> TD and the weights TS: the paper's equations, for one row without padding."""
    h = convolved(layer.convolution, x, layer.convolution.kernel_width, True)
    outputs, weights = [], []
    for i in range(len(x)):
        d = (layer.query.weight @ h[i] + layer.query.bias + g[i]) * math.sqrt(0.5)
        energy = [(d @ z[j]).item() for j in range(len(z))]
        a = [math.exp(one) / sum(map(math.exp, energy)) for one in energy]
        c = sum(a[j] * (z[j] + e[j]) * math.sqrt(0.5) for j in range(len(z))) * len(z) * math.sqrt(1 / len(z))
        outputs.append((h[i] + layer.out.weight @ c + layer.out.bias) * math.sqrt(0.5))
        weights.append(torch.tensor(a, dtype=x.dtype))
    return torch.stack(outputs), torch.stack(weights)


@pytest.mark.parametrize("kernel_width", [1, 2, 3])
@pytest.mark.parametrize("padding", [PADDING, None])
def test_multi_step_attention_is_what_the_paper_says(kernel_width: int, padding: Tensor | None):
    layer, x, g, record = (
        exact(MultiStepAttention(kernel_width).build(WIDTH)), drawn(3, 4, WIDTH), drawn(3, 4, WIDTH, seed=2), Record(),
    )  # fmt: skip
    asked = source(padding)
    found, _ = layer(x, Context(source=asked, embedded=g, record=record, name="cross"))
    for row, length in enumerate(LENGTHS if padding is not None else (7, 7, 7)):
        expected, weights = attended(layer, x[row], g[row], asked.states[row, :length], asked.embedded[row, :length])
        torch.testing.assert_close(found[row], expected)
        torch.testing.assert_close(record.matrix("cross")[row, 0, :, :length], weights)


def test_beams_share_the_sources_keys_and_values():
    layer, x, g = exact(MultiStepAttention().build(WIDTH)), drawn(6, 4, WIDTH), drawn(6, 4, WIDTH, seed=2)
    asked, twice = source(), torch.arange(3).repeat_interleave(2)
    whole, _ = layer(x, Context(source=select(asked, twice), embedded=g))
    start = Context(source=asked, embedded=g[::2, :1], remember=True)
    _, memory = layer(x[::2, :1], start)
    memory = select(memory, twice)
    assert memory[1].tree[0].shape == (3, 1, 7, WIDTH)
    for t in range(1, 4):
        now = replace(start, start=t, embedded=g[:, t : t + 1])
        found, memory = layer(x[:, t : t + 1], now, memory)
        torch.testing.assert_close(found[::2, 0], whole[::2, t])
        if t > 2:  # beams that began alike forget their beginning
            torch.testing.assert_close(found[1::2, 0], whole[1::2, t])


def test_without_its_head_a_layer_adds_nothing_of_the_source():
    layer, x = exact(MultiStepAttention().build(WIDTH)), drawn(3, 4, WIDTH)
    context = Context(embedded=x, ablation=Ablation({"cross": (0,)}), name="cross")
    one, _ = layer(x, replace(context, source=source()))
    other, _ = layer(x, replace(context, source=replace(source(), states=drawn(3, 7, WIDTH, seed=9))))
    assert torch.equal(one, other)


@pytest.mark.parametrize(("kernel_width", "causal"), [(2, False), (3, False), (3, True)])
def test_gradients_of_a_convolution_are_right(kernel_width: int, causal: bool):
    layer = exact(Convolution(kernel_width, causal).build(WIDTH))

    def run(x: Tensor, *_: Tensor) -> Tensor:
        return layer(x, Context(padding=PADDING[:, :4]))[0][PADDING[:, :4]]

    assert torch.autograd.gradcheck(run, (drawn(3, 4, WIDTH).requires_grad_(), *layer.parameters()))


def test_gradients_of_multi_step_attention_are_right():
    layer = exact(MultiStepAttention(2).build(WIDTH))

    def run(x: Tensor, g: Tensor, z: Tensor, e: Tensor, *_: Tensor) -> Tensor:
        return layer(x, Context(source=Source(z, PADDING[:, :4], embedded=e), embedded=g))[0]

    inputs = [drawn(3, 4 if seed > 1 else 2, WIDTH, seed=seed).requires_grad_() for seed in range(4)]
    assert torch.autograd.gradcheck(run, (*inputs, *layer.parameters()))


def test_gradients_reach_the_embedding_through_reversible_layers_too():
    stack = exact(Stack(2 * ((MultiStepAttention(pattern=LocalP(3)),),), Reversible()).build(WIDTH, WIDTH))
    slopes = []
    for remember in (False, True):  # what is remembered goes through autograd alone
        x, z, e = (drawn(3, 7, WIDTH, seed=seed).requires_grad_() for seed in range(3))
        y, _ = stack(x, Context(source=Source(z, PADDING, embedded=e), remember=remember))
        slopes.append(torch.autograd.grad((y * drawn(3, 7, WIDTH, seed=3)).sum(), (x, z, e)))
    for one, other in zip(*slopes):
        torch.testing.assert_close(one, other)


def test_layers_begin_with_the_variance_of_embeddings():
    """Section 3.5: a gated linear unit keeps a quarter of a variance that is small."""
    torch.manual_seed(0)
    for dropout in (0.0, 0.4):
        layer = Stack(6 * ((Convolution(3, dropout=dropout),),), ScaledResidual()).build(128).train()
        y, _ = layer.layers(0.1 * torch.randn(20, 50, 128), Context())
        assert 0.9 < y.std().item() / 0.1 < 1.1


def test_the_residual_is_scaled():
    join, x = ScaledResidual().build(exact(Convolution(3).build(WIDTH)), WIDTH, 0.0), drawn(3, 7, WIDTH)
    torch.testing.assert_close(join(x, Context())[0], (x + join.sublayer(x, Context())[0]) * math.sqrt(0.5))


def test_what_cannot_be_built_is_refused():
    for description in (Convolution, MultiStepAttention):
        with pytest.raises(InputError, match=r"kernel_width must be 1 or more, got 0"):
            description(0)
    with pytest.raises(InputError, match="got widths 6 and 12"):
        MultiStepAttention().build(6, 12)


def test_a_language_model_of_convolutions_remembers_no_more_for_a_longer_text():
    decoder = Stack(((Convolution(3, causal=True),),), ScaledResidual())
    assert replace(zoo.lstm_lm(WIDTH, 1), decoder=decoder).constant_memory


def test_the_model_as_it_stands_is_the_papers():
    model = zoo.convs2s()
    assert (model.width, len(model.encoder.layers), len(model.decoder.layers)) == (512, 20, 20)
