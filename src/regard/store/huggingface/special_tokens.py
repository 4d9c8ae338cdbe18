"""Special tokens of published tokenizers: their names, and what stands around a text or a pair of texts.

The tokenizer class that a folder names, or that its model type implies, decides, as in transformers. The classes of
BERT, RoBERTa and T5 put their own tokens around a text, whatever tokenizer.json says; others leave that to the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers, processors

from regard.data.tokenize.encode import Template
from regard.data.tokenize.tokenizer import FIRST_TEXT, SECOND_TEXT, Pieces, SpecialTokens, Tokenizer
from regard.errors import InputError
from regard.store.files import read_json

Names = dict[str, str]
"""Special tokens by role: "bos_token" -> "<s>"."""

Settings = Mapping[str, Any]
"""What tokenizer_config.json says, and the older special_tokens_map.json."""

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
BERT_NAMES: Names = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
                "mask_token": "[MASK]"}  # fmt: skip
_ROBERTA: Names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>",
                   "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>"}  # fmt: skip
_ALBERT: Names = {**BERT_NAMES, "unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "[CLS]", "eos_token": "[SEP]"}
_LEGACY_NLLB = "NllbTokenizer, legacy_behaviour"
SENTENCEPIECE: Names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_PLACEHOLDERS = {"A": FIRST_TEXT, "B": SECOND_TEXT}


@dataclass(frozen=True)
class TokenizerClass:
    """A tokenizer class of transformers: the names of its special tokens, and what it puts around a text and a pair."""

    names: Names
    single: str | None = None  # as "cls A sep"; None: what tokenizer.json says
    pair: str = ""
    segments: bool = False  # the second text of a pair is another segment
    language: str = ""  # of a text, where a token says so ("lang") and no setting does
    language_token: str = "{}"


_LANGUAGE_FIRST = partial(TokenizerClass, _ROBERTA, "lang A eos", "lang A B eos")
_LANGUAGE_LAST = partial(TokenizerClass, _ROBERTA, "A eos lang", "A B eos lang")

CLASSES = {
    "BertTokenizer": TokenizerClass(BERT_NAMES, "cls A sep", "cls A sep B sep", segments=True),
    "AlbertTokenizer": TokenizerClass(_ALBERT, "cls A sep", "cls A sep B sep"),
    "MBartTokenizer": _LANGUAGE_LAST(language="en_XX"),
    "MBart50Tokenizer": _LANGUAGE_FIRST(language="en_XX"),
    "NllbTokenizer": _LANGUAGE_FIRST(language="eng_Latn"),
    _LEGACY_NLLB: _LANGUAGE_LAST(language="eng_Latn"),
    "M2M100Tokenizer": _LANGUAGE_FIRST(language="en", language_token="__{}__"),
    "DistilBertTokenizer": TokenizerClass(BERT_NAMES, "cls A sep", "cls A sep B sep"),
    "RobertaTokenizer": TokenizerClass(_ROBERTA, "cls A sep", "cls A sep sep B sep"),
    "XLMRobertaTokenizer": TokenizerClass(_ROBERTA, "bos A eos", "bos A eos eos B eos"),
    "CamembertTokenizer": TokenizerClass(_ROBERTA, "bos A eos", "bos A eos eos B eos"),
    "T5Tokenizer": TokenizerClass(SENTENCEPIECE, "A eos", "A eos B eos"),
    "MarianTokenizer": TokenizerClass(SENTENCEPIECE, "A eos", "A B eos"),
    "GPT2Tokenizer": TokenizerClass(dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")),
    "Qwen2Tokenizer": TokenizerClass(dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>")),
    "ReformerTokenizer": TokenizerClass({"eos_token": "</s>", "unk_token": "<unk>"}),
}
CLASSES |= {"ElectraTokenizer": CLASSES["BertTokenizer"], "BartTokenizer": CLASSES["RobertaTokenizer"]}
_OTHER = TokenizerClass({})
_BY_MODEL_TYPE = {
    "bert": "BertTokenizer", "distilbert": "DistilBertTokenizer", "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer", "t5": "T5Tokenizer", "mt5": "T5Tokenizer",
    "marian": "MarianTokenizer", "gpt2": "GPT2Tokenizer", "reformer": "ReformerTokenizer",
    "electra": "BertTokenizer", "albert": "AlbertTokenizer", "bart": "RobertaTokenizer", "mbart": "MBartTokenizer",
    "m2m_100": "M2M100Tokenizer", "qwen2": "Qwen2Tokenizer",
}  # fmt: skip


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of tokenizer_config.json over those of the older special_tokens_map.json."""
    found: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).exists():
            found |= {key: value for key, value in read_json(folder / name).items() if value is not None}
    return found


