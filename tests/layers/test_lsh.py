"""LSH and local attention against their definitions, at any length, in the forward and the backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.errors import InputError, RunFailed
from regard.layers.attention import SelfAttention, merge_heads, split_heads
from regard.layers.contract import Context
from regard.layers.lsh import banded
from regard.layers.lsh.attention import LSHAttention, LSHAttentionLayer
from regard.layers.lsh.banded import local_bands, unit_keys
from regard.layers.lsh.masks import Chunks, Full, RankWindow
from regard.layers.patterns import CentredWindow, ChunkWindow, Window
from regard.layers.record import Record

WIDTH, HEADS = 24, 3


def layer(seed: int = 0, **settings) -> LSHAttentionLayer:
    torch.manual_seed(seed)
    return LSHAttention(HEADS, **settings).build(WIDTH).double().eval()


def rank_window(buckets: Tensor, window: int, causal: bool, document_ids: Tensor) -> Tensor:
    """BHTT by definition: j is visible to i if, in some round, fewer than `window` keys of their bucket lie between."""
    rows, heads, length, rounds = buckets.shape
    visible = torch.zeros(rows, heads, length, length, dtype=torch.bool)
    for b in range(rows):
        for h in range(heads):
            for r in range(rounds):
                for i in range(length):
                    bucket = [
                        j for j in range(length)
                        if buckets[b, h, j, r] == buckets[b, h, i, r] and document_ids[b, j] == document_ids[b, i]
                    ]  # fmt: skip
                    rank = bucket.index(i)
                    near = bucket[max(0, rank - window + 1) : rank + 1 if causal else rank + window]
                    visible[b, h, i, near] = True
    return visible


def by_definition(module: LSHAttentionLayer, x: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """The output and the weights of a token that attends to itself only if to nothing else."""
    q, v = split_heads(module.query_key(x), HEADS), split_heads(module.value(x), HEADS)
    others = visible & ~torch.eye(x.shape[1], dtype=torch.bool)
    others = torch.where(others.any(-1, keepdim=True), others, visible)
    weights = (q @ unit_keys(q).transpose(-1, -2)).masked_fill(~others, -torch.inf).softmax(-1)
    return module.out(merge_heads(weights @ v)), weights


@pytest.mark.parametrize("length", [1, 2, 5, 12, 13, 40])
@pytest.mark.parametrize(("rounds", "buckets"), [(1, 2), (3, 4), (2, (2, 4))])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("slice_size", [8192, 7])
@pytest.mark.parametrize("window", [1, 4, 30])
def test_the_rank_window_follows_its_definition(length, rounds, buckets, causal, slice_size, window, monkeypatch):
    monkeypatch.setattr(banded, "_SLICE", slice_size)
    module = layer(pattern=RankWindow(window), rounds=rounds, buckets=buckets, causal=causal)
    x = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    padding = torch.arange(length) < torch.tensor([length, max(1, length - 3)])[:, None]
    context = Context(padding=padding, record=Record())
    y, _ = module(x, context)
    visible = rank_window(context.record.buckets[""][0], window, causal, padding.int())
    expected, weights = by_definition(module, x, visible)
    real = padding[..., None]
    assert torch.allclose(y * real, expected * real, atol=1e-10)
    rows = padding[:, None, :, None]
    assert torch.allclose(context.record.matrix("") * rows, weights * rows, atol=1e-8)
    gradient = torch.randn_like(y) * real
    inputs = (x, *module.parameters())
    found, right = (torch.autograd.grad(part, inputs, gradient) for part in (y, expected))
    for one, other in zip(found, right):
        assert torch.allclose(one, other, atol=1e-7)


def test_more_rounds_keep_the_first_and_find_more():
    few, many = layer(rounds=2, pattern=RankWindow(3), buckets=8), layer(rounds=6, pattern=RankWindow(3), buckets=8)
    q = torch.randn(1, HEADS, 50, WIDTH // HEADS, dtype=torch.float64)
    assert torch.equal(few.hash(q), many.hash(q)[..., :2])
    visible = [rank_window(module.hash(q), 3, True, torch.zeros(1, 50)).sum() for module in (few, many)]
    assert visible[0] < visible[1]


def test_hashing_in_slices_changes_nothing(monkeypatch):
    module = layer(rounds=3, buckets=(4, 6))
    q = torch.randn(2, HEADS, 57, WIDTH // HEADS, dtype=torch.float64)
    buckets = module.hash(q)
    assert buckets.min() >= 0
    assert buckets.max() < 24
    monkeypatch.setattr("regard.layers.lsh.attention._ROTATED_AT_ONCE", 100)
    assert torch.equal(module.hash(q), buckets)


def test_rotations_differ_between_seeds_and_are_drawn_anew_in_training():
    q = torch.randn(1, HEADS, 200, WIDTH // HEADS, dtype=torch.float64)
    one, other = (LSHAttention(HEADS, buckets=8, seed=seed).build(WIDTH).eval() for seed in (0, 1))
    assert torch.equal(one.hash(q), one.hash(q))
    assert not torch.equal(one.hash(q), other.hash(q))
    assert not torch.equal(one.train().hash(q), one.hash(q))


def test_near_vectors_share_a_bucket_more_often_than_distant_ones():
    module = LSHAttention(HEADS, buckets=16, rounds=4).build(WIDTH).eval()
    q = torch.randn(1, HEADS, 500, WIDTH // HEADS)
    near = (module.hash(q) == module.hash(q + 0.1 * torch.randn_like(q))).float().mean()
    distant = (module.hash(q) == module.hash(q.roll(1, 2))).float().mean()
    assert near > 0.7
    assert distant < 0.15


@pytest.mark.parametrize("causal", [True, False])
def test_full_attention_is_attention_within_one_bucket(causal):
    full, one = layer(pattern=Full(), causal=causal), layer(pattern=RankWindow(100), buckets=2, rounds=1, causal=causal)
    one.load_state_dict(full.state_dict())
    x = torch.randn(2, 30, WIDTH, dtype=torch.float64)
    one.hash = lambda q: torch.zeros(*q.shape[:3], 1, dtype=torch.int32)
    assert torch.allclose(full(x, Context())[0], one(x, Context())[0], atol=1e-10)


def test_the_published_form_in_one_chunk_is_full_attention():
    full, chunks = layer(pattern=Full()), layer(pattern=Chunks(64), buckets=4)
    chunks.load_state_dict(full.state_dict())
    x = torch.randn(2, 64, WIDTH, dtype=torch.float64)
    assert torch.equal(full(x, Context())[0], chunks(x, Context())[0])


@pytest.mark.parametrize("causal", [True, False])
def test_full_attention_in_slices_is_the_same(causal, monkeypatch):
    module, x = layer(pattern=Full(), causal=causal), torch.randn(2, 30, WIDTH, dtype=torch.float64)
    expected = module(x, Context())[0]
    monkeypatch.setattr("regard.layers.lsh.attention._SCORES_AT_ONCE", 7 * 2 * HEADS * 30)
    assert torch.allclose(module(x, Context())[0], expected, atol=1e-12)


def test_memory_holds_keys_of_unit_length():
    module, x = layer(buckets=4), torch.randn(1, 9, WIDTH, dtype=torch.float64)
    keys, *_ = module(x, Context(remember=True))[1].tensors
    assert torch.allclose(keys.norm(dim=-1), torch.ones(1, 9, HEADS, dtype=torch.float64), atol=1e-3)
    assert module(x, Context())[1] is None


def test_later_tokens_change_earlier_outputs_in_the_published_form_only():
    x = torch.randn(1, 96, WIDTH, dtype=torch.float64)
    changed = torch.cat([x[:, :64], torch.randn(1, 32, WIDTH, dtype=torch.float64)], dim=1)
    difference = {}
    for pattern in (RankWindow(8), Chunks(8)):
        module = layer(pattern=pattern, buckets=8)
        difference[type(pattern)] = (module(x, Context())[0] - module(changed, Context())[0])[:, :64].abs().max()
    assert difference[RankWindow] < 1e-12
    assert difference[Chunks] > 1e-3


@pytest.mark.parametrize("pattern", [Window(4), Window(40), CentredWindow(5), ChunkWindow(4), ChunkWindow(4, 2, 1)])
@pytest.mark.parametrize("length", [3, 9, 33])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("slice_size", [8192, 16])
def test_local_attention_in_bands_is_masked_attention(pattern, length, packed, slice_size, monkeypatch):
    monkeypatch.setattr(banded, "_SLICE", slice_size)
    module = SelfAttention(HEADS, pattern=pattern).build(WIDTH).double()
    x = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    document = torch.arange(length).expand(2, -1) // torch.tensor([[6], [4]]) if packed else None
    context = Context(document=document, record=Record())
    y, _ = module(x, context)
    masked = Context(document=document, record=Record())
    monkeypatch.setattr("regard.layers.attention.local_bands", lambda *_: None)
    expected, _ = module(x, masked)
    assert torch.allclose(y, expected, atol=1e-10)
    assert torch.allclose(context.record.matrix(""), masked.record.matrix(""), atol=1e-8)
    found, right = (torch.autograd.grad(part.square().sum(), (x, *module.parameters())) for part in (y, expected))
    for one, other in zip(found, right):
        assert torch.allclose(one, other, atol=1e-8)


def test_chunks_inside_a_text_share_one_mask():
    (band,) = local_bands(Window(4), 400, 1, None, torch.device("cpu"))
    inside, end = band.mask(slice(0, 1), slice(1, 90)), band.mask(slice(0, 1), slice(90, 100))
    assert inside.shape == (1, 89, 4, 8)
    assert inside.untyped_storage().nbytes() == 4 * 4 * 8
    assert torch.equal(torch.cat([inside, end], 1), band.mask(slice(0, 1), slice(0, 100))[:, 1:])


@pytest.mark.parametrize("pattern", [Chunks(3, 1, 0), Chunks(3, 2, 1), RankWindow(3), RankWindow(1), RankWindow(50)])
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_are_those_of_finite_differences(pattern, causal):
    module = layer(pattern=pattern, buckets=2, rounds=2, causal=causal)
    q = torch.randn(1, 1, 12, 4, dtype=torch.float64, requires_grad=True)
    v = torch.randn(1, 1, 12, 4, dtype=torch.float64, requires_grad=True)
    module.heads, buckets = 1, module.hash(q.expand(1, HEADS, 12, 4))[:, :1]
    assert torch.autograd.gradcheck(lambda q, v: module.attend(q, v, buckets, None).output(), (q, v))


def test_no_two_rounds_of_two_seeds_share_rotations():
    rotations = [RankWindow().rotations(seed, (1, 4, 3, 5))[:, :, round] for seed in range(3) for round in range(3)]
    assert not any(torch.equal(one, other) for i, one in enumerate(rotations) for other in rotations[:i])


@pytest.mark.parametrize("suffix", ["", "_backward"])
def test_a_torch_with_another_cpu_kernel_is_refused_in_one_line(suffix, monkeypatch):
    banded._cpu_kernel.cache_clear()
    assert banded._cpu_kernel(suffix) is getattr(torch.ops.aten, banded._KERNEL + suffix)
    banded._cpu_kernel.cache_clear()
    monkeypatch.setitem(banded._ARGUMENTS, suffix, "query key value")
    with pytest.raises(RunFailed, match=rf"torch .* has another _scaled.*{suffix} than .* need\. Use torch 2\.13\.$"):
        banded._cpu_kernel(suffix)


@pytest.mark.parametrize(
    "wrong",
    [{"length": 0}, {"before": -1}, {"after": -2}, {"all_windows": (0,)}, {"length": 3, "all_windows": (4, -2)}],
)
def test_impossible_chunks_are_refused(wrong):
    with pytest.raises(InputError, match="a window of"):
        Chunks(**wrong)
    with pytest.raises(InputError, match="a window of"):
        ChunkWindow(**wrong)


@pytest.mark.parametrize("wrong", [{"buckets": 3}, {"buckets": (4, 1)}, {"rounds": 0}, {"buckets": None}])
def test_impossible_hashes_are_refused(wrong):
    with pytest.raises(InputError):
        LSHAttention(2, **wrong)
