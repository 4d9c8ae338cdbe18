"""RESULTS.md: one section per row and text, each with what is needed to repeat it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch

from regard.version import __version__

RESULTS = Path(__file__).with_name("RESULTS.md")
HEADING = """# Results

regard and a peer in one process, in turns, on the same text. A ratio compares two speeds of the same round, so a busy
machine slows both. `python -m bench ROW --write` replaces its section.
"""


def section(title: str, table: str, facts: Mapping[str, str]) -> str:
    """The section of a row."""
    return "\n".join([f"## {title}", "", table, "", *(f"* {name}: {fact}" for name, fact in facts.items())]) + "\n"


def replace_section(text: str, new: str) -> str:
    """The file's text with this section in place of the one of the same title, or after the last."""
    head, *sections = re.split(r"^(?=## )", text or HEADING, flags=re.MULTILINE)
    title = new.partition("\n")[0]
    kept = [new if old.partition("\n")[0] == title else old for old in sections]
    kept += [] if new in kept else [new]
    return "\n".join(part.strip("\n") + "\n" for part in [head, *kept])


def surroundings(threads: int, seed: int, peers: Sequence[str]) -> dict[str, str]:
    """Seed, versions, machine and date."""
    return {
        "seed": str(seed),
        "versions": f"python {platform.python_version()}, torch {torch.__version__}, "
        f"{''.join(f'{peer} {version(peer)}, ' for peer in peers)}regard {__version__}",
        "machine": f"{processor()}, cores: {os.cpu_count()}, threads: {threads}",
        "date": date.today().isoformat(),
    }


def processor() -> str:
    """The name of the processor."""
    listing = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", listing.read_text(), re.MULTILINE) if listing.exists() else None
    return found[1] if found else platform.processor() or platform.machine()
