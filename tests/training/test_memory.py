"""Out of memory: a run accumulates more and continues; real limits in processes of their own."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.config.recipe import read_recipe
from regard.config.setup import read_setup
from regard.data.batching import BatchSampler
from regard.errors import InputError
from regard.store.checkpoint import Checkpoint, saved_steps
from regard.training.memory import SHARE, Epoch, Probe, available, first_epoch, largest_batch, peak
from regard.training.settings import Training
from regard.training.step import is_out_of_memory
from tests.training.runs import at_steps, digests, in_own_process, regard, terminate_at, write_recipe
from tests.training.test_distributed import TORCHRUN, ended, launched

CPU = torch.device("cpu")
MB = 1 << 20

# Wide and shallow, with many samples per step: activations, 65 MB, need far more than the static memory.
WIDE = [
    "--set", "model.dropout=0.0", "--set", "model.inner=2000", "--set", "train.batch_tokens=4000",
    "--set", "train.steps=3", "--set", "train.valid_every=100", "--set", "train.average=1",
    "--set", "train.accumulate=1", "--set", "train.valid_lines=1", "--set", "train.timeout=60",
]  # fmt: skip


def limited(megabytes: int, after: int = 0) -> None:
    """Limit how much memory may grow, for two steps."""
    free = resource.RLIM_INFINITY
    at_steps({
        after: lambda trainer: limit(megabytes),
        after + 2: lambda trainer: resource.setrlimit(resource.RLIMIT_AS, (free, free)),
    })  # fmt: skip


def almost_no_memory() -> None:
    """Pretend that weights and optimizer fit in memory, and hardly anything else does."""
    from regard.training import memory

    assert memory.available(CPU) > 0
    memory.available = lambda device: 40 * MB


def accumulate_at(step: int, parts: int, stop: int | None = None) -> None:
    """Split steps into micro-batches after the n-th, as if memory had run out; optionally stop later."""
    at_steps({step: lambda trainer: setattr(trainer, "accumulate", parts)})
    if stop is not None:
        terminate_at(stop)


def limit(megabytes: int) -> None:
    """Limit how much memory may grow."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = pages * resource.getpagesize() + megabytes * MB, resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, limits)


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def accumulated(folder: Path) -> list[int]:
    found = folder / "checkpoints"
    return [Checkpoint(found / f"step-{n}", n).state()["trainer"]["accumulate"] for n in saved_steps(found)]


def test_a_step_that_does_not_fit_is_split_and_the_run_continues(tmp_path: Path):
    recipe = write_recipe(tmp_path, 1000)
    code, out, err = regard("train", recipe, *WIDE, "--out", tmp_path / "short", driver=partial(limited, 30))
    assert (code, err) == (0, "")
    parts = accumulated(tmp_path / "short")[-1]
    assert parts > 1
    assert "warning: out of memory at step 1; repeated in " in out
    assert f"train.accumulate = {parts}." in out
    given = [*WIDE, "--set", f"train.accumulate={parts}"]
    code, out, _ = regard("train", recipe, *given, "--out", tmp_path / "ample")
    assert (code, "out of memory" in out) == (0, False)
    assert len(losses(tmp_path / "short")) == 3
    assert losses(tmp_path / "short") == pytest.approx(losses(tmp_path / "ample"), rel=1e-5)


def test_a_split_run_resumes_with_as_many_micro_batches(tmp_path: Path):
    recipe, steps = write_recipe(tmp_path), ["--set", "train.steps=20"]
    assert regard("train", recipe, *steps, "--out", tmp_path / "whole", driver=partial(accumulate_at, 5, 4))[0] == 0
    driver = partial(accumulate_at, 5, 4, stop=9)
    code, _, err = regard("train", recipe, *steps, "--out", tmp_path / "run", driver=driver)
    assert (code, "stopped by SIGTERM at step 10" in err) == (143, True)
    code, out, _ = regard("train", recipe, *steps, "--out", tmp_path / "run")
    assert (code, "resuming at step 10" in out) == (0, True)
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")


