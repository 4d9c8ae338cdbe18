"""Extras: packages that only some users install. A missing one is an error in one line that names its extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from regard.errors import InputError

EXTRAS: dict[str, tuple[str, ...]] = {
    "data": ("pyarrow", "zstandard"),
    "demo": ("babel", "matplotlib"),
    "elmo": ("h5py",),
    "convert": ("yaml",),
    "hub": ("huggingface_hub",),
    "music": ("mido",),
    "onnx": ("onnx", "onnxruntime"),
    "published": ("sentencepiece", "google"),
    "tensorboard": ("tensorboard",),
}


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Import packages of an extra inside: if one is not installed, the error says what needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS[name]:
            raise
        package = {"google": "protobuf"}.get(package, package)
        raise InputError(
            f"{package} is not installed, which {what} needs. Install it: pip install 'regard[{name}]'."
        ) from None
