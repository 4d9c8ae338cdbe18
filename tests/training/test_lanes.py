"""What is remembered goes on from step to step: exactly, through checkpoints, and whoever takes which lanes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from regard.config.recipe import read_recipe
from regard.config.run import train
from regard.data.batching import Place
from regard.data.read.corpus import Corpus
from regard.data.tasks import TruncatedBPTT
from regard.data.tokenize.train import Byte
from regard.errors import InputError
from regard.layers.contract import Past
from regard.models import zoo
from regard.models.model import Model
from regard.training.distributed import World
from regard.training.optimizers import Constant
from regard.training.settings import Training
from regard.training.step import Trainer
from regard.training.truncated_bptt import Lanes
from regard.training.validate import read_through
from tests.training.test_parallel import TORCHRUN, Held, ended, launched

BYTES = Byte().train([])
TEXT = "".join(f"{number} and {number * number}; " for number in range(90))
SMALL = zoo.sha_rnn(16, 2, window=40, dropout=0.0)
MODELS = {"sha-rnn": SMALL, "lstm": zoo.lstm_lm(16, 2, dropout=0.0)}


def learner(description: Model, world: World | None = None, *, length: int = 16, rows: int = 4, **settings) -> Trainer:
    samples = TruncatedBPTT(length, rows).samples(Corpus([TEXT], None, ("text",)), (BYTES, None))
    torch.manual_seed(1)
    settings = {"smoothing": 0.0, "rate": 1e-2, "schedule": Constant(), **settings}
    return Trainer(description.build(BYTES.vocabulary), samples, Training(**settings), torch.device("cpu"), world)


def together(trainer: Trainer) -> float:
    """The mean loss of an epoch in which every lane is read at once."""
    samples, lanes = trainer.samples, trainer.samples.lanes
    loss = tokens = 0
    for lane in range(lanes):
        rows = [samples.batch([number]) for number in range(lane, len(samples), lanes)]
        ids, targets = (torch.cat(parts, dim=1) for parts in zip(*((b.inputs["ids"], b.targets) for b in rows)))
        with torch.no_grad():
            loss += float(trainer.network.eval().loss({"ids": ids}, targets))
        tokens += int((targets >= 0).sum())
    return loss / tokens


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_windows_that_go_on_are_one_reading(name: str, accumulate: int):
    trainer = learner(MODELS[name], learning_rate=1e-30, accumulate=accumulate)
    trainer.network.eval()
    steps = []
    while trainer.place.epoch == 0:
        steps.append(trainer.advance())
    mean = sum(step.loss * step.targets for step in steps) / sum(step.targets for step in steps)
    assert mean == pytest.approx(together(trainer), rel=1e-5)
    read = read_through(trainer.network, trainer.samples, 64, answers=False)
    assert read.loss / read.targets == pytest.approx(mean, rel=1e-5)


def test_an_epoch_begins_with_nothing():
    trainer = learner(SMALL, learning_rate=1e-30)
    first = trainer.advance().loss
    assert trainer.lanes.past.read == 16
    while trainer.place.epoch == 0:
        trainer.advance()
    assert trainer.lanes.past == Past()
    assert trainer.advance().loss == pytest.approx(first, rel=1e-6)


def test_a_run_that_jumps_to_another_epoch_begins_with_nothing():
    trainer = learner(SMALL, learning_rate=1e-30)
    first = trainer.advance().loss
    trainer.advance()
    trainer.place = Place(1)
    assert trainer.advance().loss == pytest.approx(first, rel=1e-6)


def test_gradients_end_where_a_window_begins():
    """The gradient of a window is that of its own loss, what came before being given."""
    trainer = learner(SMALL, learning_rate=1e-30)
    trainer.advance()
    past = Past(trainer.lanes.past.memory, trainer.lanes.past.read)
    trainer.advance()
    batch = trainer.samples.batch(trainer.plan.epoch(0)[1])
    network = SMALL.build(BYTES.vocabulary)
    network.load_state_dict(trainer.network.state_dict())
    (network.train().loss({**batch.inputs, "past": past}, batch.targets) / batch.tokens).backward()
    norm = torch.cat([parameter.grad.flatten() for parameter in network.parameters()]).norm()
    factor = min(1.0, 1 / float(norm))
    for mine, its in zip(network.parameters(), trainer.network.parameters()):
        torch.testing.assert_close(mine.grad * factor, its.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("steps", [3, 30])
def test_a_trainer_goes_on_as_the_one_it_was_saved_by(name: str, steps: int):
    description = zoo.sha_rnn(16, 2, window=40, dropout=0.2) if name == "sha-rnn" else MODELS[name]
    one, other = (learner(description, accumulate=2) for _ in range(2))
    for _ in range(steps):
        one.advance()
    other.restore(Held(one.tensors()), one.position())
    assert other.lanes.past.read == one.lanes.past.read > 0
    assert [one.advance().loss for _ in range(4)] == [other.advance().loss for _ in range(4)]
    forgetful = learner(description, accumulate=2)
    forgetful.restore(Held(one.tensors()), one.position())
    forgetful.lanes.past = Past()
    assert forgetful.advance().loss != one.advance().loss, "what is remembered matters"


def test_what_is_remembered_of_a_long_text_is_bounded():
    trainer = learner(SMALL, length=8, rows=1)
    sizes = []
    for _ in range(60):
        trainer.advance()
        sizes.append(sum(tensor.numel() for tensor in trainer.tensors()["memory"].values()))
    assert max(sizes) <= 3 * 40 * 16 + 8 * 16 + 100


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_lanes_are_dealt_and_gathered(parts: int):
    lanes = Lanes(7, 1, SMALL)
    lanes.past = Past({"a": torch.arange(14.0).view(7, 2), "b": (torch.arange(7), None)}, 5)
    dealt = lanes.dealt(parts)
    assert [past.memory["b"][0].tolist() for past in dealt] == [list(range(7))[part::parts] for part in range(parts)]
    again = lanes.gathered(dealt)
    assert again.read == 5
    assert torch.equal(again.memory["a"], lanes.past.memory["a"])
    assert torch.equal(again.memory["b"][0], lanes.past.memory["b"][0])


# Lanes are dealt to two processes, which go on from what two others held.
COMPANY = """
import json, sys, torch
from regard.learn.parallel import joined
from tests.training.test_lanes import MODELS, learner
from tests.training.test_parallel import Held
with joined(torch.device("cpu"), 60) as world:
    found = {}
    for name, description in MODELS.items():
        for parallel in ("replicate", "shard"):
            one, other = (learner(description, world, accumulate=2, parallel=parallel) for _ in range(2))
            first = [one.advance().loss for _ in range(3)]
            tensors = one.tensors()
            if parallel == "replicate":
                other.restore(Held(tensors), one.position())
                assert [one.advance().loss for _ in range(3)] == [other.advance().loss for _ in range(3)]
            found[f"{name} {parallel}"] = first, [float(t.sum()) for t in tensors["memory"].values()]
    if world.first:
        print(json.dumps(found))