def tokenizer_class(folder: Path, settings: Settings, default: str | None = None) -> TokenizerClass:
    """The class that tokenizer_config.json or config.json names or implies; else the default."""
    config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    name = str(named).removesuffix("Fast") if named else _BY_MODEL_TYPE.get(str(config.get("model_type")))
    if name == "NllbTokenizer" and settings.get("legacy_behaviour") is True:
        name = _LEGACY_NLLB
    if default is not None and name not in CLASSES:
        name = default
    return CLASSES.get(str(name), _OTHER)


def special_names(settings: Settings, default_names: Names) -> Names:
    """The name of each special token; a setting is a string or an object with "content"."""
    names = dict(default_names)
    for role in ROLES:
        value = settings.get(role)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            names[role] = value
    return names


def language_token(of_class: TokenizerClass, code: Any) -> str:
    """The token that says which language a text is in."""
    return of_class.language_token.format(code)


def obeying(text: str, library: tokenizers.Tokenizer, of_class: TokenizerClass, settings: Settings) -> str:
    """tokenizer.json with the settings of its class, which stand above those that it was saved with."""
    plain = json.loads(text)
    if of_class.names == BERT_NAMES and isinstance(library.normalizer, normalizers.BertNormalizer):
        plain["normalizer"] = json.loads(bert_normalizer(settings).__getstate__())
    byte_level = isinstance(library.pre_tokenizer, pre_tokenizers.ByteLevel)
    if byte_level and of_class in (CLASSES["GPT2Tokenizer"], CLASSES["RobertaTokenizer"]):
        plain["pre_tokenizer"]["add_prefix_space"] = settings.get("add_prefix_space", False) is True
    if of_class is CLASSES["RobertaTokenizer"]:
        plain["post_processor"] = json.loads(trimmed_offsets(settings).__getstate__())
    return text if plain == json.loads(text) else json.dumps(plain, ensure_ascii=False)


def trimmed_offsets(settings: Settings) -> processors.ByteLevel:
    """RoBERTa's offsets of tokens, which are without spaces."""
    return processors.ByteLevel(add_prefix_space=settings.get("add_prefix_space", False) is True, trim_offsets=True)


def bert_normalizer(settings: Settings) -> normalizers.Normalizer:
    """BERT's normalization of text."""
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )


def special_tokens(
    library: tokenizers.Tokenizer, of_class: TokenizerClass, settings: Settings, start: int | None, end: int | None,
    *, saved: bool,
) -> SpecialTokens:  # fmt: skip
    """The ids of the special tokens, and what stands around a text; `saved`: whether a tokenizer.json says so."""
    names = special_names(settings, of_class.names)
    if of_class.language:
        names["lang_token"] = language_token(of_class, settings.get("src_lang") or of_class.language)
    ids = {role: library.token_to_id(name) for role, name in names.items()}

    def first(*roles: str) -> int | None:
        return next((ids[role] for role in roles if ids.get(role) is not None), None)

    eos = first("eos_token", "sep_token") if end is None else end
    unk, pad = first("unk_token"), first("pad_token")
    if of_class.single is not None:
        single, pair = (_pieces(template, names, ids) for template in (of_class.single, of_class.pair))
    elif saved:
        single, pair = (_saved_pieces(library, texts) for texts in (1, 2))
    else:
        before, after = ([_role(role, names, ids)] if settings.get(f"add_{role}_token") is True and f"{role}_token" in
                         names else [] for role in ("bos", "eos"))  # fmt: skip
        single, pair = _around(FIRST_TEXT, 0, before, after), ()
        pair = (*single, *_around(SECOND_TEXT, 1, before, after))
    inputs = settings.get("model_input_names")
    if "token_type_ids" not in inputs if isinstance(inputs, list) else not of_class.segments:
        single, pair = (tuple((token, 0) for token, _ in pieces) for pieces in (single, pair))
    if not all(segment in (0, 1) for _, segment in (*single, *pair)):
        raise InputError("tokenizer.json gives texts other segments than 0 and 1, which regard does not support.")
    return SpecialTokens(
        bos=first("cls_token", "bos_token") if start is None else start,
        eos=eos,
        pad=(0 if eos is None else eos) if pad is None else pad,  # padding is never read, so any token will do
        # GPT-2 encodes every text, and names its end-of-text token as the unknown one.
        unk=None if unk == eos else unk,
        mask=first("mask_token"),
        single=single,
        pair=pair,
    )


