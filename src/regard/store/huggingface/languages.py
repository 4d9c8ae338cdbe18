"""Tokenizers of many languages (mBART, mBART-50, M2M100, NLLB): the codes of their languages, and a target language."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError
from regard.store.huggingface.special_tokens import (
    CLASSES,
    TokenizerClass,
    language_token,
    read_settings,
    tokenizer_class,
)

_MBART = [
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN", "it_IT", "ja_XX",
    "kk_KZ", "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN",
    "zh_CN",
]  # fmt: skip
_MBART50 = [*_MBART, *(
    "af_ZA", "az_AZ", "bn_IN", "fa_IR", "he_IL", "hr_HR", "id_ID", "ka_GE", "km_KH", "mk_MK", "ml_IN", "mn_MN",
    "mr_IN", "pl_PL", "ps_AF", "pt_XX", "sv_SE", "sw_KE", "ta_IN", "te_IN", "th_TH", "tl_XX", "uk_UA", "ur_PK",
    "xh_ZA", "gl_ES", "sl_SI",
)]  # fmt: skip
_M2M100 = [
    "af", "am", "ar", "ast", "az", "ba", "be", "bg", "bn", "br", "bs", "ca", "ceb", "cs", "cy", "da", "de", "el",
    "en", "es", "et", "fa", "ff", "fi", "fr", "fy", "ga", "gd", "gl", "gu", "ha", "he", "hi", "hr", "ht", "hu",
    "hy", "id", "ig", "ilo", "is", "it", "ja", "jv", "ka", "kk", "km", "kn", "ko", "lb", "lg", "ln", "lo", "lt",
    "lv", "mg", "mk", "ml", "mn", "mr", "ms", "my", "ne", "nl", "no", "ns", "oc", "or", "pa", "pl", "ps", "pt",
    "ro", "ru", "sd", "si", "sk", "sl", "so", "sq", "sr", "ss", "su", "sv", "sw", "ta", "th", "tl", "tn", "tr",
    "uk", "ur", "uz", "vi", "wo", "xh", "yi", "yo", "zh", "zu",
]  # fmt: skip
_WMT21 = [
    "en", "ha", "is", "ja", "cs", "ru", "zh", "de",
]  # fmt: skip


def language_codes(of_class: TokenizerClass, settings: Mapping[str, Any]) -> list[str]:
    """The tokens of languages that follow the pieces of a tokenizer's file, in the order of their ids."""
    if of_class is CLASSES["M2M100Tokenizer"]:
        codes = _WMT21 if settings.get("language_codes") == "wmt21" else _M2M100
        return [language_token(of_class, code) for code in codes]
    return {id(CLASSES["MBartTokenizer"]): _MBART, id(CLASSES["MBart50Tokenizer"]): _MBART50}.get(id(of_class), [])


def with_target_language(folder: Path, generation_config: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """The generation config with the language that tokenizer_config.json names (`tgt_lang`) as the first token."""
    settings = read_settings(folder)
    of_class = tokenizer_class(folder, settings)
    if not of_class.language or generation_config.get("forced_bos_token_id") is not None:
        return generation_config
    target = settings.get("tgt_lang")
    if target is None:
        return generation_config
    number = tokenizer.id_of(language_token(of_class, target))
    if number is None:
        raise InputError(f"the vocabulary has no language {target!r} ({folder}/tokenizer_config.json, tgt_lang).")
    return {**generation_config, "forced_bos_token_id": number}
