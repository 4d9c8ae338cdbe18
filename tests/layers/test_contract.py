"""The contract of sublayers: facts about parts, head ablation, memory trees and replayed random choices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from regard.evaluation.laws import LAWS, Law
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.contract import (
    Ablation,
    CarriedMemory,
    Context,
    Facts,
    RandomChoices,
    Shared,
    facts_of,
    leaves,
    select,
    with_leaves,
)
from regard.layers.feedforward import FeedForward
from regard.layers.gated_attention import GatedAttention
from regard.layers.join import PreNorm
from regard.layers.lsh.attention import LSHAttention
from regard.layers.lsh.masks import Chunks
from regard.layers.patterns import Causal, LocalP
from regard.layers.positions import Rotary
from regard.models import zoo
from regard.models.model import Model, Stack
from regard.show.ablation import attention_heads
from tests.laws.test_laws import probe
from tests.laws.zoo import SMALL, VOCABULARY, WIDTH
from tests.own_parts import Mean


def with_mean() -> Model:
    model = zoo.gpt2(**SMALL)
    return replace(model, decoder=Stack(2 * ((Mean(), FeedForward(8)),), PreNorm()))


def test_a_part_that_states_no_facts_gets_the_safe_defaults():
    assert facts_of(Mean()) == Facts(incremental=False)
    model = with_mean()
    assert (model.incremental, model.constant_memory, attention_heads(model.build(VOCABULARY))) == (False, False, {})
    packing = next(law for law in LAWS if "packed" in law.name)
    assert packing.lacks(model) is not None
    assert packing.lacks(zoo.gpt2(**SMALL)) is None


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_part_that_states_no_facts_obeys_every_law(law: Law):
    torch.manual_seed(0)
    network = with_mean().build(VOCABULARY).eval()
    error = None if law.lacks(network.description) else law.error(probe(network))
    assert error is None or error <= law.allowed


def test_parts_state_what_they_are():
    assert facts_of(SelfAttention(3, Causal(), position=Rotary())) == Facts(3, True, Rotary(), True, packs=True)
    assert facts_of(CrossAttention(2, pattern=LocalP())) == Facts(2, packs=True, weights_sum_to_one=False)
    assert facts_of(FeedForward(4)) == Facts(constant_memory=True, packs=True)
    assert facts_of(GatedAttention(2)) == Facts(2, True, constant_memory=True, packs=True, window=5000)
    assert not facts_of(LSHAttention(2, Chunks(4))).incremental


def test_a_part_may_state_facts_as_a_class_variable():
    @dataclass(frozen=True)
    class Constant(Mean):
        facts: ClassVar[Facts] = Facts(constant_memory=True)

    model = with_mean()
    steady = replace(model, embed=replace(model.embed, position=None), decoder=Stack(((Constant(),),), PreNorm()))
    assert steady.constant_memory
    assert not replace(steady, embed=model.embed).constant_memory, "learned positions end somewhere"


def test_head_ablation_is_a_mask_over_heads():
    ablation = Ablation({"decoder.0.self": (0, 2)})
    assert ablation.head_mask("decoder.0.self", 4).tolist() == [0, 1, 0, 1]
    assert ablation.head_mask("decoder.1.self", 4) is None


def test_a_replay_returns_the_choices_and_restores_the_random_state():
    torch.manual_seed(0)
    choices = RandomChoices()
    context = Context(random_choices=choices)
    drawn = [context.draw(lambda: torch.rand(2)), context.draw(lambda: torch.rand(3))]
    after = torch.rand(1)
    choices.replay()
    torch.manual_seed(9)
    again = [context.draw(lambda: torch.rand(2)), context.draw(lambda: torch.rand(3))]
    assert all(map(torch.equal, drawn, again))
    assert torch.equal(torch.rand(1), after)


def test_select_moves_rows_and_leaves_shared_memory_to_sentences():
    memory = ((torch.arange(4), None), {"shared": Shared(torch.arange(2))})
    (rows, _), rest = select(memory, torch.tensor([3, 3, 0]))
    assert rows.tolist() == [3, 3, 0]
    assert rest["shared"].tree.tolist() == [0, 1]
    assert select(memory, torch.tensor([1]), torch.tensor([1]))[1]["shared"].tree.tolist() == [1]
    tensors = leaves(memory)
    assert [tensor.tolist() for tensor in leaves(with_leaves(memory, [-one for one in tensors]))] == [
        [0, -1, -2, -3], [0, -1],
    ]  # fmt: skip


def test_carried_memory_is_detached_and_counts_positions():
    carried = CarriedMemory()
    carried.advance(torch.ones(1, WIDTH, requires_grad=True) * 2, 5)
    carried.advance(carried.memory, 3)
    assert carried.position == 8
    assert not carried.memory.requires_grad
