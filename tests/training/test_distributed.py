"""Distributed training equals training in one process, and survives killed processes; with torchrun."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

from regard.layers.lsh.masks import RankWindow
from regard.layers.reversible import Reversible
from regard.models import zoo
from regard.models.model import Model
from regard.store.checkpoint import saved_steps
from regard.training.distributed import Signs
from regard.training.optimizers import Muon
from regard.training.step import cloned
from tests.laws.zoo import LANGUAGE_MODELS, TRANSLATORS
from tests.training.runs import digests, write_recipe
from tests.training.test_step import WORDS
from tests.training.test_step import make_trainer as trainer_of_words

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

# Runs the command line; before a restart, one process sends itself a signal before a step.
DRIVER = """
import os, signal, sys
from regard.cli import run
from regard.training.step import Trainer
rank, number, step = (int(word) for word in sys.argv[1:4])
advance = Trainer.advance
def advance_or_signal(self):
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if first and self.world.rank == rank and self.step == step:
        os.kill(os.getpid(), number)
    return advance(self)
Trainer.advance = advance_or_signal
sys.exit(run(sys.argv[4:]))
"""

# Runs the command line; rank 0 stops itself while it saves.
HANGING = """
import os, signal, sys
from regard.cli import run
from regard.training.loop import Run
Run.write_checkpoint = lambda *_, **__: os.kill(os.getpid(), signal.SIGSTOP)
sys.exit(run(sys.argv[1:]))
"""

# Every case, trained by all processes together.
TWO_PROCESSES = """
import json, sys, torch
from regard.training.distributed import join_processes
from tests.training.test_distributed import CASES, RANDOM, losses
with join_processes(torch.device("cpu"), 60) as world:
    found = {name: losses(name, world=world) for name in CASES | RANDOM}
    if world.first:
        print(json.dumps(found))
"""

# Three processes, so that the order of a sum matters: a trainer, and one that resumes from its state.
TRIO = """
import torch
from regard.training.distributed import join_processes
from regard.models import zoo
from tests.training.test_distributed import MemoryCheckpoint, make_trainer
with join_processes(torch.device("cpu"), 60) as world:
    model = zoo.transformer(32, 2, 2)
    one, other = (make_trainer(model, world, batch_tokens=400, learning_rate=1e-2) for _ in range(2))
    for _ in range(3):
        one.advance()
    other.restore(MemoryCheckpoint(one.tensors()), one.state())
    for _ in range(4):
        assert one.advance().loss == other.advance().loss
    mine, others = one.tensors()["model"], other.tensors()["model"]
    assert all(torch.equal(tensor, others[name]) for name, tensor in mine.items())
