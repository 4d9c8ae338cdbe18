"""The batch sampler: every sample once per epoch, in the token budget, as a function of seed and epoch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from regard.data.batching import IGNORE_INDEX, Batch, BatchSampler, Cursor, MixtureComponent, permute, split
from regard.errors import InputError

LENGTHS = st.tuples(st.integers(0, 300), st.integers(1, 3)).flatmap(
    lambda shape: npst.arrays(np.int64, shape, elements=st.integers(1, 60))
)


def padded_tokens(lengths: np.ndarray, step: np.ndarray) -> int:
    """The padded tokens of a step: rows times the maximal length of each side."""
    return int(len(step) * lengths[step].max(axis=0).sum())


def steps_of(sampler: BatchSampler) -> list[list[np.ndarray]]:
    """Two epochs and the order of validation."""
    return [sampler.epoch(0), sampler.epoch(1), sampler.in_order()]


@given(lengths=LENGTHS, budget=st.integers(1, 500), seed=st.integers(0, 2**40))
def test_every_sample_comes_exactly_once_per_epoch(lengths: np.ndarray, budget: int, seed: int) -> None:
    for steps in steps_of(BatchSampler(lengths, budget, seed)):
        taken = np.concatenate([np.zeros(0, np.int64), *steps])
        assert sorted(taken.tolist()) == list(range(len(lengths)))


@given(lengths=LENGTHS, budget=st.integers(1, 500), seed=st.integers(0, 2**40))
def test_no_step_exceeds_the_budget_unless_a_single_sample_does(lengths: np.ndarray, budget: int, seed: int) -> None:
    for steps in steps_of(BatchSampler(lengths, budget, seed)):
        assert all(padded_tokens(lengths, step) <= budget or len(step) == 1 for step in steps)


@settings(deadline=None)
@given(lengths=LENGTHS, budget=st.integers(1, 500), seed=st.integers(0, 9), epochs=st.permutations(range(4)))
def test_an_epoch_depends_only_on_seed_and_number(
    lengths: np.ndarray, budget: int, seed: int, epochs: list[int]
) -> None:
    used = BatchSampler(lengths, budget, seed)
    for number in epochs:
        fresh = BatchSampler(lengths.copy(), budget, seed)
        assert [step.tolist() for step in used.epoch(number)] == [step.tolist() for step in fresh.epoch(number)]


def test_the_order_is_the_same_in_every_process_and_version() -> None:
    program = (
        "import numpy as np; from regard.data.batching import BatchSampler;"
        "print([step.tolist() for step in BatchSampler(np.arange(1, 11)[:, None], 12, 7).epoch(3)])"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert other.strip() == "[[0, 1, 2], [3, 4], [5], [8], [7], [6], [9]]"


def test_seeds_and_epochs_differ() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, (500, 2))
    samplers = [BatchSampler(lengths, 512, seed) for seed in (1, 2)]
    orders = {str([step.tolist() for step in sampler.epoch(number)]) for sampler in samplers for number in (0, 1)}
    assert len(orders) == 4


def test_a_step_is_as_large_as_the_budget_allows() -> None:
    sampler = BatchSampler(np.full((10, 1), 8), 32, 1)
    assert sorted(len(step) for step in sampler.epoch(0)) == [2, 4, 4]


def test_samples_of_a_step_have_similar_lengths() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, (20_000, 2))
    lengths[:, 1] = lengths[:, 0]
    steps = BatchSampler(lengths, 4096, 1).epoch(0)
    assert lengths.sum() / sum(padded_tokens(lengths, step) for step in steps) > 0.95


def test_long_steps_do_not_come_last() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, (20_000, 1))
    longest = np.array([lengths[step].max() for step in BatchSampler(lengths, 4096, 1).epoch(0)])
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.2


def test_validation_goes_from_short_to_long() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, (1_000, 2))
    longest = [lengths[step].max() for step in BatchSampler(lengths, 512, 1).in_order()]
    assert longest == sorted(longest)


def test_the_cursor_visits_every_step_of_every_epoch() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, (700, 2))
    sampler, cursor = BatchSampler(lengths, 64, 5), Cursor()
    assert sampler.pools > 1
    for number in range(3):
        for expected in sampler.epoch(number):
            assert cursor.epoch == number
            fresh = BatchSampler(lengths, 64, 5).next_step(cursor)[0]
            taken, cursor = sampler.next_step(cursor)
            assert taken.tolist() == fresh.tolist() == expected.tolist()


def test_weights_set_how_often_a_sample_comes() -> None:
    mixture = (MixtureComponent(40, 2.0), MixtureComponent(100), MixtureComponent(30, 0.5), MixtureComponent(10, 0.0))
    lengths = np.random.default_rng(0).integers(1, 50, (180, 1))
    halves = []
    for number in range(2):
        taken = np.concatenate(BatchSampler(lengths, 100, 3, mixture).epoch(number))
        counts = np.bincount(taken, minlength=180)
        assert counts[:140].tolist() == [2] * 40 + [1] * 100
        assert sorted(counts[140:].tolist()) == [0] * 25 + [1] * 15
        assert not counts[170:].any()
        halves.append(counts[140:170].tolist())
    assert halves[0] != halves[1]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 1000, 4097])
def test_the_stateless_shuffle_is_a_permutation(count: int) -> None:
    assert sorted(permute(np.arange(count), count, (1, 2)).tolist()) == list(range(count))


def test_the_stateless_shuffle_looks_random() -> None:
    moved = permute(np.arange(20_000), 20_000, (1, 2))
    assert abs(np.corrcoef(moved, np.arange(20_000))[0, 1]) < 0.03
    assert abs(np.corrcoef(moved[1:], moved[:-1])[0, 1]) < 0.03
    assert (moved == permute(np.arange(20_000), 20_000, (1, 3))).mean() < 0.01


@pytest.mark.parametrize(("budget", "seed", "key"), [(0, 1, "train.batch_tokens"), (8, -1, "train.seed")])
def test_an_impossible_setting_names_its_key(budget: int, seed: int, key: str) -> None:
    with pytest.raises(InputError, match=key):
        BatchSampler(np.ones((5, 1), np.int64), budget, seed)


@given(count=st.integers(0, 50), parts=st.integers(1, 9))
def test_a_split_gives_every_sample_to_one_part(count: int, parts: int) -> None:
    parts_of = split(np.arange(count), parts)
    assert len(parts_of) == parts
    assert sorted(np.concatenate(parts_of).tolist()) == list(range(count))
    sizes = [len(part) for part in parts_of]
    assert max(sizes) - min(sizes) <= 1


def test_a_batch_counts_its_targets_once_and_keeps_the_count_on_another_device() -> None:
    targets = torch.tensor([[4, 5, IGNORE_INDEX], [6, IGNORE_INDEX, IGNORE_INDEX]])
    batch = Batch({"ids": torch.ones(2, 3)}, targets, (0, 1))
    assert batch.tokens == 3
    moved = batch.to("meta")
    assert moved.tokens == 3
    assert moved.inputs["ids"].device.type == moved.targets.device.type == "meta"
    assert moved.samples == (0, 1)


def test_an_epoch_without_texts_is_refused_and_a_small_weight_keeps_a_sample() -> None:
    lengths = np.ones((5, 1), np.int64)
    with pytest.raises(InputError, match="weight above 0"):
        BatchSampler(lengths, 8, 1, (MixtureComponent(5, 0.0),)).next_step(Cursor())
    sampler = BatchSampler(lengths, 8, 1, (MixtureComponent(4, 0.1), MixtureComponent(1)))
    assert len(np.concatenate(sampler.epoch(0))) == 2
