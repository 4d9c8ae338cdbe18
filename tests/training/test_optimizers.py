"""Optimizers, parameter groups and layer-wise learning rates, also after a resume."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.config.recipe import parse_recipe
from regard.config.run import train
from regard.errors import CannotResume, InputError
from regard.layers.join import PreNorm
from regard.layers.positions import RelativeBias
from regard.layers.reversible import Reversible
from regard.models import zoo
from regard.models.model import Model
from regard.schema import from_dict, to_dict, to_toml
from regard.training.optimizers import (
    Adafactor,
    AdamW,
    Constant,
    Cosine,
    Group,
    InverseSquareRoot,
    Lamb,
    Linear,
    Muon,
    Optimizer,
    Optimizers,
    Schedule,
    Trainable,
    trainable_parameters,
)
from regard.training.settings import Training
from tests.laws.zoo import MODELS, SMALL, VOCABULARY
from tests.training.runs import same_tensors, write_recipe
from tests.training.test_step import make_trainer

OPTIMIZERS: dict[str, Optimizer] = {"adamw": AdamW(), "adafactor": Adafactor(), "muon": Muon(), "lamb": Lamb()}


def built(description: Model, optimizer: Optimizer, **settings: object) -> list[dict[str, object]]:
    """The parameter groups of the torch optimizers, each with the name of its optimizer."""
    parts = optimizer.build(trainable_parameters(description.build(VOCABULARY), **settings))
    return [{**group, "optimizer": type(part).__name__} for part in parts for group in part.param_groups]


def values(groups: list[dict[str, object]], key: str) -> dict[str, object]:
    """The value of a key in each parameter's group."""
    return {name: group[key] for group in groups for name in group["param_names"]}


@pytest.mark.parametrize(
    ("name", "learning_rate"), [("adamw", 1e-2), ("adafactor", 5e-2), ("muon", 1e-2), ("lamb", 2e-2)]
)
def test_every_optimizer_trains(name: str, learning_rate: float):
    trainer = make_trainer(
        zoo.transformer(16, 1, 2), batch_tokens=500, learning_rate=learning_rate, label_smoothing=0.0,
        schedule=Constant(5), optimizer=OPTIMIZERS[name],
    )  # fmt: skip
    losses = [trainer.advance().loss for _ in range(40)]
    assert losses[-1] < 0.75 * losses[0]


HIDDEN = {
    "gpt2": [
        f"decoder.layers.{layer}.{part}.weight"
        for layer in (0, 1)
        for part in ("self.sublayer.query_key_value", "self.sublayer.out", "feedforward.sublayer.up",
                     "feedforward.sublayer.down")
    ],
    "transformer": [
        f"{stack}.layers.{layer}.{part}.weight"
        for stack, parts in (
            ("encoder", ("self.sublayer.query_key_value", "self.sublayer.out")),
            ("decoder", ("self.sublayer.query_key_value", "self.sublayer.out", "cross.sublayer.query",
                         "cross.sublayer.key_value", "cross.sublayer.out")),
        )
        for layer in (0, 1)
        for part in (*parts, "feedforward.sublayer.up", "feedforward.sublayer.down")
    ],
    "bahdanau": [
        *(
            f"encoder.layers.0.recurrent.sublayer.layers.0.{way}.rnn.weight_{part}_l0"
            for way in (0, 1)
            for part in ("ih", "hh")
        ),
        *(
            f"decoder.layers.0.cross.sublayer.{part}.weight"
            for part in ("token_projection", "cells.0.inputs", "cells.0.hidden", "initial_state.projections.0", "out")
        ),
    ],
}  # fmt: skip
UNTIED = {"gpt2, untied": zoo.gpt2(**SMALL, tied=False), "transformer, untied": zoo.transformer(**SMALL, tied=False)}


