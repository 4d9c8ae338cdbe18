"""regard: one small toolkit for the whole lineage of attention."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.version import __version__

if TYPE_CHECKING:
    from regard.api import beside, load, steps
    from regard.config.run import train
    from regard.models import zoo

__all__ = ["__version__", "beside", "load", "steps", "train", "zoo"]

_HOMES = {"beside": "api", "load": "api", "steps": "api", "train": "config.run"}


def __getattr__(name: str) -> Any:
    """Torch takes seconds to import, so what needs it is imported when it is first asked for."""
    if name == "zoo":
        return import_module("regard.models.zoo")
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute '{name}'")
    return getattr(import_module(f"regard.{_HOMES[name]}"), name)
