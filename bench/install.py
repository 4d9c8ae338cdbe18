"""What each extra adds to an installation: packages and megabytes, from the metadata of the environment that runs this.

`python -m bench.install` prints a table. A package counts for the first extra that needs it alone; torch stands apart.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


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


def main() -> None:
    """Print the table."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    torch = closure(["torch"], extras)
    core = closure(project["dependencies"], extras) - torch
    rows = {"torch": torch, "core, beside torch": core}
    for name in extras:
        if name not in ("dev", "docs", "bench"):
            rows[name] = closure(extras[name], extras) - torch - core
    print("| | packages | MB on disk | largest |\n|---|---|---|---|")
    for name, packages in rows.items():
        sizes = {package: megabytes(package) for package in packages}
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
        listed = ", ".join(f"{package} {sizes[package]:,.0f}" for package in largest)
        print(f"| {name} | {len(sizes)} | {sum(sizes.values()):,.0f} | {listed} |")


if __name__ == "__main__":
    main()
