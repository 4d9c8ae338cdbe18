"""Training steps: loss, gradient accumulation, moving average, early stopping, mixed precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from regard.config.recipe import read_recipe
from regard.config.run import train
from regard.config.setup import prepare
from regard.data.read.corpus import Corpus
from regard.data.tasks.language_model import LanguageModel
from regard.data.tasks.translation import Translation
from regard.data.tokenize.train import Character, train_tokenizers
from regard.errors import InputError, RunFailed
from regard.layers.join import PreNorm
from regard.layers.reversible import Reversible
from regard.models import zoo
from regard.models.model import Model
from regard.training.distributed import World
from regard.training.log import Quiet
from regard.training.loop import Run
from regard.training.optimizers import InverseSquareRoot
from regard.training.settings import Training
from regard.training.step import Trainer
from regard.training.validate import Validation
from tests.laws.zoo import LANGUAGE_MODELS, TRANSLATORS
from tests.training.runs import write_recipe

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def make_trainer(
    description: Model,
    world: World | None = None,
    *,
    words: Sequence[str] = WORDS,
    length: int = 32,
    **settings: object,
) -> Trainer:
    targets = [word[::-1] for word in words] if description.encoder else None
    corpus = Corpus(words, targets, ("words",))
    tokenizers = train_tokenizers(Character(), corpus)
    task = LanguageModel(length) if targets is None else Translation()
    torch.manual_seed(1)
    network = description.build(tokenizers[0].vocabulary)
    return Trainer(network, task.samples(corpus, tokenizers), Training(**settings), torch.device("cpu"), world)


@pytest.mark.parametrize("name", [*TRANSLATORS, *LANGUAGE_MODELS])
def test_every_model_is_trained(name: str):
    settings = {"batch_tokens": 500, "label_smoothing": 0.0, "learning_rate": 1e-2, "schedule": InverseSquareRoot(5)}
    trainer = make_trainer({**TRANSLATORS, **LANGUAGE_MODELS}[name], **settings)
    losses = [trainer.advance().loss for _ in range(40)]
    assert losses[-1] < 0.75 * losses[0]
    assert all(parameter.grad is not None for parameter in trainer.network.parameters())


def test_the_loss_is_the_label_smoothed_cross_entropy_of_the_real_targets():
    trainer = make_trainer(zoo.transformer(16, 1, 2, dropout=0.0), label_smoothing=0.1, batch_tokens=10_000)
    batch = trainer.samples.batch(trainer.batches.epoch(0)[0])
    source = {name: batch.inputs[name] for name in ("source_ids", "source_padding")}
    logits = trainer.network.eval()(batch.inputs["ids"], **source, target_padding=batch.inputs["padding"])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), label_smoothing=0.1)
    trainer.network.train()
    assert trainer.advance().loss == pytest.approx(expected.item(), rel=1e-5)


def test_gradient_accumulation_adds_up_to_the_step():
    weights = []
    for accumulate in (1, 3):
        trainer = make_trainer(zoo.transformer(16, 1, 2, dropout=0.0), accumulate=accumulate, batch_tokens=200)
        for _ in range(4):
            trainer.advance()
        weights.append(torch.cat([parameter.flatten() for parameter in trainer.network.parameters()]))
    assert (weights[0] - weights[1]).abs().max() < 1e-4


def test_dropout_depends_on_the_step_alone():
    one, other = (make_trainer(zoo.transformer(16, 1, 2, dropout=0.5)) for _ in range(2))
    torch.rand(17)
    first = one.advance().loss
    torch.rand(3)
    assert other.advance().loss == first


def test_a_loss_that_is_not_finite_changes_no_weight():
    trainer = make_trainer(zoo.transformer(16, 1, 2))
    trainer.advance()
    with torch.no_grad():
        trainer.network.embed.table.weight[5] = torch.nan
    before = {name: tensor.clone() for name, tensor in trainer.network.named_parameters()}
    with pytest.raises(RunFailed, match=r"loss is nan at step 2 .*words:"):
        trainer.advance()
    for name, tensor in trainer.network.named_parameters():
        assert torch.equal(tensor, before[name]) or tensor.isnan().any()


def test_the_moving_average_follows_the_weights():
    trainer = make_trainer(zoo.transformer(16, 1, 2), ema=0.9)
    for _ in range(30):
        trainer.advance()
    table = trainer.network.embed.table.weight.detach().clone()
    average = trainer.ema["embed.table.weight"]
    assert 0 < (average - table).norm() < table.norm()
    with trainer.evaluation_network(trainer.evaluated_weights()) as network:
        assert torch.equal(network.embed.table.weight, average)
        assert not network.training
    assert torch.equal(trainer.network.embed.table.weight, table)
    assert trainer.network.training


def test_training_from_python_returns_a_model_that_translates(tmp_path: Path):
    recipe = write_recipe(tmp_path)
    model = train(recipe, tmp_path / "run", settings=["train.steps=15"])
    assert len(model.translate(["abc", "de"], beam=2)) == 2
    assert isinstance(model.translate("abc"), str)
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "config.json", "model.safetensors", "tokenizer.json", "generation_config.json", "README.md", "recipe.toml",
        "metrics.jsonl", "checkpoints",
    }  # fmt: skip


def test_early_stopping_ends_a_run_without_improvement(tmp_path: Path):
    recipe = write_recipe(tmp_path)
    given = ("steps=5000", "valid_every=1", "patience=2", "learning_rate=0.3", "average=2")
    settings = [f"train.{setting}" for setting in given]
    train(recipe, tmp_path / "run", settings=settings)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) < 200
    train(recipe, tmp_path / "run", settings=settings)
    assert (tmp_path / "run" / "metrics.jsonl").read_text().splitlines() == lines


def test_a_validation_that_is_not_a_number_is_never_the_best(tmp_path: Path):
    recipe = read_recipe(write_recipe(tmp_path))
    run = Run(prepare(recipe, tmp_path, World(torch.device("cpu")), Quiet()), tmp_path, torch.device("cpu"), Quiet())
    values = [run.value(Validation({"loss": loss})) for loss in (math.nan, math.inf, 5.0, 1.0)]
    assert values == [-math.inf, -math.inf, -5.0, -1.0]


def test_a_metric_that_validations_do_not_have_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"have no accuracy \(train\.best\)\. Use one of: loss, bleu, chrf, exact\."):
        train(write_recipe(tmp_path), tmp_path / "run", settings=["train.best=accuracy"])
    train(write_recipe(tmp_path), tmp_path / "run", settings=["train.best=chrf", "train.steps=3"])
    assert "chrf" in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.parametrize("name", ["gpt2", "transformer"])
def test_a_text_that_does_not_fit_the_shape_of_the_model_is_refused(tmp_path: Path, name: str):
    recipe = write_recipe(tmp_path)
    plain = [f"text.train='{tmp_path}/train.a'", f"text.valid='{tmp_path}/valid.a'"]
    settings = {"gpt2": ["model.name=gpt2"], "transformer": plain}[name]
    with pytest.raises(InputError, match=rf'"{name}" (cannot be trained|is trained on pairs .*train\.{{de,en}})'):
        train(recipe, tmp_path / "run", settings=settings)


def test_source_and_target_may_have_a_vocabulary_each(tmp_path: Path):
    settings = ["train.steps=3", "text.tokenizer.joint=false", "text.tokenizer.kind=character"]
    model = train(write_recipe(tmp_path), tmp_path / "run", settings=settings)
    assert model.network.source_vocabulary == model.tokenizer.vocabulary
    assert model.network.vocabulary == model.target_tokenizer.vocabulary


def test_a_text_longer_than_the_positions_is_refused_before_training(tmp_path: Path):
    settings = ["model.position={kind='learned', max_positions=5}"]
    with pytest.raises(InputError, match=r"text\.task.* this model reads 5"):
        train(write_recipe(tmp_path), tmp_path / "run", settings=settings)


@pytest.mark.parametrize("joins", ["pre_norm", "reversible"])
def test_mixed_precision_is_trained_too(joins: str):
    model = zoo.transformer(16, 1, 2, join={"pre_norm": PreNorm(), "reversible": Reversible()}[joins])
    trainer = make_trainer(model, precision="bfloat16", learning_rate=1e-2, schedule=InverseSquareRoot(5))
    losses = [trainer.advance().loss for _ in range(30)]
    assert losses[-1] < 0.8 * losses[0]
