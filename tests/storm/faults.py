"""Faults that users meet: lost locks, clocks that jump, folders that vanish, limits of memory and of rights."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.storm.rows import MEGABYTE, Case, NotHereError, Outcome, Row, command, one_line
from tests.training.runs import at_steps, digests, regard, same_tensors, start, write_recipe


def no_locks() -> None:
    """A network file system without locks."""
    import fcntl

    def flock(_file: Any, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    fcntl.flock = flock


def useless_locks(host: str) -> None:
    """A network file system whose locks hold on one machine only, and the name of this one."""
    import fcntl
    import socket

    fcntl.flock = lambda _file, _how: None
    socket.gethostname = lambda: host


def jumping_clock(seed: int) -> None:
    """A clock that is set forward and back by up to a year, at any moment."""
    chance, real = random.Random(seed), time.time
    time.time = lambda: real() + chance.choice([0.0, 1.0, -1.0]) * chance.uniform(0, 3e7)


def delete(folder: Path, step: int) -> None:
    """A folder deleted after some step."""
    at_steps({step: lambda _: shutil.rmtree(folder)})


def append_while_reading(path: Path) -> None:
    """A text that grows while it is read."""
    from regard.data.read import formats

    digest = formats._file_digest

    def appended(file: Path) -> str:
        found = digest(file)
        if Path(file) == path:
            with open(path, "a") as text:
                text.write("one more line\n")
        return found

    formats._file_digest = appended


def append_at(folder: Path, step: int) -> None:
    """A pair of texts that grows after some step."""

    def append(_: Any) -> None:
        for side in "ab":
            with open(folder / f"train.{side}", "a") as text:
                text.write("one more line\n")

    at_steps({step: append})


def limit_memory(megabytes: int) -> None:
    """Only so many megabytes more."""
    from regard.layers import linear
    from regard.models.memory import own_memory

    most = own_memory("VmSize") + megabytes * MEGABYTE
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    linear.ONEDNN = linear._onednn_is_faster()  # as in a process that had the limit from its start


def unbroken(folder: Path) -> tuple[Path, dict[str, str]]:
    """A recipe, and the digests of a run of it."""
    recipe = write_recipe(folder)
    code, _, err = regard("train", recipe, "--out", folder / "unbroken")
    assert code == 0, err
    return recipe, digests(folder / "unbroken")


def lost_locks(count: int, _seed: int, folder: Path) -> Outcome:
    """Where there are no locks, a run is refused in one line, and nothing is left behind."""
    recipe, cases = write_recipe(folder), Case()
    for number in range(count):
        out = folder / f"run-{number}"
        code, _, err = regard("train", recipe, "--out", out, driver=no_locks)
        fault = "" if code == 2 and "cannot be locked" in err else f"exit {code}: {err[-200:]}"
        cases.add(f"run {number}", fault or one_line(err) or ("" if not out.exists() else "a folder is left"))
    return cases.outcome()


def two_machines(count: int, _seed: int, folder: Path) -> Outcome:
    """Two machines train in one folder whose locks do not reach the other: the second goes on, the first gives way."""
    recipe, cases = write_recipe(folder), Case()
    more = ["--set", "train.steps=400", "--set", "train.save_every=20", "--set", "train.valid_every=1000"]
    assert regard("train", recipe, "--out", folder / "unbroken", *more)[0] == 0
    for number in range(count):
        out = folder / f"run-{number}"
        arguments = ["train", str(recipe), "--out", str(out), *more]
        first = start(arguments, partial(useless_locks, "one"))
        while not (out / "checkpoints" / "step-40").exists():
            assert first.poll() is None, first.communicate()
            time.sleep(0.01)
        second = start(arguments, partial(useless_locks, "other"))
        (_, err), (_, other) = first.communicate(), second.communicate()
        fault = "" if first.returncode == 2 and "on host other" in err else f"exit {first.returncode}: {err[-200:]}"
        fault = fault or one_line(err) or ("" if second.returncode == 0 else f"the second: {other[-200:]}")
        same = fault or same_tensors(folder / "unbroken", out, "checkpoints/step-400/model.safetensors")
        cases.add(f"run {number}", fault or ("" if same else "the result differs"))
    return cases.outcome()


def clocks(count: int, seed: int, folder: Path) -> Outcome:
    """A clock that jumps changes nothing."""
    recipe, expected = unbroken(folder)
    cases = Case()
    for number in range(count):
        out, driver = folder / f"run-{number}", partial(jumping_clock, seed + number)
        codes = [regard("train", recipe, "--out", out, *more, driver=driver)[0] for more in (stop_at(17), ())]
        cases.add(f"run {number}", "" if codes == [0, 0] and digests(out) == expected else f"exit {codes}")
    return cases.outcome()


def stop_at(step: int) -> tuple[str, str]:
    """Settings that end a run early; averaging comes at the end only."""
    return "--set", f"train.steps={step}"


def vanished_cache(count: int, seed: int, folder: Path) -> Outcome:
    """The cache is deleted while a run trains: the run ends as ever, and so does the next."""
    recipe, expected = unbroken(folder)
    cases, chance, cache = Case(), random.Random(seed), Path(os.environ["REGARD_CACHE"])
    for number in range(count):
        out = folder / f"run-{number}"
        code, _, err = regard("train", recipe, "--out", out, driver=partial(delete, cache, chance.randrange(1, 39)))
        cases.add(f"run {number}", "" if code == 0 and digests(out) == expected else f"exit {code}: {err[-200:]}")
    return cases.outcome()


def growing_text(count: int, seed: int, folder: Path) -> Outcome:
    """A text that grows while it is read is refused; later, it changes nothing, but a resume is refused."""
    cases, chance = Case(), random.Random(seed)
    for number in range(-(-count // 3)):
        case = folder / str(number)
        case.mkdir()
        recipe, expected = unbroken(case)
        code, _, err = regard(
            "train", recipe, "--out", case / "a", driver=partial(append_while_reading, case / "train.a")
        )
        fault = "" if code == 2 and "changed while it was read" in err else f"exit {code}: {err[-200:]}"
        cases.add(f"read {number}", fault or one_line(err))
        write_recipe(case)
        driver = partial(append_at, case, chance.randrange(1, 39))
        code, _, err = regard("train", recipe, "--out", case / "b", driver=driver)
        cases.add(
            f"trained {number}", "" if code == 0 and digests(case / "b") == expected else f"exit {code}: {err[-200:]}"
        )
        code, _, err = regard("train", recipe, "--out", case / "b", "--set", "train.steps=50")
        cases.add(f"resumed {number}", "" if code == 4 else f"exit {code}: {err[-200:]}")
    return cases.outcome()


def no_gpu(_count: int, _seed: int, folder: Path) -> Outcome:
    """A GPU is asked for where there is none: one line, before anything is written."""
    import torch

    if torch.cuda.is_available():
        raise NotHereError("this machine has a GPU")
    recipe, cases = write_recipe(folder), Case()
    for verb in (["train", recipe, "--out", folder / "run"], ["plan", recipe], ["init", folder / "train.a"]):
        code, _, err = regard(*verb, "--device", "cuda")
        fault = "" if code == 2 and 'no device "cuda"' in err else f"exit {code}: {err[-200:]}"
        cases.add(str(verb[0]), fault or one_line(err) or ("a folder is left" if (folder / "run").exists() else ""))
    return cases.outcome()


def little_memory(count: int, _seed: int, folder: Path) -> Outcome:
    """Limits of memory from hardly any to enough: a run ends well, or with one line, never with a signal."""
    recipe, cases, ended = write_recipe(folder, lines=2000), Case(), []
    wide = ["--set", "model.width=256", "--set", "model.inner=1024", "--set", "train.batch_tokens=30000"]
    short = ["--set", "train.steps=3", "--set", "train.valid_every=9", "--set", "train.save_every=9"]
    for number in range(count):
        megabytes, out = 16 + 1000 * number // max(1, count - 1), folder / f"run-{number}"
        arguments = ["train", recipe, "--out", out, *wide, *short]
        code, _, err = regard(*arguments, driver=partial(limit_memory, megabytes))
        ended.append(code)
        fault = "" if code == 0 or (code == 1 and not one_line(err)) else f"exit {code}: {err[-300:]}"
        cases.add(f"{megabytes} MB", fault)
    return cases.outcome(f"{ended.count(0)} of {count} ran to their end")


def full_temporary_folder(_count: int, _seed: int, folder: Path) -> Outcome:
    """A temporary folder without room: commands do not need it, or say so in one line."""
    from regard.models import zoo
    from tests.small import save_model, small
    from tests.storm.disk import small_disk

    if os.geteuid() != 0:
        raise NotHereError("only root may mount a small disk")
    recipe, cases, model = write_recipe(folder), Case(), save_model(folder / "model", small(zoo.transformer(16, 1, 2)))
    verbs: dict[str, list[object]] = {
        "train": ["train", recipe, "--out", folder / "run", *stop_at(5)], "check": ["check", model],
        "convert": ["convert", model, folder / "new"], "score": ["score", model],
        "convert to ctranslate2": ["convert", model, folder / "engine", "--to", "ctranslate2"],
        "evaluate": ["evaluate", model, "--text", folder / "train.a"], "plan": ["plan", recipe],
    }  # fmt: skip
    with small_disk(folder / "tmp", "size=4k"):
        (folder / "tmp" / "full").write_bytes(b"x" * 4096)
        for name, verb in verbs.items():
            done = command("-m", "regard", *verb, TMPDIR=str(folder / "tmp"), REGARD_CACHE=str(folder / "cache"))
            fault = one_line(done.err) if done.code else ""
            fault = fault or ("" if done.code in (0, 2, 74) else f"exit {done.code}: {done.err[-300:]}")
            cases.add(name, fault)
    return cases.outcome()


def read_only_home(_count: int, _seed: int, folder: Path) -> Outcome:
    """A home that cannot be written: training names REGARD_CACHE, everything else works."""
    from regard.models import zoo
    from tests.small import save_model, small

    recipe, cases, model = write_recipe(folder), Case(), save_model(folder / "model", small(zoo.gpt2(16, 1, 2)))
    home = {"HOME": "/proc/1/nowhere", "REGARD_CACHE": "", "XDG_CACHE_HOME": "", "MPLCONFIGDIR": ""}
    done = command("-m", "regard", "train", recipe, "--out", folder / "run", *stop_at(3), **home)
    fault = "" if done.code == 74 and "REGARD_CACHE" in done.err else f"exit {done.code}: {done.err[-300:]}"
    cases.add("train", fault or one_line(done.err))
    for verb in (["score", model], ["check", model], ["generate", model, "a", "--max-tokens", "2"],
                 ["show", model, "a", "--out", folder / "page.html"]):  # fmt: skip
        done = command("-m", "regard", *verb, **home)
        cases.add(str(verb[0]), "" if done.code == 0 else f"exit {done.code}: {done.err[-300:]}")
    done = command("-m", "regard", "train", recipe, "--out", folder / "run", *stop_at(3),
                   **{**home, "REGARD_CACHE": str(folder / "cache")})  # fmt: skip
    cases.add("train with REGARD_CACHE", "" if done.code == 0 else f"exit {done.code}: {done.err[-300:]}")
    return cases.outcome()


def killed_preparing(count: int, seed: int, folder: Path) -> Outcome:
    """SIGKILL while the text is read, tokenized and cached: the next command prepares it whole."""
    recipe, cases, chance = write_recipe(folder, lines=20_000), Case(), random.Random(seed)
    short = ["--set", "train.steps=3", "--set", "train.valid_every=9"]
    began = time.monotonic()
    assert regard("train", recipe, "--out", folder / "unbroken", *short)[0] == 0
    whole, cache = time.monotonic() - began, Path(os.environ["REGARD_CACHE"])
    expected = digests(folder / "unbroken")
    for number in range(count):
        shutil.rmtree(cache, ignore_errors=True)
        out = folder / f"run-{number}"
        process = start(["train", str(recipe), "--out", str(out), *short])
        process.wait(chance.uniform(0.05, 0.8) * whole)
        process.kill()
        process.communicate()
        code, _, err = regard("train", recipe, "--out", out, *short)
        cases.add(f"run {number}", "" if code == 0 and digests(out) == expected else f"exit {code}: {err[-200:]}")
    return cases.outcome()


ROWS = [
    Row("F1", "a file system without locks", 5, 0.2, lost_locks),
    Row("F2", "a clock that jumps by up to a year", 5, 0.5, clocks),
    Row("F3", "the cache is deleted while a run trains", 10, 0.5, vanished_cache),
    Row("F4", "a text that grows while it is read, or later", 15, 0.7, growing_text),
    Row("F5", "a GPU is asked for where there is none", 3, 0.2, no_gpu, 3),
    Row("F6", "limits of memory (RLIMIT_AS)", 12, 2, little_memory, 2),
    Row("F7", "a full temporary folder", 7, 1, full_temporary_folder, 7),
    Row("F8", "a home that cannot be written", 6, 0.7, read_only_home, 6),
    Row("F9", "kill -9 while the data is prepared", 10, 1.5, killed_preparing),
    Row("F10", "two machines resume in one folder whose locks do not hold", 5, 1, two_machines),
]  # fmt: skip
