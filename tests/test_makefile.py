"""The Makefile needs make, a POSIX shell and Python; it says what it downloads and what is missing, in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.printed import shell

ROOT = Path(__file__).parent.parent
MAKE = shutil.which("make") or "make"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what `make` reads before anything is installed."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(folder: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    # The tests themselves may run under make, which tells its children so.
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        [MAKE, *arguments], cwd=folder, capture_output=True, text=True, timeout=300, env=environment or outer
    )
    return done.returncode, done.stdout, done.stderr


def python_that(folder: Path, script: str) -> str:
    path = folder / "fake-python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return f"PYTHON={path}"


def test_a_missing_or_old_python_is_named_in_one_line(clone: Path):
    for python in ("PYTHON=no-such-python", python_that(clone, "exit 1")):
        code, said, _ = make(clone, "demo", python)
        assert code
        assert [line for line in said.splitlines() if "Install Python 3.11 or later" in line] == said.splitlines()
        assert not (clone / ".venv").exists()


def test_a_python_without_venv_is_told_what_to_install(clone: Path):
    code, said, _ = make(clone, "test", python_that(clone, 'case "$*" in *ensurepip*) exit 1;; esac'))
    assert code
    assert "python3-venv" in said
    assert said.count("\n") == 1


def test_torch_comes_from_the_index_that_is_named_and_the_download_is_said_first(clone: Path):
    with_index = make(clone, "-n", "demo", "TORCH_INDEX=https://torch.example/cpu")[1]
    assert "--index-url https://torch.example/cpu torch" in with_index
    assert with_index.index("0.2 GB") < with_index.index("-m venv")
    without = make(clone, "-n", "demo")[1]
    assert "--index-url https" not in without
    assert without.index("2.9 GB") < without.index("-m venv")


def test_an_index_that_is_no_address_is_refused(clone: Path):
    code, said, _ = make(clone, "demo", "TORCH_INDEX=ADDRESS")
    assert code
    assert said == "TORCH_INDEX=ADDRESS is not an address (https://...).\n"


@pytest.mark.slow
def test_the_demo_needs_nothing_but_make_a_shell_and_python(clone: Path):
    tools = clone / "tools"
    tools.mkdir()
    for name in ("mkdir", "tail", "touch"):
        (tools / name).symlink_to(str(shutil.which(name)))
    with shell(clone, steps=2) as environment:
        code, said, errors = make(
            clone, "-o", ".venv/installed", "demo", f"BIN={clone}/.bin", **{**environment, "PATH": str(tools)}
        )
    assert code == 0, said + errors
    assert "quiet machine with two cores" in said
    typed = [line for line in said.splitlines() if "15. März 2024" in line]
    assert len(typed) == 1
    assert (clone / "runs" / "demo" / "report.html").exists()
    assert "not found" not in said + errors


@pytest.mark.slow
def test_a_demo_whose_first_training_fails_says_why(clone: Path):
    with shell(clone, steps=2) as environment:
        (clone / "runs" / "demo").mkdir(parents=True)
        (clone / "runs" / "demo" / "seq2seq").write_text("a file, not a folder")
        code, said, errors = make(clone, "-o", ".venv/installed", "demo", f"BIN={clone}/.bin", **environment)
    assert code
    assert "regard: error" in said + errors
