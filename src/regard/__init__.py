"""regard: one small toolkit for the whole lineage of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.version import __version__

if TYPE_CHECKING:
    from regard.api import load
    from regard.models import zoo
    from regard.run import train

__all__ = ["__version__", "load", "train", "zoo"]


def __getattr__(name: str) -> Any:
    """Torch takes seconds to import, so what needs it is imported when it is first asked for."""
    if name == "load":
        from regard.api import load

        return load
    if name == "train":
        from regard.run import train

        return train
    if name == "zoo":
        from regard.models import zoo

        return zoo
    raise AttributeError(f"module 'regard' has no attribute '{name}'")
