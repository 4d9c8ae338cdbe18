"""The estimate before training: parameters, memory, speed and time; it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.config.fit import amount
from regard.config.recipe import read_recipe
from regard.config.run import train
from regard.config.setup import read_setup
from regard.data.batching import BatchSampler
from regard.evaluation.plan import micro_batches_that_fit, parameters, remedies
from regard.models import zoo
from regard.training.memory import Memory, first_epoch
from tests.training.runs import regard, write_recipe

CPU = torch.device("cpu")
MB = 1 << 20


def test_the_parameters_of_each_part_add_up_to_all():
    for description, empty in (
        (zoo.transformer(16, 1, 2), ["readout"]),
        (zoo.transformer(16, 1, 2, tied=False, shared=False), []),
        (zoo.gpt2(16, 1, 2), ["encoder", "readout"]),
    ):
        network = description.build(50)
        found = parameters(network)
        assert sum(found.values()) == sum(weight.numel() for weight in network.parameters())
        assert [name for name, count in found.items() if not count] == empty


def test_an_epoch_is_counted_exactly_or_extrapolated_from_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    samples = read_setup(read_recipe(write_recipe(tmp_path, 2000))).samples
    order = BatchSampler(samples.lengths, 40, 1)
    steps = order.epoch(0)
    exact = first_epoch(order)
    assert (exact.steps, exact.tokens, exact.exact) == (len(steps), int(samples.lengths.sum()), True)
    assert len(exact.largest) * int(samples.lengths[exact.largest].max(0).sum()) == max(
        len(step) * int(samples.lengths[step].max(0).sum()) for step in steps
    )
    monkeypatch.setattr("regard.training.memory._POOLS", 3)
    part = first_epoch(order)
    assert not part.exact
    assert (part.steps, part.tokens) == pytest.approx((exact.steps, exact.tokens), rel=0.05)


def test_a_plan_estimates_what_the_run_then_does_and_leaves_nothing(tmp_path: Path):
    recipe = write_recipe(tmp_path)
    before = sorted(os.listdir(tmp_path))
    code, out, err = regard("plan", recipe, "--json", "--threads", "1")
    assert (code, err, sorted(os.listdir(tmp_path))) == (0, "", before)
    found = json.loads(out)
    model = train(recipe, tmp_path / "run", settings=["train.steps=2"])
    checkpoint = next((tmp_path / "run" / "checkpoints").glob("step-*"))
    sizes = {name: (checkpoint / f"{name}.safetensors").stat().st_size for name in ("model", "optimizer", "ema")}
    assert sum(found["parameters"].values()) == sum(weight.numel() for weight in model.network.parameters())
    memory = found["memory"]
    for name, kept in (("weights", "model"), ("optimizer", "optimizer"), ("ema", "ema")):
        assert 0 < sizes[kept] - memory[name] < 20_000  # the header
    assert memory["gradients"] == memory["weights"]
    assert found["fits"]
    assert found["remedies"] == []
    assert found["epochs"] == pytest.approx(40 / found["epoch_steps"], rel=1e-3)
    assert found["seconds"] == pytest.approx(40 * found["epoch_tokens"] / found["epoch_steps"]
                                             / found["tokens_per_second"], rel=0.02)  # fmt: skip
    assert found["validations"] == 4


def test_a_plan_is_printed_as_text(tmp_path: Path):
    code, out, _ = regard("plan", write_recipe(tmp_path), "--set", "train.batch_tokens=fit", driver=hurried)
    lines = out.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines[:-1]] == ["parameters", "memory", "text", "steps", "speed", "time"]
    assert lines[-1] == "It fits."
    assert "of up to 1,024 tokens" in out


def hurried() -> None:
    """Take no time to measure speed."""
    from regard.evaluation import plan

    assert plan._SECONDS > 0
    plan._SECONDS = 0.0


def short_of_memory() -> None:
    """A machine with 60 MB."""
    from regard.training import memory

    hurried()
    assert memory.available(CPU) > 0
    memory.available = lambda device: 60 * MB


def test_what_does_not_fit_is_reported_with_what_makes_it_fit(tmp_path: Path):
    large = [f"--set={setting}" for setting in ("model.inner=4000", "train.batch_tokens=4000", "train.accumulate=1")]
    asked = ["plan", write_recipe(tmp_path, 1000), *large]
    code, out, _ = regard(*asked, driver=short_of_memory)
    assert (code, "\nIt does not fit: the largest step needs " in out) == (0, True)
    found = estimated(*asked)
    assert not found["fits"]
    assert named(found["remedies"]) == ["train.accumulate", "train.gradient_checkpointing", "train.batch_tokens"]
    for remedy in (found["remedies"][0], found["remedies"][2]):
        change = remedy.partition(":")[0].replace(" ", "")
        assert estimated(*asked, f"--set={change}")["fits"], change


def estimated(*asked: str | Path) -> dict[str, Any]:
    """The estimate of a process of its own, where nothing else has touched memory."""
    code, out, err = regard(*asked, "--json", driver=short_of_memory)
    assert (code, err) == (0, "")
    return json.loads(out)


def test_what_to_change_depends_on_what_is_too_large(tmp_path: Path):
    material = read_setup(read_recipe(write_recipe(tmp_path)))
    lasting = Memory(40, 40, 80, 0, 10, True, 100)
    assert named(remedies(material, lasting, None)) == ["model.width", "train.parallel"]
    sample = Memory(1, 1, 2, 0, 200, True, 100)
    expected = ["train.gradient_checkpointing", "text.task.max_length", "model.width", "train.parallel"]
    assert named(remedies(material, sample, None)) == expected
    recomputing = read_setup(read_recipe(tmp_path / "reverse.toml", ["train.gradient_checkpointing=true"]))
    assert named(remedies(recomputing, sample, None)) == expected[1:]
    assert [micro_batches_that_fit(sample, 2, samples) for samples in (100, 4)] == [8, None]


def named(remedies: Sequence[str]) -> list[str]:
    return [remedy.split()[0].rstrip(":") for remedy in remedies]


def test_samples_longer_than_a_step_are_reported(tmp_path: Path):
    asked = ["plan", write_recipe(tmp_path), "--set=train.batch_tokens=15"]
    material = read_setup(read_recipe(asked[1]))
    sizes = material.samples.lengths.sum(1)
    count, longest = int((sizes > 15).sum()), int(sizes.max())
    assert count > 1
    code, out, _ = regard(*asked, driver=hurried)
    assert code == 0
    assert f"\nIt fits.\n{count} samples are longer than train.batch_tokens" in out
    assert f"the longest has {longest} tokens, source and target." in out
    code, out, _ = regard(*asked, "--json", driver=hurried)
    assert [json.loads(out)[name] for name in ("fits", "oversized", "longest")] == [True, count, longest]


def test_amounts_have_units():
    assert [amount(count) for count in (12, 1234, 56_789_000, 9_120_000_000)] == [
        "12 bytes", "1.23 kB", "56.8 MB", "9.12 GB",
    ]  # fmt: skip


def small_machine() -> None:
    """Four megabytes are available."""
    from regard.training import memory

    memory.available = lambda device: 4 * MB


def test_a_plan_says_what_does_not_fit_and_what_would(tmp_path: Path):
    large = ["--set", "model.width=1024", "--set", "model.depth=2", "--set", "model.inner=64"]
    code, out, err = regard("plan", write_recipe(tmp_path), *large, driver=small_machine)
    assert (code, err) == (0, "")
    assert "It does not fit: weights, gradients and optimizer alone need" in out
    width = int(re.search(r"try model\.width = (\d+), which fits", out)[1])
    assert 16 <= width < 1024
    assert "speed" not in out
    fits = ["--set", f"model.width={width}", "--set", "model.depth=2", "--set", "model.inner=64"]
    code, out, _ = regard("plan", write_recipe(tmp_path), *fits, "--json", driver=small_machine)
    assert json.loads(out)["timed_steps"] > 0


def test_training_what_does_not_fit_ends_with_one_line_before_anything_is_allocated(tmp_path: Path):
    large = ["--set", "model.width=4096", "--set", "model.inner=64"]
    code, _, err = regard("train", write_recipe(tmp_path), *large, "--out", tmp_path / "run", driver=small_machine)
    assert code == 1
    assert err.startswith("regard: error: training does not fit in memory: ")
    assert "4.19 MB are available (cpu). Try model.width = " in err
    assert err.count("\n") == 1
