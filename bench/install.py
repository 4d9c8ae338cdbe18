"""What each extra adds to an installation: packages and megabytes, from the metadata of the environment that runs this.

`python -m bench.install` prints a table. A package counts for the first extra that needs it alone; torch stands apart.
`--seconds` measures instead how long pip takes: the core in a fresh environment, then each extra beside the core, with
everything downloaded before. `--only serve demo` measures these.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
_OURS = ("dev", "docs", "bench")  # extras of the project itself


def closure(requirements: Iterable[str], extras: dict[str, list[str]]) -> set[str]:
    """The names of all packages that these requirements bring, our own extras resolved."""
    found: set[str] = set()
    waiting = [Requirement(line) for line in requirements]
    asked: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        one = waiting.pop()
        name = one.name.lower().replace("_", "-")
        if (name, frozenset(one.extras)) in asked:
            continue
        asked.add((name, frozenset(one.extras)))
        if name == "regard":
            waiting += [Requirement(line) for extra in one.extras for line in extras[extra]]
            continue
        found.add(name)
        for line in metadata.requires(name) or ():
            needed = Requirement(line)
            if any(needed.marker is None or needed.marker.evaluate({"extra": extra}) for extra in one.extras or {""}):
                waiting.append(needed)
    return found


def megabytes(name: str) -> float:
    """The size of a package's files on disk."""
    files = metadata.distribution(name).files or ()
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file()) / 1e6


class Environment:
    """A fresh environment with pip, in a folder."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True, symlinks=True)
        self.python = str(folder / "bin" / "python")

    def pip(self, *arguments: str) -> str:
        """What pip says."""
        command = [self.python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"pip {' '.join(arguments)} failed: {done.stderr.strip().splitlines()[-1]}")
        return done.stdout

    def packages(self) -> set[str]:
        """The names of what is installed."""
        return {one["name"] for one in json.loads(self.pip("list", "--format=json"))}

    def install(self, package: str) -> tuple[float, float]:
        """Seconds and processor seconds of an installation whose packages were all downloaded before."""
        self.pip("install", "--dry-run", package)
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        self.pip("install", package)
        after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - begun
        return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def print_seconds(extras: Iterable[str], torch: str) -> None:
    """Print how long the core takes in a fresh environment, and each extra beside it; each is then taken out again."""
    print("| | seconds | processor seconds |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(Path(folder) / "environment")
        environment.pip("wheel", "--no-deps", "--wheel-dir", folder, str(PROJECT.parent))
        wheel = next(Path(folder).glob("regard-*.whl"))
        rows = {"torch": torch, "core, beside torch": str(wheel), **{name: f"{wheel}[{name}]" for name in extras}}
        for name, package in rows.items():
            core = environment.packages()
            seconds, processor = environment.install(package)
            print(f"| {name} | {seconds:.1f} | {processor:.1f} |", flush=True)
            added = sorted(environment.packages() - core)
            if name in extras and added:
                environment.pip("uninstall", "--yes", *added)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="What each extra adds to an installation.")
    parser.add_argument("--seconds", action="store_true", help="measure how long pip takes, in a fresh environment")
    parser.add_argument("--only", nargs="*", help="these extras")
    parser.add_argument("--torch", default="torch", help="what pip installs as torch, as torch==2.13.0")
    chosen = parser.parse_args()
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    names = [name for name in extras if name not in _OURS] if chosen.only is None else chosen.only
    if unknown := sorted({*names} - {*extras}):
        parser.error(f"no such extra: {', '.join(unknown)}. There are {', '.join(extras)}.")
    if chosen.seconds:
        print_seconds(names, chosen.torch)
        return
    torch = closure(["torch"], extras)
    core = closure(project["dependencies"], extras) - torch
    rows = {"torch": torch, "core, beside torch": core}
    rows |= {name: closure(extras[name], extras) - torch - core for name in names}
    print("| | packages | MB on disk | largest |\n|---|---|---|---|")
    for name, packages in rows.items():
        sizes = {package: megabytes(package) for package in packages}
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
        listed = ", ".join(f"{package} {sizes[package]:,.0f}" for package in largest)
        print(f"| {name} | {len(sizes)} | {sum(sizes.values()):,.0f} | {listed} |")


if __name__ == "__main__":
    main()
