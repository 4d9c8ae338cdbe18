"""Environments of the peers: each has its own, so that no peer decides another's versions."""

from __future__ import annotations

import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

from regard.errors import InputError

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / ".venv-peers"
CONSTRAINTS = HERE.parent / "constraints.txt"


@dataclass(frozen=True)
class Peer:
    """What a peer's environment holds: packages, and those that ask for more or for other versions than they need."""

    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()  # installed without what they ask for
    torch: bool = True


PEERS = {
    "transformers": Peer(("transformers",)),
    "ctranslate2": Peer(("ctranslate2", "tokenizers"), torch=False),
    "joeynmt": Peer(
        ("numpy", "pyyaml", "packaging", "tensorboard", "matplotlib", "sacrebleu"), ("-r", "bench/joey.txt")
    ),
    "x-transformers": Peer(("x-transformers",)),
    "litgpt": Peer(alone=("-r", "bench/litgpt.txt")),
    "reformer-pytorch": Peer(("numpy",), ("-r", "bench/reformer.txt")),
    "sentence-transformers": Peer(("sentence-transformers",)),
    "onnxruntime": Peer(("onnxruntime", "tokenizers"), torch=False),
}


def python_of(name: str, folder: Path = ENVIRONMENTS) -> Path:
    """The Python of a peer's environment."""
    found = folder / name / "bin" / "python"
    if not (folder / name / "installed").exists():
        raise InputError(f"the environment of {name} is missing. Run: python -m bench peers --only {name}")
    return found


def install(name: str, folder: Path = ENVIRONMENTS) -> str:
    """Make the environment of a peer, unless it is there; -> its packages' versions, or why there is none."""
    if name not in PEERS:
        raise InputError(f"there is no peer {name!r} (--only). There are {', '.join(PEERS)}.")
    place, peer = folder / name, PEERS[name]
    if not (place / "installed").exists():
        venv.create(place, with_pip=True, clear=True)
        pip = [str(place / "bin" / "pip"), "install", "--quiet", "--no-compile"]
        steps = [[*pip, "--constraint", str(CONSTRAINTS), "torch"]] if peer.torch else []
        steps += [[*pip, "--constraint", str(CONSTRAINTS), *peer.packages]] if peer.packages else []
        steps += [[*pip, "--no-deps", *peer.alone]] if peer.alone else []
        for step in steps:
            done = subprocess.run(step, cwd=HERE.parent, text=True, capture_output=True)
            if done.returncode:
                return "cannot be installed: " + (done.stderr.strip().splitlines() or ["no message"])[-1]
        listed = subprocess.run([place / "bin" / "pip", "list", "--format=freeze"], text=True, capture_output=True)
        wanted = {name.lower(), "torch"}
        (place / "installed").write_text(", ".join(
            line.replace("==", " ") for line in listed.stdout.splitlines() if line.partition("==")[0].lower() in wanted
        ))  # fmt: skip
    return (place / "installed").read_text()


def versions(folder: Path = ENVIRONMENTS) -> str:
    """The versions in all environments that are there."""
    return "; ".join(install(name, folder) for name in PEERS if (folder / name / "installed").exists())
