"""LSH attention is what its definition says, at any length, forwards and backwards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.errors import InputError
from regard.layers.attention import SelfAttention, merge_heads, split_heads
from regard.layers.contract import Context
from regard.layers.lsh import banded as kernel
from regard.layers.lsh.attention import LSHAttention, LSHAttentionLayer, unit
from regard.layers.lsh.banded import local_bands
from regard.layers.lsh.masks import Chunks, Ranks, Whole
from regard.layers.patterns import Around, Neighbours, Window
from regard.layers.record import Record

WIDTH, HEADS = 24, 3


def layer(seed: int = 0, **settings) -> LSHAttentionLayer:
    torch.manual_seed(seed)
    return LSHAttention(HEADS, **settings).build(WIDTH).double().eval()


def ranked(buckets: Tensor, window: int, causal: bool, document_ids: Tensor) -> Tensor:
    """BHTT by the letter: j is seen from i when in some round fewer than `window` of their bucket lie between."""
    rows, heads, length, rounds = buckets.shape
    seen = torch.zeros(rows, heads, length, length, dtype=torch.bool)
    for b in range(rows):
        for h in range(heads):
            for r in range(rounds):
                for i in range(length):
                    mates = [
                        j for j in range(length)
                        if buckets[b, h, j, r] == buckets[b, h, i, r] and document_ids[b, j] == document_ids[b, i]
                    ]  # fmt: skip
                    at = mates.index(i)
                    near = mates[max(0, at - window + 1) : at + 1 if causal else at + window]
                    seen[b, h, i, near] = True
    return seen


def by_the_letter(module: LSHAttentionLayer, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """What a token says that attends to all it sees but itself, or to itself when that is all; and the weights."""
    q, v = split_heads(module.query_key(x), HEADS), split_heads(module.value(x), HEADS)
    others = seen & ~torch.eye(x.shape[1], dtype=torch.bool)
    others = torch.where(others.any(-1, keepdim=True), others, seen)
    weights = (q @ unit(q).transpose(-1, -2)).masked_fill(~others, -torch.inf).softmax(-1)
    return module.out(merge_heads(weights @ v)), weights


@pytest.mark.parametrize("length", [1, 2, 5, 12, 13, 40])
@pytest.mark.parametrize(("rounds", "buckets"), [(1, 2), (3, 4), (2, (2, 4))])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("slice_size", [8192, 7])
@pytest.mark.parametrize("window", [1, 4, 30])
def test_ranks_are_what_they_are_said_to_be(length, rounds, buckets, causal, slice_size, window, monkeypatch):
    monkeypatch.setattr(kernel, "_SLICE", slice_size)
    module = layer(pattern=Ranks(window), rounds=rounds, buckets=buckets, causal=causal)
    x = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    padding = torch.arange(length) < torch.tensor([length, max(1, length - 3)])[:, None]
    context = Context(padding=padding, record=Record())
    y, _ = module(x, context)
    drawn = context.record.buckets[""][0]
    seen = ranked(drawn, window, causal, padding.int())
    expected, weights = by_the_letter(module, x, seen)
    real = padding[..., None]
    assert torch.allclose(y * real, expected * real, atol=1e-10)
    rows = padding[:, None, :, None]
    assert torch.allclose(context.record.matrix("") * rows, weights * rows, atol=1e-8)
    slope = torch.randn_like(y) * real
    wanted = (x, *module.parameters())
    found, right = (torch.autograd.grad(part, wanted, slope) for part in (y, expected))
    for one, other in zip(found, right):
        assert torch.allclose(one, other, atol=1e-7)


def test_more_rounds_keep_the_first_and_see_more():
    few, many = layer(rounds=2, pattern=Ranks(3), buckets=8), layer(rounds=6, pattern=Ranks(3), buckets=8)
    q = torch.randn(1, HEADS, 50, WIDTH // HEADS, dtype=torch.float64)
    assert torch.equal(few.hashed(q), many.hashed(q)[..., :2])
    seen = [ranked(part.hashed(q), 3, True, torch.zeros(1, 50)).sum() for part in (few, many)]
    assert seen[0] < seen[1]


def test_hashing_in_pieces_changes_nothing(monkeypatch):
    module = layer(rounds=3, buckets=(4, 6))
    q = torch.randn(2, HEADS, 57, WIDTH // HEADS, dtype=torch.float64)
    whole = module.hashed(q)
    assert whole.min() >= 0
    assert whole.max() < 24
    monkeypatch.setattr("regard.layers.lsh.attention._TURNED", 100)
    assert torch.equal(module.hashed(q), whole)


def test_directions_differ_between_seeds_and_are_drawn_anew_while_learning():
    q = torch.randn(1, HEADS, 200, WIDTH // HEADS, dtype=torch.float64)
    one, other = (LSHAttention(HEADS, buckets=8, seed=seed).build(WIDTH).eval() for seed in (0, 1))
    assert torch.equal(one.hashed(q), one.hashed(q))
    assert not torch.equal(one.hashed(q), other.hashed(q))
    assert not torch.equal(one.train().hashed(q), one.hashed(q))


def test_near_vectors_share_a_bucket_more_often_than_far_ones():
    module = LSHAttention(HEADS, buckets=16, rounds=4).build(WIDTH).eval()
    q = torch.randn(1, HEADS, 500, WIDTH // HEADS)
    near = (module.hashed(q) == module.hashed(q + 0.1 * torch.randn_like(q))).float().mean()
    far = (module.hashed(q) == module.hashed(q.roll(1, 2))).float().mean()
    assert near > 0.7
    assert far < 0.15


@pytest.mark.parametrize("causal", [True, False])
def test_full_attention_is_what_one_bucket_sees(causal):
    whole, one = layer(pattern=Whole(), causal=causal), layer(pattern=Ranks(100), buckets=2, rounds=1, causal=causal)
    one.load_state_dict(whole.state_dict())
    x = torch.randn(2, 30, WIDTH, dtype=torch.float64)
    one.hashed = lambda q: torch.zeros(*q.shape[:3], 1, dtype=torch.int32)
    assert torch.allclose(whole(x, Context())[0], one(x, Context())[0], atol=1e-10)


def test_the_published_form_in_one_chunk_is_full_attention():
    whole, chunks = layer(pattern=Whole()), layer(pattern=Chunks(64), buckets=4)
    chunks.load_state_dict(whole.state_dict())
    x = torch.randn(2, 64, WIDTH, dtype=torch.float64)
    assert torch.equal(whole(x, Context())[0], chunks(x, Context())[0])


@pytest.mark.parametrize("causal", [True, False])
def test_full_attention_in_pieces_is_the_same(causal, monkeypatch):
    module, x = layer(pattern=Whole(), causal=causal), torch.randn(2, 30, WIDTH, dtype=torch.float64)
    expected = module(x, Context())[0]
    monkeypatch.setattr("regard.layers.lsh.attention._LOOKED_AT", 7 * 2 * HEADS * 30)
    assert torch.allclose(module(x, Context())[0], expected, atol=1e-12)


def test_what_is_remembered_of_a_text_is_its_keys_and_no_query():
    module, x = layer(buckets=4), torch.randn(1, 9, WIDTH, dtype=torch.float64)
    keys, *_ = module(x, Context(remember=True))[1]
    assert torch.allclose(keys.norm(dim=-1), torch.ones(1, HEADS, 9, dtype=torch.float64), atol=1e-3)
    assert module(x, Context())[1] is None


def test_the_published_form_lets_the_future_change_the_past_and_ours_does_not():
    x = torch.randn(1, 96, WIDTH, dtype=torch.float64)
    later = torch.cat([x[:, :64], torch.randn(1, 32, WIDTH, dtype=torch.float64)], dim=1)
    moved = {}
    for pattern in (Ranks(8), Chunks(8)):
        module = layer(pattern=pattern, buckets=8)
        moved[type(pattern)] = (module(x, Context())[0] - module(later, Context())[0])[:, :64].abs().max()
    assert moved[Ranks] < 1e-12
    assert moved[Chunks] > 1e-3


@pytest.mark.parametrize("see", [Window(4), Window(40), Around(5), Neighbours(4), Neighbours(4, 2, 1)])
@pytest.mark.parametrize("length", [3, 9, 33])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("slice_size", [8192, 16])
def test_local_attention_in_bands_is_the_masked_one(pattern, length, apart, slice_size, monkeypatch):
    monkeypatch.setattr(kernel, "_SLICE", slice_size)
    module = SelfAttention(HEADS, pattern=pattern).build(WIDTH).double()
    x = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    document = torch.arange(length).expand(2, -1) // torch.tensor([[6], [4]]) if apart else None
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


def test_chunks_within_a_text_are_hidden_alike_and_worked_out_once():
    (band,) = local_bands(Window(4), 400, 1, None, torch.device("cpu"))
    inside, end = band.hide(slice(0, 1), slice(1, 90)), band.hide(slice(0, 1), slice(90, 100))
    assert inside.shape == (1, 89, 4, 8)
    assert inside.untyped_storage().nbytes() == 4 * 4 * 8
    assert torch.equal(torch.cat([inside, end], 1), band.hide(slice(0, 1), slice(0, 100))[:, 1:])


@pytest.mark.parametrize("see", [Chunks(3, 1, 0), Chunks(3, 2, 1), Ranks(3), Ranks(1), Ranks(50)])
@pytest.mark.parametrize("causal", [True, False])
def test_slopes_are_those_of_small_differences(pattern, causal):
    module = layer(pattern=pattern, buckets=2, rounds=2, causal=causal)
    q = torch.randn(1, 1, 12, 4, dtype=torch.float64, requires_grad=True)
    v = torch.randn(1, 1, 12, 4, dtype=torch.float64, requires_grad=True)
    module.heads, buckets = 1, module.hashed(q.expand(1, HEADS, 12, 4))[:, :1]
    assert torch.autograd.gradcheck(lambda q, v: module.read(q, v, buckets, None)[0], (q, v))


def test_no_two_rounds_of_two_seeds_share_directions():
    drawn = [Ranks().rotations(seed, (1, 4, 3, 5))[:, :, number] for seed in range(3) for number in range(3)]
    assert not any(torch.equal(one, other) for i, one in enumerate(drawn) for other in drawn[:i])


@pytest.mark.parametrize(
    "wrong", [{"window": 0}, {"before": -1}, {"after": -2}, {"among": (0,)}, {"window": 3, "among": (4, -2)}]
)
def test_chunks_that_cannot_be_are_refused(wrong):
    with pytest.raises(InputError, match="a window of"):
        Chunks(**wrong)
    with pytest.raises(InputError, match="a window of"):
        Neighbours(**{("length" if name == "window" else name): value for name, value in wrong.items()})


@pytest.mark.parametrize("wrong", [{"buckets": 3}, {"buckets": (4, 1)}, {"rounds": 0}, {"buckets": None}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(InputError):
        LSHAttention(2, **wrong)
