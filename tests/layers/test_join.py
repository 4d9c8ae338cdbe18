"""Joins: where the norm stands around the residual connection."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from regard.layers.contract import Context
from regard.layers.feedforward import FeedForward
from regard.layers.join import Joined, PostNorm, PreNorm, ResidualPostNorm, RMSNorm, SequentialJoin
from regard.models import zoo
from regard.schema import call_from_dict

WIDTH = 8


def joined(join: SequentialJoin) -> Joined:
    torch.manual_seed(1)
    return join.build(FeedForward(16).build(WIDTH), WIDTH, 0.0)  # type: ignore[attr-defined]


def test_the_norm_stands_after_the_sum_before_the_sublayer_or_inside_the_residual():
    x = 7 + 3 * torch.randn(2, 5, WIDTH)
    post, pre, inside = joined(PostNorm()), joined(PreNorm()), joined(ResidualPostNorm())
    norm = lambda y: F.layer_norm(y, (WIDTH,))  # noqa: E731
    f = lambda y: post.sublayer(y, Context())[0]  # noqa: E731 (the three have the same weights)
    torch.testing.assert_close(post(x, Context())[0], norm(x + f(x)))
    torch.testing.assert_close(pre(x, Context())[0], x + f(norm(x)))
    torch.testing.assert_close(inside(x, Context())[0], x + norm(f(x)))


def test_a_recipe_can_put_the_norm_inside_the_residual():
    table = {"width": 16, "depth": 1, "heads": 2, "join": {"kind": "residual_post_norm", "norm": "rms_norm"}}
    for family in zoo.transformer, zoo.bert, zoo.gpt2:
        model = call_from_dict(family, table, where="model")
        stack = model.encoder or model.decoder
        assert stack is not None
        assert stack.join == ResidualPostNorm(RMSNorm())
        assert isinstance(stack.build(16).final_norm, torch.nn.RMSNorm)
