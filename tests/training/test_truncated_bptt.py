"""What is remembered goes on from step to step: exactly, through checkpoints, and whoever takes which lanes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from regard.config.recipe import read_recipe
from regard.config.run import train
from regard.data.batching import Cursor
from regard.data.read.corpus import Corpus
from regard.data.tasks import TruncatedBPTT
from regard.data.tokenize.train import Byte
from regard.errors import InputError
from regard.layers.contract import CarriedMemory
from regard.models import zoo
from regard.models.model import Model
from regard.training.distributed import World
from regard.training.optimizers import Constant
from regard.training.settings import Training
from regard.training.step import Trainer
from regard.training.truncated_bptt import Streams
from regard.training.validate import predict
from tests.training.runs import same_tensors
from tests.training.test_distributed import TORCHRUN, MemoryCheckpoint, ended, launched

BYTES = Byte().train([])
TEXT = "".join(f"{number} and {number * number}; " for number in range(90))
SMALL = zoo.sha_rnn(16, 2, window=40, dropout=0.0)
MODELS = {"sha-rnn": SMALL, "lstm": zoo.lstm_lm(16, 2, dropout=0.0)}


def make_trainer(
    description: Model, world: World | None = None, *, length: int = 16, streams: int = 4, **settings
) -> Trainer:
    samples = TruncatedBPTT(length, streams).samples(Corpus([TEXT], None, ("text",)), (BYTES, None))
    torch.manual_seed(1)
    settings = {"label_smoothing": 0.0, "learning_rate": 1e-2, "schedule": Constant(), **settings}
    return Trainer(description.build(BYTES.vocabulary), samples, Training(**settings), torch.device("cpu"), world)


def together(trainer: Trainer) -> float:
    """The mean loss of an epoch in which every stream is read at once."""
    samples, streams = trainer.samples, trainer.samples.streams
    loss = tokens = 0
    for stream in range(streams):
        rows = [samples.batch([number]) for number in range(stream, len(samples), streams)]
        ids, targets = (torch.cat(parts, dim=1) for parts in zip(*((b.inputs["ids"], b.targets) for b in rows)))
        with torch.no_grad():
            loss += float(trainer.network.eval().loss({"ids": ids}, targets))
        tokens += int((targets >= 0).sum())
    return loss / tokens


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_segments_with_carried_memory_equal_one_pass(name: str, accumulate: int):
    trainer = make_trainer(MODELS[name], learning_rate=1e-30, accumulate=accumulate)
    trainer.network.eval()
    steps = []
    while trainer.cursor.epoch == 0:
        steps.append(trainer.advance())
    mean = sum(step.loss * step.targets for step in steps) / sum(step.targets for step in steps)
    assert mean == pytest.approx(together(trainer), rel=1e-5)
    read = predict(trainer.network, trainer.samples, 64, predictions=False)
    assert read.loss / read.targets == pytest.approx(mean, rel=1e-5)


def test_an_epoch_starts_without_memory():
    trainer = make_trainer(SMALL, learning_rate=1e-30)
    first = trainer.advance().loss
    assert trainer.streams.carried.position == 16
    while trainer.cursor.epoch == 0:
        trainer.advance()
    assert trainer.streams.carried == CarriedMemory()
    assert trainer.advance().loss == pytest.approx(first, rel=1e-6)


def test_a_run_that_jumps_to_another_epoch_starts_without_memory():
    trainer = make_trainer(SMALL, learning_rate=1e-30)
    first = trainer.advance().loss
    trainer.advance()
    trainer.cursor = Cursor(1)
    assert trainer.advance().loss == pytest.approx(first, rel=1e-6)


def test_gradients_stop_at_the_start_of_a_segment():
    """The gradient of a segment is that of its own loss, for a given memory."""
    trainer = make_trainer(SMALL, learning_rate=1e-30)
    trainer.advance()
    past = CarriedMemory(trainer.streams.carried.memory, trainer.streams.carried.position)
    trainer.advance()
    batch = trainer.samples.batch(trainer.batches.epoch(0)[1])
    network = SMALL.build(BYTES.vocabulary)
    network.load_state_dict(trainer.network.state_dict())
    (network.train().loss({**batch.inputs, "carried": past}, batch.targets) / batch.tokens).backward()
    norm = torch.cat([parameter.grad.flatten() for parameter in network.parameters()]).norm()
    factor = min(1.0, 1 / float(norm))
    for mine, its in zip(network.parameters(), trainer.network.parameters()):
        torch.testing.assert_close(mine.grad * factor, its.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("steps", [3, 30])
def test_a_restored_trainer_continues_as_the_saved_one(name: str, steps: int):
    description = zoo.sha_rnn(16, 2, window=40, dropout=0.2) if name == "sha-rnn" else MODELS[name]
    one, other = (make_trainer(description, accumulate=2) for _ in range(2))
    for _ in range(steps):
        one.advance()
    other.restore(MemoryCheckpoint(one.tensors()), one.state())
    assert other.streams.carried.position == one.streams.carried.position > 0
    assert [one.advance().loss for _ in range(4)] == [other.advance().loss for _ in range(4)]
    without_memory = make_trainer(description, accumulate=2)
    without_memory.restore(MemoryCheckpoint(one.tensors()), one.state())
    without_memory.streams.carried = CarriedMemory()
    assert without_memory.advance().loss != one.advance().loss, "the memory matters"


def test_the_memory_of_a_long_text_is_bounded():
    trainer = make_trainer(SMALL, length=8, streams=1)
    sizes = []
    for _ in range(60):
        trainer.advance()
        sizes.append(sum(tensor.numel() for tensor in trainer.tensors()["memory"].values()))
    assert max(sizes) <= 3 * 40 * 16 + 8 * 16 + 100


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_streams_are_split_and_merged(parts: int):
    streams = Streams(7, 1, SMALL)
    streams.carried = CarriedMemory({"a": torch.arange(14.0).view(7, 2), "b": (torch.arange(7), None)}, 5)
    found = streams.split(parts)
    assert [past.memory["b"][0].tolist() for past in found] == [list(range(7))[part::parts] for part in range(parts)]
    again = streams.merged(found)
    assert again.position == 5
    assert torch.equal(again.memory["a"], streams.carried.memory["a"])
    assert torch.equal(again.memory["b"][0], streams.carried.memory["b"][0])


# Streams are split over two processes, which resume from the state of two others.
TWO_PROCESSES = """
import json, sys, torch
from regard.training.distributed import join_processes
from tests.training.test_truncated_bptt import MODELS, make_trainer
from tests.training.test_distributed import MemoryCheckpoint
with join_processes(torch.device("cpu"), 60) as world:
    found = {}
    for name, description in MODELS.items():
        for parallel in ("replicate", "shard"):
            one, other = (make_trainer(description, world, accumulate=2, parallel=parallel) for _ in range(2))
            first = [one.advance().loss for _ in range(3)]
            tensors = one.tensors()
            if parallel == "replicate":
                other.restore(MemoryCheckpoint(tensors), one.state())
                assert [one.advance().loss for _ in range(3)] == [other.advance().loss for _ in range(3)]
            found[f"{name} {parallel}"] = first, [float(t.sum()) for t in tensors["memory"].values()]
    if world.first:
        print(json.dumps(found))