@pytest.mark.parametrize("name", [*HIDDEN, *UNTIED, "gpt2, relative bias"])
def test_muon_updates_the_hidden_matrices(name: str):
    owners = values(built((MODELS | UNTIED)[name], Muon()), "optimizer")
    expected = HIDDEN[name if name in HIDDEN else name.partition(",")[0]]
    assert sorted(parameter for parameter, owner in owners.items() if owner == "Muon") == sorted(expected)
    assert {*owners} - {*expected} >= {"embed.table.weight"}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_parameter_is_updated_once(name: str, kind: str):
    updated = [name for group in built(MODELS[name], OPTIMIZERS[kind]) for name in group["param_names"]]
    assert sorted(updated) == sorted(parameter for parameter, _ in MODELS[name].build(VOCABULARY).named_parameters())


def test_norms_biases_and_vectors_do_not_decay():
    decays = values(built(MODELS["gpt2"], Muon(weight_decay=0.2, others=AdamW(weight_decay=0.1))), "weight_decay")
    assert decays["decoder.layers.0.self.sublayer.out.weight"] == 0.2
    assert decays["embed.table.weight"] == 0.1
    assert decays["decoder.layers.0.self.sublayer.out.bias"] == 0
    assert decays["decoder.final_norm.weight"] == 0


def test_an_update_of_muon_is_as_large_as_one_of_adam():
    """Root mean square 0.2 of the learning rate for every shape, up to the error of five Newton-Schulz iterations."""
    torch.manual_seed(1)
    for shape in ((64, 16), (16, 64), (48, 48)):
        weight = nn.Parameter(torch.zeros(shape))
        weight.grad = torch.randn(shape)
        Optimizers(Muon().build([Trainable("weight", weight, True, 1.0, None)])).step(0.01)
        assert 0.2 * 0.01 * 0.6 < weight.detach().square().mean().sqrt() < 0.2 * 0.01 * 1.3


@pytest.mark.parametrize("min_trust", [0.0, 0.25, 2.0])
def test_lamb_follows_its_paper(min_trust: float):
    """Two weights, two steps, by hand: Adam's update with weight decay, times the larger of the trust ratios."""
    start, gradients, learning_rate, decay, epsilon = (3.0, 4.0), ((1.0, -2.0), (0.5, 1.0)), 0.1, 0.1, 1e-6
    x, m, v = list(start), [0.0, 0.0], [0.0, 0.0]
    for step, g in enumerate(gradients, start=1):
        m = [0.9 * a + 0.1 * b for a, b in zip(m, g)]
        v = [0.99 * a + 0.01 * b * b for a, b in zip(v, g)]
        even = [(a / (1 - 0.9**step)) / ((b / (1 - 0.99**step)) ** 0.5 + epsilon) for a, b in zip(m, v)]
        update = [u + decay * a for u, a in zip(even, x)]
        trust = max(min_trust, math.hypot(*x) / math.hypot(*update))
        x = [a - learning_rate * trust * u for a, u in zip(x, update)]
    weight = nn.Parameter(torch.tensor([start]))
    optimizers = Optimizers(Lamb(min_trust, AdamW((0.9, 0.99), epsilon, decay)).build(
        [Trainable("weight", weight, True, 1.0, None)]))  # fmt: skip
    for g in gradients:
        weight.grad = torch.tensor([g])
        optimizers.step(learning_rate)
    torch.testing.assert_close(weight.detach()[0], torch.tensor(x), rtol=1e-5, atol=1e-6)


def test_lamb_updates_weights_of_zero_as_adam_does():
    weight = nn.Parameter(torch.zeros(4))
    weight.grad = torch.tensor([1.0, -2.0, 3.0, 0.0])
    Optimizers(Lamb().build([Trainable("weight", weight, False, 1.0, None)])).step(0.1)
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.1, 0.1, -0.1, 0.0]), rtol=1e-4, atol=1e-6)
    small = nn.Parameter(torch.full((4,), 1e-3))
    small.grad = torch.ones(4)
    Optimizers(Lamb(adam=AdamW(weight_decay=0.0)).build([Trainable("small", small, False, 1.0, None)])).step(0.1)
    torch.testing.assert_close(small.detach(), torch.full((4,), 1e-3 - 0.25 * 0.1), rtol=1e-4, atol=1e-6)


