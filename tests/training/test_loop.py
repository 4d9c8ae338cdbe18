"""The training loop survives kills, signals and damaged checkpoints; runs in processes of their own."""

from __future__ import annotations

import math
import random
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from regard.store.checkpoint import newest_checkpoint, saved_steps, verify
from regard.store.files import read_tensors
from tests.training.runs import (
    digests,
    flip_a_byte,
    interrupt_thrice,
    interrupt_twice,
    kill_at,
    poison,
    regard,
    start,
    terminate_at,
    write_recipe,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("unbroken")
    recipe = write_recipe(folder)
    code, _, err = regard("train", recipe, "--out", folder / "run")
    assert (code, err) == (0, "")
    return recipe, digests(folder / "run")


def test_the_same_run_twice_gives_the_same_weights(unbroken, tmp_path: Path):
    recipe, expected = unbroken
    assert regard("train", recipe, "--out", tmp_path / "again")[0] == 0
    assert digests(tmp_path / "again") == expected


def test_a_run_killed_at_random_moments_equals_the_unbroken_one(unbroken, tmp_path: Path):
    recipe, expected = unbroken
    chance, kills = random.Random(3), 0
    while True:
        process = start(["train", str(recipe), "--out", str(tmp_path / "run")])
        folder, wait = tmp_path / "run" / "checkpoints", chance.randint(0, 3)
        before = len(saved_steps(folder)) if folder.exists() else 0
        while process.poll() is None and kills < 4:
            if folder.exists() and max(saved_steps(folder), default=0) // 7 >= before + wait:
                time.sleep(chance.uniform(0, 0.1))
                process.kill()
                kills += 1
                break
            time.sleep(0.005)
        process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
    assert kills >= 2
    assert digests(tmp_path / "run") == expected


@pytest.mark.parametrize(
    ("point", "times"),
    [
        ("before folder", 1),
        ("inside model.safetensors", 2),
        ("after optimizer.safetensors", 2),
        ("inside manifest.json", 3),
        ("before rename", 2),
        ("between renames", 1),
        ("after rename", 2),
        ("inside prune", 1),
        ("inside .model.safetensors", 2),
    ],
)
def test_a_run_killed_while_saving_equals_the_unbroken_one(unbroken, tmp_path: Path, point: str, times: int):
    recipe, expected = unbroken
    out = tmp_path / "run"
    code, _, _ = regard("train", recipe, "--out", out, driver=partial(kill_at, point, times))
    assert code == -signal.SIGKILL
    steps = saved_steps(out / "checkpoints")
    if times > 1:
        assert any(verify(out / "checkpoints" / f"step-{step}") is None for step in steps)
        assert read_tensors(out / "model.safetensors")
    assert regard("train", recipe, "--out", out)[0] == 0
    assert digests(out) == expected
    assert [path.name for path in (*out.glob(".*"), *out.glob("checkpoints/.*"))] == [".lock"]


def test_the_only_checkpoint_exists_even_while_it_is_replaced(unbroken, tmp_path: Path):
    recipe, out = unbroken[0], tmp_path / "run"
    driver = partial(kill_at, "between renames", 1)
    assert regard("train", recipe, "--out", out, "--set", "train.steps=7", driver=driver)[0] == -signal.SIGKILL
    checkpoint = newest_checkpoint(out / "checkpoints", pytest.fail)
    assert checkpoint is not None
    assert checkpoint.step == 7
    assert regard("train", recipe, "--out", out)[0] == 0
    assert digests(out) == unbroken[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_saves_a_checkpoint_and_the_run_resumes_from_it(unbroken, tmp_path: Path, number: int, code: int):
    recipe, expected = unbroken
    out = tmp_path / "run"
    process = start(["train", str(recipe), "--out", str(out)])
    while not (out / "metrics.jsonl").exists() or (out / "metrics.jsonl").read_text().count("\n") < 12:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(number)
    _, err = process.communicate(timeout=10)
    assert process.returncode == code
    assert err.count("\n") == 1
    assert "Run the same command to resume" in err
    checkpoint = newest_checkpoint(out / "checkpoints", pytest.fail)
    assert checkpoint is not None
    assert checkpoint.step >= 10
    assert regard("train", recipe, "--out", out)[0] == 0
    assert digests(out) == expected


@pytest.mark.parametrize("step", [1, 36, 38])
def test_a_checkpoint_saved_by_a_signal_is_not_averaged(unbroken, tmp_path: Path, step: int):
    recipe, expected = unbroken
    assert regard("train", recipe, "--out", tmp_path / "run", driver=partial(terminate_at, step))[0] == 143
    checkpoint = newest_checkpoint(tmp_path / "run" / "checkpoints", pytest.fail)
    assert checkpoint is not None
    assert checkpoint.step == step + 1
    assert regard("train", recipe, "--out", tmp_path / "run")[0] == 0
    assert digests(tmp_path / "run") == expected


def test_a_model_of_no_run_is_not_overwritten(unbroken, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.safetensors").write_bytes(b"precious")
    code, _, err = regard("train", unbroken[0], "--out", tmp_path / "run")
    assert code == 2
    assert "holds a model" in err
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == b"precious"


def test_three_interrupts_lose_no_step(unbroken, tmp_path: Path):
    recipe, out = unbroken[0], tmp_path / "run"
    code, _, err = regard("train", recipe, "--out", out, driver=partial(interrupt_thrice, 9))
    assert code == 130
    assert [line.partition(":")[0] for line in err.splitlines()] == ["regard"]
    assert saved_steps(out / "checkpoints")[-1] == 10
    assert regard("train", recipe, "--out", out)[0] == 0
    assert digests(out) == unbroken[1]


def test_a_later_interrupt_ends_the_process_at_once_and_changes_no_file(unbroken, tmp_path: Path):
    recipe, out = unbroken[0], tmp_path / "run"
    assert regard("train", recipe, "--out", out, "--set", "train.steps=7")[0] == 0
    before = {path: path.read_bytes() for path in (out / "checkpoints" / "step-7").iterdir()}
    code, _, err = regard("train", recipe, "--out", out, driver=partial(interrupt_twice, 9))
    assert code == 130
    assert err.splitlines()[-1].startswith("stopped at once")
    assert saved_steps(out / "checkpoints") == [7]
    assert {path: path.read_bytes() for path in (out / "checkpoints" / "step-7").iterdir()} == before


@pytest.mark.parametrize(("step", "after", "good"), [(9, False, 7), (14, True, 7), (15, True, 14), (3, False, None)])
def test_weights_that_are_not_finite_stop_the_run_and_are_never_saved(unbroken, tmp_path: Path, step, after, good):
    out = tmp_path / "run"
    driver = partial(poison, step, math.nan if step % 2 else math.inf, after=after)
    code, _, err = regard("train", unbroken[0], "--out", out, driver=driver)
    assert code == 1
    assert err.count("\n") == 1
    assert ("Nothing is saved yet." if good is None else f"Last good checkpoint: step {good}.") in err
    if step != 14:  # this step itself was finite; its weights were overwritten before saving
        assert f"loss is nan at step {step + 1} " in err
        assert "train.a:" in err
    assert saved_steps(out / "checkpoints") == [saved for saved in (7, 14) if saved <= (good or 0)]
    for path in out.rglob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in read_tensors(path).values()), path


def test_damaged_checkpoints_are_skipped_with_a_warning(unbroken, tmp_path: Path):
    recipe, expected = unbroken
    out = tmp_path / "run"
    assert regard("train", recipe, "--out", out, "--set", "train.steps=21", "--set", "train.average=1")[0] == 0
    newest = out / "checkpoints" / "step-21" / "model.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    code, output, _ = regard("train", recipe, "--out", out)
    assert code == 0
    assert "step-21/model.safetensors fails its checksum; resuming from step-14 instead" in output
    assert digests(out) == expected
    for step in saved_steps(out / "checkpoints"):
        assert verify(out / "checkpoints" / f"step-{step}") is None
        (out / "checkpoints" / f"step-{step}" / "manifest.json").write_text("{")
    code, _, err = regard("train", recipe, "--out", out)
    assert code == 4
    assert "all damaged" in err


def test_without_validation_the_average_of_the_last_checkpoints_is_the_model(tmp_path: Path):
    recipe, out = write_recipe(tmp_path), tmp_path / "run"
    lines = recipe.read_text().splitlines(keepends=True)
    recipe.write_text("".join(line for line in lines if not line.startswith("valid ")))
    assert regard("train", recipe, "--out", out)[0] == 0
    last = [read_tensors(out / "checkpoints" / f"step-{step}" / "ema.safetensors") for step in (35, 40)]
    model = read_tensors(out / "model.safetensors")
    assert all(torch.equal(tensor, (last[0][name] + last[1][name]) / 2) for name, tensor in model.items())


def test_a_damaged_checkpoint_is_left_out_of_the_average(tmp_path: Path):
    recipe, out = write_recipe(tmp_path), tmp_path / "run"
    damaged = out / "checkpoints" / "step-35" / "ema.safetensors"
    code, said, _ = regard("train", recipe, "--out", out, driver=partial(flip_a_byte, damaged, 38))
    assert code == 0
    assert "step-35/ema.safetensors fails its checksum; it is left out of the average" in said
    last = read_tensors(out / "checkpoints" / "step-40" / "ema.safetensors")
    assert all(tensor.equal(last[name]) for name, tensor in read_tensors(out / "model.safetensors").items())


def test_gradient_accumulation_changes_no_loss(unbroken, tmp_path: Path):
    recipe, expected = unbroken
    whole = ["--set", "train.accumulate=1", "--set", "model.dropout=0.0"]
    parts = ["--set", "train.accumulate=3", "--set", "model.dropout=0.0"]
    assert regard("train", recipe, "--out", tmp_path / "one", *whole)[0] == 0
    assert regard("train", recipe, "--out", tmp_path / "three", *parts)[0] == 0
    one, three = digests(tmp_path / "one"), digests(tmp_path / "three")
    for key, value in one.items():
        if key.endswith(" loss"):
            assert float(three[key]) == pytest.approx(float(value), rel=1e-3)
    assert one != expected


def test_nothing_is_left_running_after_a_kill(unbroken, tmp_path: Path):
    process = start(["train", str(unbroken[0]), "--out", str(tmp_path / "run"), "--set", "train.steps=100000"])
    time.sleep(1)
    process.kill()
    process.communicate()
    assert subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True).stdout == b""
