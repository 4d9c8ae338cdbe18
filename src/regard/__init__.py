"""regard: one small toolkit for the whole lineage of attention."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.errors import CannotResume, DamagedFile, DiskTrouble, InputError, Interrupted, RegardError, RunFailed
from regard.version import __version__

if TYPE_CHECKING:
    from regard import lab, serve
    from regard.api import ensemble, load, save, side_by_side, steps
    from regard.config.run import train
    from regard.evaluation.bench import bench
    from regard.evaluation.check import check
    from regard.models import zoo

__all__ = [
    "CannotResume", "DamagedFile", "DiskTrouble", "InputError", "Interrupted", "RegardError", "RunFailed",
    "__version__", "bench", "check", "ensemble", "lab", "load", "save", "serve", "side_by_side", "steps", "train",
    "zoo",
]  # fmt: skip

_HOMES = {
    "bench": "evaluation.bench", "check": "evaluation.check", "ensemble": "api", "load": "api", "save": "api",
    "side_by_side": "api", "steps": "api", "train": "config.run",
}  # fmt: skip

_PACKAGES = {"lab": "lab", "serve": "serve", "zoo": "models.zoo"}


def __getattr__(name: str) -> Any:
    """Lazy import: importing torch takes seconds, so names that need it are imported on first use."""
    if name in _PACKAGES:
        return import_module(f"regard.{_PACKAGES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute '{name}'")
    return getattr(import_module(f"regard.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names, imported yet or not."""
    return __all__