def test_layer_decay_lowers_the_learning_rate_of_lower_layers():
    factors = values(built(zoo.transformer(**SMALL | {"depth": 3}, decoder_depth=2, tied=False, join=PreNorm()),
                           AdamW(), layer_decay=0.5), "lr_scale")  # fmt: skip
    below = {name: factor for name, factor in factors.items() if ".layers." not in name}
    assert below == {
        "embed.table.weight": 0.125, "readout.lm_head.weight": 1, "encoder.final_norm.weight": 1,
        "encoder.final_norm.bias": 1, "decoder.final_norm.weight": 1, "decoder.final_norm.bias": 1,
    }  # fmt: skip
    for stack, by_layer in (("encoder", [0.25, 0.5, 1]), ("decoder", [0.5, 1])):
        for layer, factor in enumerate(by_layer):
            names = [name for name in factors if name.startswith(f"{stack}.layers.{layer}.")]
            assert names
            assert {factors[name] for name in names} == {factor}


def test_layers_are_counted_with_every_join():
    description = zoo.gpt2(**SMALL, join=Reversible(), position=RelativeBias(8, 20))
    factors = values(built(description, Muon(), layer_decay=0.5), "lr_scale")
    assert factors["decoder.layers.1.self.sublayer.out.weight"] == 1
    assert factors["decoder.layers.0.self.norm.bias"] == 0.5
    assert factors["decoder.position.table.weight"] == 1
    assert factors["embed.table.weight"] == 0.25


def test_the_first_matching_group_wins():
    groups = (
        Group("*.layers.0.*", lr_scale=0.5),
        Group("*.out.*", lr_scale=3.0, weight_decay=0.3),
        Group("embed.*", weight_decay=0.0),
    )
    found = built(MODELS["gpt2"], AdamW(weight_decay=0.1), groups=groups, layer_decay=0.5)
    factors, decays = values(found, "lr_scale"), values(found, "weight_decay")
    first, second = (f"decoder.layers.{layer}.self.sublayer.out.weight" for layer in (0, 1))
    assert (factors[first], decays[first]) == (0.25, 0.1)
    assert (factors[second], decays[second]) == (3, 0.3)
    assert decays[second.replace("weight", "bias")] == 0
    assert (factors["embed.table.weight"], decays["embed.table.weight"]) == (0.25, 0)


def test_each_group_has_its_own_learning_rate():
    trainer = make_trainer(
        zoo.gpt2(16, 2, 2), learning_rate=0.01, schedule=Constant(), layer_decay=0.5, optimizer=Muon(),
        groups=(Group("embed.*", lr_scale=0.1),),
    )  # fmt: skip
    trainer.advance()
    groups = [group for part in trainer.optimizer.optimizers for group in part.param_groups]
    rates = values(groups, "lr")
    assert rates["embed.table.weight"] == pytest.approx(0.01 * 0.1 * 0.25)
    assert rates["decoder.layers.0.self.sublayer.out.weight"] == pytest.approx(0.005)
    assert rates["decoder.layers.1.self.sublayer.out.weight"] == 0.01


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("join", [PreNorm(), Reversible()], ids=["pre-norm", "reversible"])
def test_frozen_parameters_stay_and_all_others_change(kind: str, join: PreNorm | Reversible):
    frozen = ("embed.*", "*.layers.0.*", "*.self.*weight")
    trainer = make_trainer(
        zoo.gpt2(16, 2, 2, join=join), optimizer=OPTIMIZERS[kind], ema=0.9, schedule=Constant(),
        groups=tuple(Group(pattern, lr_scale=0.0) for pattern in frozen),
    )  # fmt: skip
    before = {name: tensor.detach().clone() for name, tensor in trainer.network.named_parameters()}
    for _ in range(3):
        trainer.advance()
    stayed = [name for name, tensor in trainer.network.named_parameters() if torch.equal(tensor, before[name])]
    assert stayed == [
        name
        for name in before
        if name.startswith("embed.") or ".layers.0." in name or (".self." in name and name.endswith("weight"))
    ]
    assert {path.rpartition("/")[0] for path in trainer.optimizer.tensors()} == before.keys() - set(stayed)
    assert len(trainable_parameters(trainer.network)) == len(before), "another run may train every parameter"


