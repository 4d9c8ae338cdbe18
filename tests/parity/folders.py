"""Tiny random models of transformers, saved as folders with a tokenizer, and loaded by us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from regard.store.folder import read_folder
from regard.store.loading import Loaded

VOCABULARY = 40
CPU = torch.device("cpu")


def write_tokenizer(folder: Path, pad: int = 0, **parts: str) -> None:
    """A tokenizer of single characters that knows BERT's, GPT-2's and T5's special tokens."""
    specials = ["<pad>", "</s>", "<unk>", "<s>", "<mask>"]
    specials[:2] = specials[:2] if pad == 0 else specials[1::-1]
    vocabulary = {token: number for number, token in enumerate([*specials, *"abcdefghijklmnopqrstuvwxyz ."])}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    library.decoder = decoders.Fuse()
    library.add_special_tokens(specials)
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=library, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", bos_token="<s>",
        mask_token="<mask>", **parts,
    )  # fmt: skip
    theirs.save_pretrained(folder)


def perturbed(model: Any, seed: int = 3, by: float = 0.15) -> Any:
    """Add noise to every parameter, so that none is zero or one."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "embed_positions" in name:  # sinusoids, which Marian does not train
                continue
            tensor.add_(torch.randn_like(tensor) * (by if tensor.dim() > 1 else 0.2))
    return model.eval()


def save_theirs(model: Any, folder: Path) -> Path:
    """Save a model of transformers as a folder."""
    model.save_pretrained(folder)
    write_tokenizer(folder, pad=1 if model.config.model_type == "roberta" else 0)
    return folder


def ours(folder: Path) -> Loaded:
    """Load a folder as our model."""
    return read_folder(folder, CPU)


def rows(seed: int = 0, batch: int = 4, length: int = 11, *, left: bool = False) -> tuple[Tensor, Tensor]:
    """Random ids without special tokens, and their padding mask."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 33, (batch, length), generator=draw)
    lengths = torch.randint(2, length + 1, (batch,), generator=draw)
    lengths[0] = length
    padding = torch.arange(length) < lengths[:, None]
    padding = padding.flip(1) if left else padding
    return ids.masked_fill(~padding, 0), padding


def close(found: Tensor, expected: Tensor, where: Tensor | None = None) -> None:
    """Equal to 1e-5 of the largest value, where there are tokens."""
    if where is not None:
        found, expected = found[where], expected[where]
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max().clamp_min(1.0)
