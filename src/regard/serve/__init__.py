"""The models over HTTP: OpenAI- and LibreTranslate-compatible routes, with the page in front."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.serve.app import create_app
    from regard.serve.settings import Settings

__all__ = ["Settings", "create_app"]


def __getattr__(name: str) -> Any:
    """Lazy import: FastAPI is an extra, and torch takes seconds."""
    if name == "create_app":
        from regard.serve.app import create_app

        return create_app
    if name == "Settings":
        from regard.serve.settings import Settings

        return Settings
    raise AttributeError(f"module 'regard.serve' has no attribute '{name}'")