def test_muon_needs_no_hidden_matrix():
    trainer = make_trainer(zoo.gpt2(16, 1, 2), optimizer=Muon(), groups=(Group("decoder.layers.*", lr_scale=0.0),))
    assert [type(part) for part in trainer.optimizer.optimizers] == [torch.optim.AdamW]
    trainer.advance()


def test_the_example_of_the_documents_is_read_and_written():
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    train_table = tomllib.loads(page.partition("```toml\n[train]")[2].partition("```")[0])
    settings = parse_recipe({"text": {"corpus": "dates"}, "train": train_table}, name="r", where="r.toml").train
    assert settings.optimizer == Muon(weight_decay=0.1, others=AdamW(weight_decay=0.0))
    assert settings.groups == (Group("embed.*", 0.1, 0.0), Group("*.norm.*", 0.0))
    assert settings.layer_decay == 0.8
    assert tomllib.loads(to_toml({"train": train_table})) == {"train": train_table}
    assert from_dict(Training, to_dict(settings), where="state.json") == settings
    assert trainable_parameters(MODELS["transformer"].build(VOCABULARY), settings.groups, settings.layer_decay)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_resumed_run_equals_an_unbroken_one(tmp_path: Path, kind: str):
    recipe = write_recipe(tmp_path)
    common = [
        f"train.optimizer={kind}", "train.save_every=3", "train.layer_decay=0.5", "train.schedule.warmup=2",
        "train.groups=[{match='*.layers.0.self.*', lr_scale=0.0}, {match='embed.*', lr_scale=0.5, weight_decay=0.2}]",
    ]  # fmt: skip
    train(recipe, tmp_path / "straight", settings=[*common, "train.steps=6"])
    train(recipe, tmp_path / "broken", settings=[*common, "train.steps=3"])
    train(recipe, tmp_path / "broken", settings=[*common, "train.steps=6"])
    for name in ("model", "optimizer", "ema"):
        assert same_tensors(tmp_path / "straight", tmp_path / "broken", f"checkpoints/step-6/{name}.safetensors")
    with pytest.raises(CannotResume, match=r"train\.groups\[1\].weight_decay was 0\.2"):
        train(recipe, tmp_path / "broken", settings=[*common[:-1], common[-1].replace("0.2", "0.1")])


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizer_state_is_restored_by_name(kind: str):
    def steps(optimizers: Optimizers, weights: list[nn.Parameter], count: int) -> None:
        for _ in range(count):
            for weight in weights:
                weight.grad = weight.detach().cos()
            optimizers.step(0.01)

    def fresh() -> tuple[list[nn.Parameter], Optimizers]:
        shapes = {"a/b": (3, 5), "b": (4,), "a": (2, 3, 4), "b/step": (3, 3)}
        weights = [
            nn.Parameter(torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape)) for shape in shapes.values()
        ]
        parts = [Trainable(name, weight, weight.dim() == 2, 1.0, None) for name, weight in zip(shapes, weights)]
        return weights, Optimizers(OPTIMIZERS[kind].build(parts))

    straight, optimizers = fresh()
    steps(optimizers, straight, 5)
    first, optimizers = fresh()
    steps(optimizers, first, 2)
    kept = {name: tensor.clone() for name, tensor in optimizers.tensors().items()}
    second, optimizers = fresh()
    with torch.no_grad():
        for weight, was in zip(second, first):
            weight.copy_(was)
    optimizers.load(kept)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in optimizers.tensors().items())
    steps(optimizers, second, 3)
    assert all(map(torch.equal, straight, second))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("optimizer = { kind = 'muon', momentum = 1.0 }", "momentum must lie in 0 to 1"),
        ("optimizer = { kind = 'muon', others = { weight_decay = -1 } }", "weight_decay at 0 or more.*others"),
        ("optimizer = { kind = 'adafactor', clip_threshold = 0.5 }", "clip_threshold at 1 or more"),
        ("optimizer = { kind = 'adafactor', power = 0 }", "power and epsilon must be above 0"),
        ("optimizer = { kind = 'adamw', weight_decay = inf }", "weight_decay at 0 or more"),
        ("optimizer = { kind = 'lamb', min_trust = -1 }", "min_trust must be 0 or more, got -1"),
        ("optimizer = 'lamb'\nparallel = 'shard'", r"needs whole weights \(.*train\.parallel\)"),
        ("optimizer = 'moun'", 'Did you mean "muon"'),
        ("optimizer = 'adafactor'\nparallel = 'shard'", r"needs whole weights \(.*train\.parallel\)"),
        ("layer_decay = 0", r"layer_decay must be above 0 and at most 1, got 0\.0"),
        ("groups = [{ lr_scale = 0.1 }]", 'missing key "match"'),
        ("groups = [{ match = 'embed.*', lr_scale = -1 }]", r"at 0 or more.*groups\[0\]"),
        ("groups = [{ match = 'embed.*', weight_decay = -1 }]", r"at 0 or more.*groups\[0\]"),
    ],
)
def test_invalid_settings_are_refused(settings: str, message: str):
    recipe = {"text": {"corpus": "dates"}, **tomllib.loads(f"[train]\n{settings}")}
    with pytest.raises(InputError, match=message) as caught:
        parse_recipe(recipe, name="r", where="r.toml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            [Group("embd.*")],
            r'no parameter matches "embd\.\*" \(train\.groups\[0\]\.match\)\. Did you mean "embed\.\*"',
        ),
        ([Group("*.bias"), Group("decoder.layer.*")], 'Did you mean "decoder.layers'),
        ([Group("zzz")], r"Known: decoder\.\*, embed\.\*\."),
        ([Group("embed.*"), Group("embed.table.weight")], r'take all that "embed.table.weight" matches .*groups\[1\]'),
        ([Group("embed.*", lr_scale=0), Group("decoder.*", lr_scale=0)], "every parameter is frozen"),
    ],
)
def test_groups_without_parameters_are_refused(groups: list[Group], message: str):
    with pytest.raises(InputError, match=message):
        trainable_parameters(MODELS["gpt2"].build(VOCABULARY), groups)


@pytest.mark.parametrize("schedule", [InverseSquareRoot(50), Cosine(50), Linear(50), Constant(50)])
def test_a_warm_up_longer_than_the_run_is_shortened_to_a_tenth(schedule: Schedule):
    assert [schedule.factor(step, 20) for step in (1, 2)] == [0.5, 1.0]
    assert schedule.factor(20, 20) == replace(schedule, warmup=2).factor(20, 20)
    assert schedule.factor(20, 50) == 0.4
    assert schedule.factor(1, 1) > 0 or not isinstance(schedule, InverseSquareRoot | Constant)


@pytest.mark.parametrize("optimizer", [AdamW(), Adafactor(), Muon(), Lamb()])
def test_the_size_of_the_state_is_known_before_it_is_allocated(optimizer: Optimizer):
    network = zoo.transformer(16, 1, 2, tied=False).build(30)
    trained = trainable_parameters(network)
    optimizers = Optimizers(optimizer.build(trained))
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(1e-3)
    state = {name: tensor for name, tensor in optimizers.tensors().items() if not name.endswith("/step")}
    assert optimizer.state_size(trained) == sum(tensor.numel() for tensor in state.values())
