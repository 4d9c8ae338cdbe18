"""Tiny models of sha-rnn itself, with random weights, and their logits; SHA_RNN names a clone of its repository."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

TOKENS = ["<unk>", "<eos>", *(f"w{number}" for number in range(9))]


def code() -> Any:
    """Its model.py; apex's fused norm, which needs a GPU, is torch's norm on a CPU."""
    fused = ModuleType("apex.normalization.fused_layer_norm")
    fused.FusedLayerNorm = torch.nn.LayerNorm  # type: ignore[attr-defined]
    relative = ModuleType("relattn")
    relative.PositionalEmbedding = None  # type: ignore[attr-defined]
    for stub in (ModuleType("apex"), ModuleType("apex.normalization"), fused, relative):
        sys.modules.setdefault(stub.__name__, stub)
    spec = importlib.util.spec_from_file_location("sha_rnn_model", Path(os.environ["SHA_RNN"]) / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(folder: Path, *, width: int = 8, inner: int = 16, depth: int = 2, tied: bool = True, seed: int = 1) -> Any:
    """Write a state dict and its vocabulary; return the ids of a text and the logits of its model."""
    torch.manual_seed(seed)
    model = code().SHARNN("LSTM", len(TOKENS), width, inner, depth, tie_weights=tied).eval()
    with torch.no_grad():  # as after a training: gates, norms and biases are no longer zeros and ones
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
        ids = torch.randint(len(TOKENS), (24,))
        first, hidden, memory = model(ids[:16, None], return_h=False)
        second, *_ = model(ids[16:, None], hidden, mems=memory, return_h=False)  # the text in two parts
        logits = model.decoder(torch.cat([first, second]))[:, 0]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n")
    torch.save(model.state_dict(), folder / "model.pt", _use_new_zipfile_serialization=False)  # as torch 1.3 wrote it
    return {"ids": ids.tolist(), "logits": [[round(one, 7) for one in row] for row in logits.tolist()]}
