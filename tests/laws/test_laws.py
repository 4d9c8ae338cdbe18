"""The laws that every model obeys (ARCHITECTURE.md, Laws), over the whole zoo; evaluation/laws.py has each of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.evaluation.laws import LAWS, Law, Probe
from regard.layers.contract import Ablation, facts_of
from regard.models.model import Network
from tests.laws.zoo import ENCODERS, END, MODELS, TRANSLATORS, VOCABULARY, build

# A tenth of what `regard check` allows: these models are small.
TOLERANCE = 1e-5
WITHOUT_ATTENTION = [name for name, model in MODELS.items() if not any(facts_of(part).heads for part in model.parts)]
APPLICABLE = [(law, name) for law in LAWS for name in MODELS if law.lacks(MODELS[name]) is None]


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def padding(width: int, *lengths: int) -> Tensor:
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def probe(network: Network) -> Probe:
    """Rows longer than any window and than the largest bucketed distance."""
    inputs = {"ids": tokens(3, 28), "padding": padding(28, 28, 9, 17)}
    if network.shape == "encoder-decoder":
        inputs |= {"source_ids": tokens(3, 9, seed=1), "source_padding": padding(9, 9, 4, 6)}
    return Probe(network, inputs, END)


def gap(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize(("law", "name"), APPLICABLE, ids=[f"{law.name}: {name}" for law, name in APPLICABLE])
def test_the_law_holds(law: Law, name: str):
    error = law.error(probe(build(name)))
    if error is None:  # nothing attends
        assert name in WITHOUT_ATTENTION
    else:
        assert error <= min(law.allowed, TOLERANCE)


def test_every_law_applies_to_some_model():
    assert {law.name for law, _ in APPLICABLE} == {law.name for law in LAWS}


@pytest.mark.parametrize("name", MODELS)
def test_the_inputs_that_laws_change_matter(name: str):
    sample = probe(build(name))
    whole = sample.logits()
    assert gap(sample.logits(ids=sample.other(sample.ids)), whole) > 1e-3
    if name in TRANSLATORS:
        assert gap(sample.logits(source_ids=sample.other(sample.inputs["source_ids"], "source_")), whole) > 1e-3


@pytest.mark.parametrize("name", [name for name in MODELS if name not in WITHOUT_ATTENTION])
def test_head_ablation_changes_the_output_of_its_layer_only(name: str):
    network, ids = build(name), tokens(3, 6)
    inputs = {"source_ids": tokens(3, 9, seed=1)} if name in TRANSLATORS else {}
    whole = network.hidden_states(ids, **inputs)
    stack, kind = "encoder" if name in ENCODERS else "decoder", "cross" if name in TRANSLATORS else "self"
    ablated = network.hidden_states(ids, **inputs, ablation=Ablation({f"{stack}.0.{kind}": (0,)}))
    assert gap(ablated, whole) > 1e-3
    assert torch.equal(network.hidden_states(ids, **inputs, ablation=Ablation({f"{stack}.9.{kind}": (0,)})), whole)
