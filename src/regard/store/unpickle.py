"""A separate process that reads a pickle of plain tensors and writes safetensors; nothing else is allowed."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


def main(target: str, *sources: str) -> None:
    """Write the tensors of all sources to one safetensors file."""
    tensors: dict[str, Tensor] = {}
    for source in sources:
        state = torch.load(source, map_location="cpu", weights_only=True)
        state = state.get("state_dict", state) if isinstance(state, dict) else {}
        tensors |= {str(name): value.clone().contiguous() for name, value in state.items() if isinstance(value, Tensor)}
    if not tensors:
        raise ValueError("it holds no tensors by name")
    save_file(tensors, Path(target), metadata={"format": "pt"})


if __name__ == "__main__":
    main(*sys.argv[1:])
