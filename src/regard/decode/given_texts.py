"""Texts and terms that callers give: what is no text is refused in one line that says which, and what to give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set, Sized
from typing import Any

from regard.errors import InputError


def require_text(verb: str, text: object) -> None:
    """Refuse whatever is not one text."""
    if not isinstance(text, str):
        raise InputError(f"{verb} takes one text, got {_kind(text)}. {_remedy(text, 'Call it once per text.')}")


def texts_of(verb: str, texts: str | Sequence[str]) -> Sequence[str]:
    """One text or several, as a sequence; what is no text is refused by its place."""
    if isinstance(texts, str):
        return [texts]
    _require_list(f"{verb} takes a text or a list of texts", texts)
    for index, text in enumerate(texts):
        _require_item(verb, "texts", text, f"index {index}")
    return texts


def several_texts(verb: str, texts: Sequence[str]) -> Sequence[str]:
    """A list of texts; a text alone is refused too."""
    if isinstance(texts, str):
        raise InputError(f"{verb} takes a list of texts. Put the text into one.")
    return texts_of(verb, texts)


def texts_or_pairs(verb: str, texts: Sequence[Any]) -> Sequence[Any]:
    """A list of texts, or of pairs of texts."""
    if isinstance(texts, str):
        raise InputError(f"{verb} takes a list of texts. Put the text into one.")
    _require_list(f"{verb} takes a list of texts or of pairs", texts)
    for index, text in enumerate(texts):
        if isinstance(text, (tuple, list)):
            if len(text) != 2:
                raise InputError(f"{verb} takes texts or pairs of texts, got {len(text)} at index {index}. Give two.")
            for number, part in enumerate(text):
                _require_item(verb, "pairs of texts", part, f"index {index}, part {number}")
        else:
            _require_item(verb, "texts or pairs of texts", text, f"index {index}")
    return texts


def require_pairs(verb: str, sources: Sequence[str], targets: Sequence[str]) -> None:
    """Refuse whatever is not a list of sources, and one of targets, as long."""
    several_texts(f"{verb} (source)", sources)
    several_texts(f"{verb} (target)", targets)
    if len(targets) != len(sources):
        raise InputError(f"{verb} takes as many targets as sources, got {len(sources):,} sources and "
                         f"{len(targets):,} targets. Give one target per source.")  # fmt: skip


def terms_of(terms: Sequence[str], name: str) -> tuple[str, ...]:
    """A list of terms; one text is not taken apart into characters."""
    if isinstance(terms, str):
        raise InputError(f"{name} takes a list of terms. Put the term into one.")
    _require_list(f"{name} takes a list of terms", terms)
    for index, term in enumerate(terms):
        _require_item(name, "terms", term, f"index {index}")
    return tuple(terms)


def _require_list(takes: str, texts: object) -> None:
    unordered = isinstance(texts, (Mapping, Set)) or not hasattr(texts, "__iter__") or not isinstance(texts, Sized)
    if isinstance(texts, (bytes, bytearray)) or unordered:
        raise InputError(f"{takes}, got {_kind(texts)}. {_remedy(texts, 'Give a list of strings.')}")


def _require_item(verb: str, what: str, text: object, where: str) -> None:
    if not isinstance(text, str):
        raise InputError(f"{verb} takes {what}, got {_kind(text)} at {where}. {_remedy(text, 'Give strings.')}")


def _kind(value: object) -> str:
    """The type of a value, as in a sentence."""
    if value is None:
        return "None"
    name = type(value).__name__
    return name if name == "bytes" else f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _remedy(value: object, otherwise: str) -> str:
    return 'Decode bytes: .decode("utf-8").' if isinstance(value, (bytes, bytearray)) else otherwise
