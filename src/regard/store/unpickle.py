"""A process of its own that reads a pickle of plain tensors and writes them as safetensors; nothing else is allowed."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


def main(target: str, *sources: str) -> None:
    """Write what the sources hold, each tensor by itself."""
    tensors: dict[str, Tensor] = {}
    for source in sources:
        held = torch.load(source, map_location="cpu", weights_only=True)
        held = held.get("state_dict", held) if isinstance(held, dict) else {}
        tensors |= {str(name): value.clone().contiguous() for name, value in held.items() if isinstance(value, Tensor)}
    if not tensors:
        raise ValueError("it holds no tensors by name")
    save_file(tensors, Path(target), metadata={"format": "pt"})


if __name__ == "__main__":
    main(*sys.argv[1:])