"""


class MemoryCheckpoint:
    """The tensors of a trainer, as a checkpoint on disk returns them."""

    def __init__(self, groups: dict[str, dict[str, torch.Tensor]]) -> None:
        self.groups = {name: cloned(group) for name, group in groups.items()}

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        return self.groups[name]


def torchrun(
    *arguments: object, options: tuple[str, ...] = (), signalled: tuple[int, int, int] | None = None
) -> subprocess.Popen[str]:
    """The command line in two processes; `signalled` is (rank, signal, step)."""
    program = ["-m", "regard"]
    if signalled is not None:
        program = ["--no-python", sys.executable, "-c", DRIVER, *map(str, signalled)]
    return launched([*TORCHRUN, *options, *program, *map(str, arguments)])


def launched(command: list[str]) -> subprocess.Popen[str]:
    paths = [str(Path(__file__).parent.parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )  # fmt: skip


def torchrun_regard(*arguments: object) -> tuple[int, str, str]:
    return ended(torchrun(*arguments))


def regard(*arguments: object) -> tuple[int, str, str]:
    return ended(launched(["-m", "regard", *map(str, arguments)]))


def ended(process: subprocess.Popen[str], timeout: float = 300) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


make_trainer = partial(trainer_of_words, words=[*WORDS, "iota"], length=8)


# Models and settings; the budget leaves some steps with one sample, so that one process has none.
CASES: dict[str, tuple[Model, dict[str, object]]] = {
    "replicated": (zoo.transformer(16, 2, 2, dropout=0.0), {"batch_tokens": 60, "ema": 0.9}),
    "accumulated": (zoo.transformer(16, 2, 2, dropout=0.0), {"batch_tokens": 100, "accumulate": 2}),
    "sharded": (zoo.transformer(16, 2, 2, dropout=0.0), {"batch_tokens": 60, "ema": 0.9, "parallel": "shard"}),
    "sharded, accumulated": (
        zoo.transformer(16, 2, 2, dropout=0.0), {"batch_tokens": 100, "accumulate": 2, "parallel": "shard"},
    ),
    "sharded, gradient checkpointing": (
        zoo.gpt2(16, 2, 2, dropout=0.0), {"batch_tokens": 60, "parallel": "shard", "gradient_checkpointing": True},
    ),
    "sharded, muon": (
        zoo.gpt2(16, 2, 2, dropout=0.0), {"batch_tokens": 60, "parallel": "shard", "optimizer": Muon()},
    ),
    "reversible": (zoo.transformer(16, 2, 2, dropout=0.0, join=Reversible()), {"batch_tokens": 100}),
    "recurrent": (zoo.luong(16, 2, dropout=0.0), {"batch_tokens": 60}),
    "sharded, recurrent": (zoo.bahdanau(16, 2), {"batch_tokens": 60, "parallel": "shard"}),
    "sharded, reversible": (
        zoo.transformer(16, 2, 2, dropout=0.0, join=Reversible()), {"batch_tokens": 100, "parallel": "shard"},
    ),
}  # fmt: skip
# Models with random draws: a micro-batch draws the same in every process.
RANDOM: dict[str, tuple[Model, dict[str, object]]] = {
    "reversible with dropout": (zoo.gpt2(16, 2, 2, dropout=0.2, join=Reversible()), {"batch_tokens": 100}),
    "reformer": (zoo.reformer(16, 2, 2, pattern=RankWindow(2), buckets=4, dropout=0.2), {"batch_tokens": 100}),
    "reformer, encoder-decoder": (
        zoo.reformer(16, 2, 2, shape="both", pattern=RankWindow(2), buckets=4, dropout=0.2), {"batch_tokens": 100},
    ),
}  # fmt: skip


def losses(name: str, world: object = None, **changes: object) -> list[float]:
    description, settings = (CASES | RANDOM)[name]
    trained = make_trainer(description, world, learning_rate=1e-2, **{**settings, **changes})
    found = [trained.advance().loss for _ in range(8)]
    weights = trained.evaluated_weights()
    return [*found, *(float(tensor.detach().square().sum()) for tensor in weights.values())]


@pytest.fixture(scope="module")
def two_processes() -> dict[str, list[float]]:
    code, out, err = ended(launched([*TORCHRUN, "--no-python", sys.executable, "-c", TWO_PROCESSES]))
    assert code == 0, err
    found: dict[str, list[float]] = json.loads(out.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_two_processes_train_as_one_does(two_processes, name: str):
    assert two_processes[name] == pytest.approx(losses(name, parallel="replicate"), rel=1e-5, abs=1e-7)


@pytest.mark.slow
def test_three_processes_resume_bit_identically():
    code, _, err = ended(launched([*TORCHRUN[:-1], "3", "--no-python", sys.executable, "-c", TRIO]))
    assert code == 0, err


@pytest.mark.slow
@pytest.mark.parametrize("name", list(RANDOM))
def test_random_draws_of_a_micro_batch_do_not_depend_on_its_process(two_processes, name: str):
    assert two_processes[name] == pytest.approx(losses(name, accumulate=2), rel=1e-5, abs=1e-7)


@pytest.mark.slow
def test_micro_batches_split_over_processes_equal_accumulated_ones(two_processes):
    assert two_processes["accumulated"] == pytest.approx(losses("accumulated", accumulate=4), rel=1e-5, abs=1e-7)


def test_some_steps_leave_a_process_without_a_micro_batch():
    batches = make_trainer(*CASES["replicated"][:1], **CASES["replicated"][1]).batches
    assert min(map(len, batches.epoch(0))) == 1


@pytest.mark.parametrize("name", [*TRANSLATORS, *LANGUAGE_MODELS])
def test_gradient_checkpointing_changes_no_gradient(name: str):
    found = []
    for gradient_checkpointing in (False, True):
        trained = make_trainer(
            {**TRANSLATORS, **LANGUAGE_MODELS}[name], gradient_checkpointing=gradient_checkpointing, batch_tokens=200
        )
        steps = [trained.advance().loss for _ in range(3)]
        found.append((steps, [parameter.grad.clone() for parameter in trained.network.parameters()]))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(one, other) for one, other in zip(found[0][1], found[1][1]))


def test_gradient_checkpointing_stores_less():
    kept = {}
    for gradient_checkpointing in (False, True):
        trained = make_trainer(zoo.gpt2(32, 4, 2), batch_tokens=200)
        batch = trained.samples.batch(range(4))
        size = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal size
            size += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            trained.network.loss({**batch.inputs, "gradient_checkpointing": gradient_checkpointing}, batch.targets)
        kept[gradient_checkpointing] = size
    assert kept[True] < kept[False] / 2


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("distributed")
    recipe = write_recipe(folder)
    code, _, err = ended(torchrun("train", recipe, "--out", folder / "run"))
    assert code == 0, err
    return recipe, digests(folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_restarts_and_the_run_equals_the_unbroken_one(unbroken, tmp_path: Path, rank: int):
    recipe, expected = unbroken
    kill = (rank, signal.SIGKILL, 18)
    code, out, err = ended(
        torchrun("train", recipe, "--out", tmp_path / "run", options=("--max-restarts", "3"), signalled=kill)
    )
    assert code == 0, err
    assert "resuming at step 14" in out
    assert "Traceback" not in err
    assert err.count(f"rank {rank} of this run has ended") <= 1
    assert digests(tmp_path / "run") == expected


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all(unbroken, tmp_path: Path):
    recipe, expected = unbroken
    out = tmp_path / "run"
    code, _, err = ended(torchrun("train", recipe, "--out", out, signalled=(1, signal.SIGTERM, 16)))
    assert code != 0
    assert "regard: stopped by SIGTERM at step 17; it is saved" in err
    assert "regard: rank 1: stopped by SIGTERM at step 17" in err
    assert max(saved_steps(out / "checkpoints")) == 17
    code, message, err = ended(torchrun("train", recipe, "--out", out))
    assert code == 0, err
    assert "resuming at step 17" in message
    assert digests(out) == expected


@pytest.mark.slow
def test_the_number_of_processes_may_change(tmp_path: Path):
    recipe, out, plain = write_recipe(tmp_path), tmp_path / "run", ["--set", "model.dropout=0.0"]
    assert regard("train", recipe, "--out", tmp_path / "one", *plain)[0] == 0
    for steps, run, parallel in (
        (13, torchrun_regard, "replicate"),
        (27, regard, "shard"),
        (40, torchrun_regard, "shard"),
    ):
        changed = ["--set", f"train.steps={steps}", "--set", f"train.parallel={parallel}"]
        code, _, err = run("train", recipe, "--out", out, *plain, *changed)
        assert code == 0, err
    one, several = (losses_of(folder) for folder in (tmp_path / "one", out))
    assert list(one) == list(several) == list(range(1, 41))
    assert list(several.values()) == pytest.approx(list(one.values()), rel=1e-5)


def losses_of(folder: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.mark.slow
def test_a_process_that_hangs_does_not_hang_the_others(unbroken, tmp_path: Path):
    command = ["train", unbroken[0], "--out", tmp_path / "run", "--set", "train.timeout=10"]
    message = said_without(torchrun(*command, signalled=(1, signal.SIGSTOP, 10)))
    assert "rank 0: rank 1 of this run has not responded for 10 s or more (train.timeout)" in message
    assert "Traceback" not in message
    assert max(saved_steps(tmp_path / "run" / "checkpoints")) == 7


@pytest.mark.slow
def test_a_process_that_hangs_while_it_saves_does_not_hang_the_others(unbroken, tmp_path: Path):
    command = ["train", str(unbroken[0]), "--out", str(tmp_path / "run"), "--set", "train.timeout=10"]
    message = said_without(launched([*TORCHRUN, "--no-python", sys.executable, "-c", HANGING, *command]))
    assert "rank 1: rank 0 of this run has not responded for 10 s or more (train.timeout)" in message
    assert "Traceback" not in message


def test_a_process_that_works_alone_for_long_is_waited_for_while_it_runs():
    store, lost, noticed = torch.distributed.HashStore(), [], threading.Event()

    def note(*found: object) -> None:
        lost.append(found)
        noticed.set()

    worker, waiting = (Signs(store, rank, 2, timeout=1, lost=note) for rank in range(2))
    with waiting.waiting():
        assert not noticed.wait(2.5)
        worker.ended.set()
        assert noticed.wait(60)
    waiting.ended.set()
    assert lost[0] == (1, [0], 1)


def test_silence_within_a_step_is_left_to_the_step():
    lost: list[object] = []
    signs = Signs(torch.distributed.HashStore(), 0, 2, timeout=1, lost=lambda *found: lost.append(found))
    assert not signs.ended.wait(2.5)
    signs.ended.set()
    assert not lost


def said_without(process: subprocess.Popen[str]) -> str:
    """What a job says until it ends one of its processes, which hangs."""
    message = ""
    while not (hung := re.search(r"Sending process (\d+) closing signal", message)):
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line, message
        message += line
    os.kill(int(hung[1]), signal.SIGKILL)  # as torchrun would, half a minute later
    process.communicate(timeout=60)
    return message