"""


@pytest.mark.slow
def test_two_processes_carry_the_memory_that_one_does():
    code, out, err = ended(launched([*TORCHRUN, "--no-python", sys.executable, "-c", TWO_PROCESSES]))
    assert code == 0, err
    for name, (losses, memory) in json.loads(out.splitlines()[-1]).items():
        single = make_trainer(MODELS[name.split()[0]])
        assert losses == pytest.approx([single.advance().loss for _ in range(3)], rel=1e-5)
        whole = [float(tensor.sum()) for tensor in single.tensors()["memory"].values()]
        assert memory == pytest.approx(whole, rel=1e-3, abs=1e-3)


def recipe(folder: Path, **settings: object) -> Path:
    (folder / "text.txt").write_text(TEXT)
    lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
    path = folder / "recipe.toml"
    path.write_text(
        '[model]\nname = "sha_rnn"\nwidth = 16\ndepth = 2\nwindow = 40\ndropout = 0.2\n'
        f'[text]\ntrain = "{folder}/text.txt"\nvalid = "{folder}/text.txt"\ntokenizer = "byte"\n'
        'task = { kind = "truncated_bptt", length = 16, streams = 5 }\n'
        f"[train]\nsteps = 9\nlearning_rate = 1e-2\nsave_every = 3\nvalid_every = 4\naccumulate = 2\n{lines}"
    )
    return path


def test_a_resumed_run_equals_the_unbroken_one(tmp_path: Path):
    path = recipe(tmp_path, optimizer='{ kind = "lamb" }')
    train(path, tmp_path / "whole")
    for steps in (2, 5, 9):
        train(path, tmp_path / "parts", settings=[f"train.steps={steps}"])
    for name in ("model", "optimizer", "memory"):
        assert same_tensors(tmp_path / "whole", tmp_path / "parts", f"checkpoints/step-9/{name}.safetensors")


def test_new_text_is_read_from_its_start(tmp_path: Path):
    path = recipe(tmp_path)
    train(path, tmp_path / "run", settings=["train.steps=4"])
    (tmp_path / "text.txt").write_text(TEXT[::-1])
    train(path, tmp_path / "run", new_data=True)


def test_memory_that_cannot_be_carried_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"grows with the text.*\(text\.task\)\. Use task = \"language_model\""):
        make_trainer(zoo.gpt2(16, 1, 2))
    with pytest.raises(InputError, match=r"7 streams .* 2 processes \(text\.task\.streams\)\. Use a multiple of 2"):
        Streams(7, 2, SMALL)
    with pytest.raises(InputError, match=r'"bert" cannot be trained as truncated bptt .*model.name = "sha_rnn"'):
        train(recipe(tmp_path), tmp_path / "out", settings=['model={name="bert", width=16, depth=1, heads=2}'])
    assert read_recipe(recipe(tmp_path)).text.task == TruncatedBPTT(16, 5)
    with pytest.raises(InputError, match="only a decoder continues a text"):
        zoo.transformer(16, 1, 2).build(40).hidden_states(torch.ones(1, 3).long(), carried=CarriedMemory())