"""


@pytest.mark.slow
def test_two_processes_carry_what_one_does():
    code, out, err = ended(launched([*TORCHRUN, "--no-python", sys.executable, "-c", COMPANY]))
    assert code == 0, err
    for name, (losses, memory) in json.loads(out.splitlines()[-1]).items():
        alone = learner(MODELS[name.split()[0]])
        assert losses == pytest.approx([alone.advance().loss for _ in range(3)], rel=1e-5)
        whole = [float(tensor.sum()) for tensor in alone.tensors()["memory"].values()]
        assert memory == pytest.approx(whole, rel=1e-3, abs=1e-3)


def recipe(folder: Path, **settings: object) -> Path:
    (folder / "text.txt").write_text(TEXT)
    lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
    path = folder / "recipe.toml"
    path.write_text(
        '[model]\nname = "sha_rnn"\nwidth = 16\ndepth = 2\nwindow = 40\ndropout = 0.2\n'
        f'[text]\ntrain = "{folder}/text.txt"\nvalid = "{folder}/text.txt"\ntokenizer = "byte"\n'
        'task = { kind = "truncated_bptt", length = 16, rows = 5 }\n'
        f"[train]\nsteps = 9\nrate = 1e-2\nsave_every = 3\nvalid_every = 4\naccumulate = 2\n{lines}"
    )
    return path


def test_a_resumed_run_ends_as_the_unbroken_one(tmp_path: Path):
    path = recipe(tmp_path, optimizer='{ kind = "lamb" }')
    train(path, tmp_path / "whole")
    for steps in (2, 5, 9):
        train(path, tmp_path / "parts", settings=[f"train.steps={steps}"])
    for name in ("model", "optimizer", "memory"):
        whole, parts = (
            load_file(tmp_path / run / "checkpoints" / "step-9" / f"{name}.safetensors") for run in ("whole", "parts")
        )
        assert whole.keys() == parts.keys()
        assert all(torch.equal(whole[tensor], parts[tensor]) for tensor in whole)


def test_new_text_is_read_from_its_begin(tmp_path: Path):
    path = recipe(tmp_path)
    train(path, tmp_path / "run", settings=["train.steps=4"])
    (tmp_path / "text.txt").write_text(TEXT[::-1])
    train(path, tmp_path / "run", new_data=True)


def test_what_cannot_be_carried_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"grows with the text.*\(text\.problem\)\. Use problem = \"next_token\""):
        learner(zoo.gpt2(16, 1, 2))
    with pytest.raises(InputError, match=r"7 lanes .* 2 processes \(text\.problem\.rows\)\. Use a multiple of 2"):
        Lanes(7, 2, SMALL)
    with pytest.raises(InputError, match=r'"bert" does not learn .* stream .*model.name = "sha_rnn"'):
        train(recipe(tmp_path), tmp_path / "out", settings=['model={name="bert", width=16, depth=1, heads=2}'])
    assert read_recipe(recipe(tmp_path)).text.task == TruncatedBPTT(16, 5)
    with pytest.raises(InputError, match="only a language model reads on"):
        zoo.transformer(16, 1, 2).build(40).hidden_states(torch.ones(1, 3).long(), past=Past())