def _around(text: int, segment: int, before: list[int], after: list[int]) -> Pieces:
    return tuple((token, segment) for token in (*before, text, *after))


def _pieces(template: str, names: Names, ids: Mapping[str, int | None]) -> Pieces:
    """The pieces of a template such as "cls A sep B sep"; from the second text on, segment 1."""
    words, found = template.split(), []
    for index, word in enumerate(words):
        token = _PLACEHOLDERS[word] if word in _PLACEHOLDERS else _role(word, names, ids)
        found.append((token, int("B" in words[: index + 1])))
    return tuple(found)


def _role(role: str, names: Names, ids: Mapping[str, int | None]) -> int:
    found = ids.get(f"{role}_token")
    if found is None:
        setting = "src_lang" if role == "lang" else f"{role}_token"
        raise InputError(
            f"the vocabulary has no {names.get(f'{role}_token')}, which this kind of tokenizer puts around a text "
            f"({setting}). Name the token that the model was trained with in tokenizer_config.json."
        )
    return found


def _saved_pieces(library: tokenizers.Tokenizer, texts: int) -> Pieces:
    """The pieces that the post-processor of a tokenizer.json makes of one text or two."""
    for probe in _probes(library):
        encoding = library.encode(probe, probe if texts == 2 else None, add_special_tokens=True)
        rows = zip(encoding.sequence_ids, encoding.ids, encoding.type_ids)
        found: list[tuple[int, int]] = []
        for sequence, group in groupby(rows, key=lambda row: row[0]):
            tokens = [(token, segment) for _, token, segment in group]
            found += tokens if sequence is None else [(FIRST_TEXT - sequence, tokens[0][1])]
        if sum(token < 0 for token, _ in found) == texts:
            return tuple(found)
    raise InputError("tokenizer.json encodes no text at all. Copy or download it again.")


def _probes(library: tokenizers.Tokenizer) -> Iterator[str]:
    """Texts, one of which has a token."""
    yield "a"
    yield from islice(library.get_vocab(), 10_000)


def id_or_none(read: Callable[[], int]) -> int | None:
    """The id of a special token, or None if the tokenizer lacks it."""
    try:
        return read()
    except InputError:
        return None


def with_template(tokenizer: Tokenizer, template: Template) -> str:
    """tokenizer.json with a post-processor that adds the special tokens."""
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    plain = json.loads(tokenizer.to_json())
    mask = id_or_none(lambda: tokenizer.mask)
    for token in plain["added_tokens"]:
        token["lstrip"] = tokenizer.mask_takes_space if token["id"] == mask else token["lstrip"]
    names = {FIRST_TEXT: "$A", SECOND_TEXT: "$B"}
    special = {token for token, _ in (*template.single, *template.pair) if token >= 0}
    names |= {token: str(library.id_to_token(token)) for token in special}
    single, pair = (
        [f"{names[token]}:{segment}" for token, segment in pieces] for pieces in (template.single, template.pair)
    )
    plain["post_processor"] = None
    if special:
        tokens = [(names[token], token) for token in sorted(special)]
        library.post_processor = processors.TemplateProcessing(single, pair, tokens)
        plain["post_processor"] = json.loads(library.to_str())["post_processor"]
    return json.dumps(plain, ensure_ascii=False)
