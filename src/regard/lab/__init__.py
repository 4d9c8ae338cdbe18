"""The lab: every claim of the notes as a command with a number, a picture and a verdict (`regard lab`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.lab.catalogue import NAMES
    from regard.lab.claim import Claim
    from regard.lab.experiment import Finding, run

__all__ = ["NAMES", "Claim", "Finding", "run"]

_HOMES = {"NAMES": "catalogue", "Claim": "claim", "Finding": "experiment", "run": "experiment"}


def __getattr__(name: str) -> Any:
    """Lazy import: the list of claims needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'regard.lab' has no attribute '{name}'")
    return getattr(import_module(f"regard.lab.{_HOMES[name]}"), name)