def test_a_run_ends_with_one_line_when_not_even_a_sample_fits(tmp_path: Path):
    single = [*WIDE, "--set", "train.batch_tokens=1", "--set", "model.inner=100000", "--set", "train.save_every=1"]
    recipe, driver = write_recipe(tmp_path, 20), partial(limited, -60, after=1)
    code, _, err = regard("train", recipe, *single, "--out", tmp_path / "run", driver=driver)
    assert (code, err.count("\n")) == (1, 1)
    assert "out of memory at step 2: not even one sample fits" in err
    assert "Last good checkpoint: step 1." in err


def test_a_batch_that_hardly_fits_gives_a_warning(tmp_path: Path):
    given = [*WIDE, "--set", "train.batch_tokens=fit", "--set", "model.inner=20000", "--set", "train.steps=1"]
    recipe = write_recipe(tmp_path, 1000)
    code, out, err = regard("train", recipe, *given, "--out", tmp_path / "run", driver=almost_no_memory)
    assert (code, err) == (0, "")
    assert "warning: batch_tokens = 1,024 needs most of the memory or more (train.batch_tokens). See what to" in out


# Rank 1 has no memory left from the second step on.
TOGETHER = """
import sys
from functools import partial
from regard.cli import run
from regard.training.step import Trainer
from tests.training.test_memory import limit
advance = Trainer.advance
def limited(self):
    if self.world.rank == 1 and self.step == 1:
        limit(-20)
    return advance(self)
Trainer.advance = limited
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_process_without_memory_does_not_hang_the_others(tmp_path: Path):
    command = ["--no-python", sys.executable, "-c", TOGETHER, "train", str(write_recipe(tmp_path, 1000)), *WIDE]
    code, _, err = ended(launched([*TORCHRUN, *command, "--out", str(tmp_path / "run")]))
    assert code != 0
    assert "rank 1: out of memory at step 2, and distributed training cannot split a step again" in err


def test_only_out_of_memory_errors_count_as_such():
    for allocate in (lambda: torch.empty(1 << 50), lambda: np.ones(1 << 50)):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            allocate()
        assert is_out_of_memory(caught.value)
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2) @ torch.ones(3)
    assert not is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))


@pytest.fixture
def memory_limit() -> Iterator[Callable[[int], None]]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    yield limit
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_available_memory_respects_the_limit_of_the_process(memory_limit):
    before = available(CPU)
    assert before > 400 * MB
    memory_limit(300)
    assert 250 * MB < available(CPU) <= 300 * MB


def peaks() -> list[float]:
    """Peaks in megabytes: the same work twice, then no work."""

    def work() -> None:
        held = [torch.ones(100, 1000) for _ in range(300)]  # small enough to come from the heap, 120 MB in all
        del held[::2]

    torch.ones(100, 1000)  # the first call maps the code of torch, which counts as resident
    return [peak(done, CPU) / 1e6 for done in (work, work, lambda: None)]


def test_the_peak_counts_what_is_allocated_at_once():
    first, second, nothing = in_own_process(peaks)
    assert [first, second] == pytest.approx([120, 120], rel=0.05)
    assert nothing < 1


def chosen(
    recipe: Path, available_bytes: Sequence[int], steps_per_epoch: int, fastest: float = math.inf
) -> list[tuple[int, bool]]:
    """The largest batch for each number of available bytes that leaves this many steps per epoch.

    Speed grows with the samples of a step, up to the fastest.
    """
    from regard.training import memory

    memory._STEPS_PER_EPOCH = steps_per_epoch
    memory.Probe.speed = lambda self, step: min(float(len(step)), fastest)

    setup = read_setup(read_recipe(recipe, ["model.inner=4000", "train.accumulate=1"]))
    found = []
    for free in available_bytes:
        memory.available = lambda device, free=free: free
        found.append(largest_batch(setup.network, setup.samples, setup.recipe.train, CPU))
    return found


def needed(recipe: Path, batches: Sequence[int]) -> tuple[list[int], list[Epoch]]:
    """The memory of the largest step of each batch size, in bytes, and the size of an epoch."""
    setup = read_setup(read_recipe(recipe, ["model.inner=4000", "train.accumulate=1"]))
    probe = Probe(setup.network, setup.samples, replace(setup.recipe.train, batch_tokens=1024), CPU)
    epochs = [first_epoch(BatchSampler(setup.samples.lengths, tokens, 1)) for tokens in batches]
    return [probe.memory(epoch.largest).total for epoch in epochs], epochs


def test_batch_tokens_are_the_most_that_fit(tmp_path: Path):
    recipe = write_recipe(tmp_path, 1000)
    needs, epochs = in_own_process(needed, recipe, (1024, 2048, 4096))
    assert needs[1] - needs[0] == pytest.approx((needs[2] - needs[1]) / 2, rel=0.1)
    enough = [int(need / SHARE) for need in (1.05 * needs[0], 0.95 * needs[1], 1.05 * needs[1])]
    *short, (most, fits) = in_own_process(chosen, recipe, [10 * MB, *enough, 4000 * MB], 1)
    assert short == [(1024, False), (1024, True), (1024, True), (2048, True)]
    assert fits
    assert most > 2048
    assert in_own_process(chosen, recipe, [4000 * MB], epochs[1].steps) == [(2048, True)]
    assert in_own_process(chosen, recipe, [4000 * MB], 200) == [(1024, True)]
    # A larger batch that is no faster only makes fewer steps.
    assert in_own_process(chosen, recipe, [4000 * MB], 1, len(epochs[1].largest)) == [(2048, True)]


def test_the_speed_of_a_step_is_measured_in_tokens_per_second(tmp_path: Path):
    setup = read_setup(read_recipe(write_recipe(tmp_path, 100)))
    probe = Probe(setup.network, setup.samples, replace(setup.recipe.train, batch_tokens=1024), CPU)
    step = first_epoch(BatchSampler(setup.samples.lengths, 1024, 1)).largest
    start = time.perf_counter()
    speed = probe.speed(step, seconds=0.0)
    assert speed >= int(setup.samples.lengths[step].sum()) / (time.perf_counter() - start)


def test_a_run_keeps_the_batch_size_that_fitted_first(tmp_path: Path):
    recipe, fit = write_recipe(tmp_path, 300), ["--set", "train.batch_tokens=fit", "--set", "train.average=1"]
    train = ["train", recipe, *fit, "--out", tmp_path / "run"]
    code, out, err = regard(*train, "--set", "train.steps=2")
    assert (code, err) == (0, "")
    assert "batch_tokens = 1,024 fits (train.batch_tokens)" in out
    assert read_recipe(tmp_path / "run" / "recipe.toml").train.batch_tokens == 1024
    code, out, _ = regard(*train, "--set", "train.steps=4", driver=nothing_fits)
    assert (code, "resuming at step 2" in out, "fits" in out) == (0, True, False)
    again = ["train", recipe, "--set", "train.average=1", "--set", "train.batch_tokens=1024"]
    assert regard(*again, "--set", "train.steps=4", "--out", tmp_path / "number")[0] == 0
    assert losses(tmp_path / "run") == losses(tmp_path / "number")


def nothing_fits() -> None:
    from regard.config import setup

    setup.largest_batch = lambda *given: (1024, False)


def test_a_batch_is_a_number_or_fit():
    assert Training(batch_tokens="fit").batch_tokens == "fit"
    with pytest.raises(InputError, match=r'a whole number or "fit", got "fits" .*train\.batch_tokens'):
        read_recipe("dates", ["train.batch_tokens=fits"])
    with pytest.raises(InputError, match="batch_tokens must be 1 or more"):
        Training(batch_tokens=0)


def test_work_that_fails_is_not_repeated():
    done = []

    def fails() -> None:
        done.append(1)
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError):
        peak(fails, torch.device("cpu"))
    assert done == [1]
