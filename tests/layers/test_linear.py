"""Linear maps give the results and gradients of `F.linear`, whichever library multiplies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.layers import linear as module
from regard.layers.linear import Linear, StepProduct, linear, multiply, product

needs_onednn = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this PyTorch has no product of oneDNN"
)


@pytest.fixture(params=["MKL", pytest.param("oneDNN", marks=needs_onednn)])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ONEDNN", request.param == "oneDNN")
    monkeypatch.setattr(module, "_SMALL", 1)
    monkeypatch.setattr(module, "_SMALL_PACKED", 1)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("shape", [(1,), (5,), (3, 7), (2, 1, 4), (0,), (70, 3)])
@pytest.mark.parametrize("biased", [True, False])
def test_products_and_gradients_are_those_of_pytorch(shape: tuple[int, ...], biased: bool):
    x, weight = drawn(*shape, 24).requires_grad_(), drawn(40, 24).requires_grad_()
    bias = drawn(40).requires_grad_() if biased else None
    inputs = [tensor for tensor in (x, weight, bias) if tensor is not None]
    outer = drawn(*shape, 40)
    found, expected = product(x, weight, bias), F.linear(x, weight, bias)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-5)
    for one, other in zip(torch.autograd.grad(found, inputs, outer), torch.autograd.grad(expected, inputs, outer)):
        assert one.shape == other.shape
        assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("outputs", [8, 24, 40])
def test_the_gradient_of_a_weight_is_laid_out_for_the_narrower_factor(outputs: int):
    x, weight, outer = drawn(6, 24), drawn(outputs, 24).requires_grad_(), drawn(6, outputs)
    product(x, weight).backward(outer)
    assert weight.grad is not None
    assert weight.grad.stride() == weight.stride()  # as the optimizer and clipping read it
    torch.testing.assert_close(weight.grad, outer.t() @ x, atol=1e-4, rtol=1e-5)


@pytest.mark.usefixtures("library")
def test_products_of_transposed_and_sliced_matrices():
    x, weight = drawn(24, 30).t(), drawn(24, 40).t()
    assert torch.allclose(multiply(x, weight), x @ weight.t(), atol=1e-5)
    assert torch.allclose(multiply(x[::2], weight[5:20]), x[::2] @ weight[5:20].t(), atol=1e-5)
    assert torch.allclose(product(drawn(3, 1, 24).expand(3, 4, 24), weight).std(1), torch.zeros(3, 40), atol=1e-6)


@pytest.mark.usefixtures("library")
def test_only_the_gradients_that_are_needed_are_computed():
    x, weight, bias = drawn(6, 24), drawn(40, 24).requires_grad_(), drawn(40)
    product(x, weight, bias).sum().backward()
    assert torch.allclose(weight.grad, x.sum(0).expand(40, 24), atol=1e-4)
    assert x.grad is None
    assert not product(x, weight.detach(), bias).requires_grad
    with torch.no_grad():
        assert not product(x, weight, bias).requires_grad


@pytest.mark.usefixtures("library")
def test_a_bias_is_trained_where_all_else_is_frozen():
    x, weight, bias = drawn(6, 24), drawn(40, 24), drawn(40).requires_grad_()
    product(x, weight, bias).sum().backward()
    assert torch.equal(bias.grad, torch.full((40,), 6.0))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_are_left_to_pytorch(dtype: torch.dtype):
    x, weight = drawn(6, 24).to(dtype), drawn(40, 24).to(dtype)
    assert torch.equal(product(x, weight), F.linear(x, weight))


def test_small_products_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ONEDNN", True)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", lambda *_: pytest.fail("too small"), raising=False)
    x, weight = drawn(4, 24), drawn(40, 24)
    assert torch.equal(product(x, weight), F.linear(x, weight))


@pytest.mark.usefixtures("library")
def test_the_rows_of_a_product_do_not_depend_on_how_often_it_runs():
    x, weight = drawn(50, 64), drawn(96, 64)
    assert torch.equal(multiply(x, weight), multiply(x, weight))


@pytest.mark.usefixtures("library")
def test_a_linear_map_is_copied_and_saved_as_any_module():
    layer = linear(24, 40)
    assert isinstance(layer, Linear)
    x = drawn(5, 24)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))
    assert layer.state_dict().keys() == {"weight", "bias"}
    assert torch.equal(layer.bias, torch.zeros(40))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("shape", [(1,), (5,), (3, 7), (2, 1, 4), (0,), (70, 3)])
def test_packed_weights_give_the_results_of_pytorch(shape: tuple[int, ...]):
    layer, x = linear(24, 40).eval(), drawn(*shape, 24)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
        vector = drawn(24)
        torch.testing.assert_close(layer(vector), F.linear(vector, layer.weight, layer.bias))


@pytest.mark.usefixtures("library")
def test_packed_weights_follow_every_change():
    layer, x = linear(24, 40).eval(), drawn(5, 24)

    def is_right() -> None:
        with torch.no_grad():
            torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))

    is_right()
    with torch.no_grad():
        layer.weight.mul_(2)
    is_right()
    layer.load_state_dict(linear(24, 40).state_dict())
    is_right()
    layer.weight = torch.nn.Parameter(drawn(40, 24))
    is_right()
    layer.train()
    layer.weight.data.add_(1)
    layer.eval()
    is_right()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert "_packed" not in vars(other)


@needs_onednn
def test_weights_are_packed_for_inference_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ONEDNN", True)
    monkeypatch.setattr(module, "_SMALL_PACKED", 1)
    layer, x = linear(24, 40), drawn(5, 24)
    layer(x)
    layer.eval()(x)
    with torch.no_grad():
        layer.train()(x)
        layer.eval()(x[:1])
        assert layer._packed is None
        layer(x)
    assert layer._packed is not None


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("frozen", [True, False])
def test_the_products_of_steps_share_one_gradient(frozen: bool):
    weight, bias = drawn(40, 24).requires_grad_(not frozen), drawn(40).requires_grad_()
    xs = [drawn(3, 24).requires_grad_() for _ in range(4)]

    def gradients(multiply: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        found = [multiply(x, bias if number else drawn(3, 40).fill_(0.5)) for number, x in enumerate(xs)]
        total = sum((part.tanh().sum() for part in found), torch.zeros(()))
        return list(torch.autograd.grad(total, [*xs, bias, *([] if frozen else [weight])]))

    for found, expected in zip(gradients(StepProduct(weight)), gradients(lambda x, added: F.linear(x, weight) + added)):
        assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.usefixtures("library")
def test_a_gradient_of_steps_is_computed_anew_by_every_backward_pass():
    weight, x = drawn(40, 24).requires_grad_(), drawn(3, 24)
    product = StepProduct(weight)
    loss = (product(x, drawn(40)) + product(x.tanh(), drawn(40))).square().sum()
    first, second = (torch.autograd.grad(loss, [weight], retain_graph=True)[0] for _ in range(2))
    assert first.abs().sum() > 0
    assert torch.equal(first, second)


@needs_onednn
def test_small_steps_and_large_ones_add_their_gradients(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ONEDNN", True)
    monkeypatch.setattr(module, "_SMALL", 4000)
    weight, small, large = drawn(40, 24).requires_grad_(), drawn(1, 24), drawn(9, 24)
    product = StepProduct(weight)
    (product(small, drawn(40)).sum() + product(large, drawn(40)).sum()).backward()
    expected = torch.cat([small, large]).sum(0).expand(40, 24)
    assert weight.grad is not None
    assert torch.allclose(weight.grad, expected, atol=1e-4)
