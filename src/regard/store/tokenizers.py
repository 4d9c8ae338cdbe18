"""The tokenizers of a model folder of ours, read without torch, which starts slowly."""

from __future__ import annotations

from pathlib import Path

from regard.data.tokenize.tokenizer import SpecialTokens, Tokenizer
from regard.errors import DamagedFile, InputError
from regard.schema import from_dict
from regard.store.files import read_bounded, read_json


def read_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer | None]:
    """Read the tokenizers of a model folder of ours: the source's, and the target's where it has its own."""
    special_tokens = _special_tokens(folder)
    first = _read_tokenizer(folder / "tokenizer.json", special_tokens[0])
    path = folder / "target_tokenizer.json"
    return first, _read_tokenizer(path, special_tokens[1]) if path.exists() else None


def _special_tokens(folder: Path) -> tuple[SpecialTokens | None, SpecialTokens | None]:
    """The special tokens of both tokenizers, where config.json lists them."""
    path = folder / "config.json"
    value = read_json(path).get("special_tokens") if path.exists() else None
    if value is None:
        return None, None
    try:
        both = tuple[SpecialTokens | None, SpecialTokens | None]
        first, second = from_dict(both, value, where=f"{path}: special_tokens")
    except (InputError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path} cannot be used: {error}") from error
    return first, second


def _read_tokenizer(path: Path, special_tokens: SpecialTokens | None) -> Tokenizer:
    try:
        return Tokenizer.from_json(read_bounded(path).decode(), special_tokens)
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{path} cannot be used: it is not UTF-8. Restore it from a copy.") from error
    except DamagedFile as error:
        raise DamagedFile(f"{error} ({path})") from None
