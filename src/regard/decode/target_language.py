"""The target language of multilingual translators, which a token of their vocabulary names; imported without torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from regard.data.tokenize.encode import Template
from regard.data.tokenize.tokenizer import SpecialTokens, Tokenizer
from regard.errors import InputError

Tokenizers = tuple[Tokenizer, Tokenizer]
GenerationConfig = Mapping[str, Any]

_BEFORE_SOURCE = re.compile(r">>(?P<code>.+)<<")  # Marian: >>fra<<
# The first token of the translation: __fr__ (M2M100), fra_Latn (NLLB), fr_XX (mBART).
_FIRST = re.compile(r"__(?P<m2m>[a-z]{2,3})__|(?P<nllb>[a-z]{3}_[A-Z][a-z]{3})|(?P<mbart>[a-z]{2}_[A-Z]{2})")


def with_language(
    tokenizers: Tokenizers, generation_config: GenerationConfig, language: str
) -> tuple[Tokenizers, dict[str, Any]]:
    """The tokenizers and the generation config of a translator that translates into this language."""
    source, target = tokenizers
    settings = dict(generation_config)
    before, first = _languages(source, _BEFORE_SOURCE), _languages(target, _FIRST)
    if before:
        return (_after(source, _chosen(before, language)), target), settings
    if not first:
        raise InputError("this model has no tokens of languages, so it translates into one only (--target-language). "
                         "Leave it out.")  # fmt: skip
    number = _chosen(first, language)
    if settings.get("forced_bos_token_id") is None and target.bos in first.values():  # mBART
        told = replace(target.special_tokens or SpecialTokens(), bos=number)
        return (source, target.with_special_tokens(told)), settings
    return tokenizers, {**settings, "forced_bos_token_id": number}


def lacks_language(tokenizers: Tokenizers, forced_bos: int | None) -> bool:
    """Whether nothing names the language that a multilingual translator translates into."""
    source, target = tokenizers
    first = _languages(target, _FIRST).values()
    return bool(first) and not _languages(source, _BEFORE_SOURCE) and forced_bos is None and target.bos not in first


def target_languages(tokenizers: Tokenizers) -> list[str]:
    """The codes of the languages that a translator can be told to translate into; of most, none."""
    source, target = tokenizers
    return [*(_languages(source, _BEFORE_SOURCE) or _languages(target, _FIRST))]


def _languages(tokenizer: Tokenizer, form: re.Pattern[str]) -> dict[str, int]:
    """The languages that have a token of this form: code and id."""
    found = ((form.fullmatch(token), number) for token, number in tokenizer.added_tokens.items())
    return {str(match[match.lastgroup or 0]): number for match, number in found if match}


def _after(tokenizer: Tokenizer, token: int) -> Tokenizer:
    """A tokenizer that puts a token before what stands before the text."""
    template = Template.of(tokenizer, "source")
    told = replace(
        tokenizer.special_tokens or SpecialTokens(), single=((token, 0), *template.single), pair=template.pair
    )
    return tokenizer.with_special_tokens(told)


def _chosen(codes: Mapping[str, int], language: str) -> int:
    """The token of a language, under its own code or another that has the same meaning: fr, fra, fr_XX, fra_Latn."""
    if language in codes:
        return codes[language]
    parts = _normalizer()
    asked = parts(language)
    found = [code for code in codes if parts(code)[: len(asked)] == asked]
    if len(found) == 1:
        return codes[found[0]]
    several = f"{language} may be {', '.join(found)} (--target-language). Name one of them."
    near = ", ".join(get_close_matches(language, codes, n=5, cutoff=0.0))
    raise InputError(several if found else f'this model does not translate into "{language}" (--target-language). The '
                                           f"nearest of its {len(codes):,} codes: {near}.")  # fmt: skip


def _normalizer() -> Callable[[str], tuple[str, ...]]:
    """The function that gives the parts of a code, the language with its shortest code: fra_Latn -> fr, latn."""
    from babel.core import get_global

    shortest: Mapping[str, str] = get_global("language_aliases")

    def parts(code: str) -> tuple[str, ...]:
        language, *others = code.replace("-", "_").lower().split("_")
        return (*shortest.get(language, language).lower().split("_"), *(one for one in others if one != "xx"))

    return parts
