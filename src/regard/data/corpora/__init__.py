"""Corpora that ship with the package, and how they are split into train, valid and test."""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

from regard.errors import InputError, suggest

Split = Literal["train", "valid", "test"]


def split_of(name: str) -> Split:
    """The split of a name, by a hash of the name: 18 in 20 train, 1 valid, 1 test."""
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 20
    return "valid" if share == 0 else "test" if share == 1 else "train"


def require_split(split: str) -> None:
    """Refuse a split that does not exist."""
    if split not in get_args(Split):
        raise InputError(f'unknown split "{split}". {suggest(split, get_args(Split))}')
