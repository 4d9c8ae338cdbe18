"""The wheel: installed without the project's source, it trains, translates and holds every data file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA = ("config/recipes/*.toml", "show/static/*", "serve/static/*", "py.typed")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the source, which a build would write to."""
    copy, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(target), str(copy), cwd=target)
    (built,) = target.glob("regard-*.whl")
    return built


def run(*command: str, cwd: Path, text: str = "") -> str:
    """Run a command without the project's source on its path; return what it prints."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    known = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(command, cwd=cwd, env=known, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.storm
def test_the_wheel_holds_every_data_file(wheel: Path) -> None:
    source = ROOT / "src" / "regard"
    expected = {path.relative_to(source.parent).as_posix() for pattern in DATA for path in source.glob(pattern)}
    everything = {path.relative_to(source.parent).as_posix() for path in source.rglob("*")
                  if path.is_file() and path.suffix not in (".py", ".pyc")}  # fmt: skip
    assert len(expected) > 10
    assert expected == everything  # a file of another folder would be missing from every wheel
    assert expected <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.storm
def test_the_installed_wheel_trains_and_translates(wheel: Path, tmp_path: Path) -> None:
    """In a new environment, whose torch and other packages are those of this one: a .pth file names their folder.

    Installing torch again would take minutes. The project's own source is left out: its editable install is a .pth file
    in that folder, which Python reads in its own site-packages only.
    """
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    run(sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel),
        cwd=tmp_path)  # fmt: skip
    (packages / "present.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    regard = str(python.with_name("regard"))
    where = run(str(python), "-c", "import regard; print(regard.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(packages)
    assert run(regard, "--version", cwd=tmp_path).strip().endswith(wheel.name.split("-")[1])
    run(regard, "train", "dates", "--set", "train.steps=2", "--out", "runs/dates", cwd=tmp_path)
    translated = run(regard, "translate", "runs/dates", cwd=tmp_path, text="march 3, 2021\n")
    assert len(translated.splitlines()) == 1
