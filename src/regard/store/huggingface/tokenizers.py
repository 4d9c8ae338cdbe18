"""Tokenizer files of Hugging Face, read and written: every format becomes our one Tokenizer.

tokenizer.json; BERT's vocab.txt; GPT-2's and RoBERTa's vocab.json with merges.txt; T5's and the Reformer's
spiece.model; Marian's source.spm and target.spm with vocab.json. tokenizer_config.json and the older
special_tokens_map.json name the special tokens.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from regard import messages
from regard.data.tokenize.tokenizer import SpecialTokens, Tokenizer
from regard.errors import DamagedFile, InputError, Note
from regard.store.files import json_bytes, read_bounded, read_json, require_file, write_file
from regard.store.huggingface.spiece import marian_files, marian_tokenizer, sentencepiece_tokenizer

Names = dict[str, str]
"""Special tokens by role: "bos_token" -> "<s>"."""

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BERT: Names = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
                "mask_token": "[MASK]"}  # fmt: skip
_ROBERTA: Names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>",
                   "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>"}  # fmt: skip
_GPT2: Names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
_SENTENCEPIECE: Names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

Tokenizers = tuple[Tokenizer, Tokenizer | None]
"""The source's tokenizer, and the target's where it has its own."""

_FILES = ("tokenizer.json", "spiece.model", "source.spm", "merges.txt", "vocab.json", "vocab.txt", "tokenizer.model")


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds any tokenizer file."""
    return any((folder / name).exists() for name in _FILES)


def read_huggingface_tokenizers(folder: Path, *, start: int | None = None, end: int | None = None) -> Tokenizers:
    """Read the tokenizers of a Hugging Face folder; `start` and `end` are the decoder's, where its config has them."""
    settings = _settings(folder)
    files = {path.name for path in folder.iterdir()}
    if "tokenizer.json" in files:
        return _from_tokenizer_json(folder, settings, files, start, end)
    if "spiece.model" in files:
        library = _build(folder, "spiece.model", lambda: _sentencepiece(folder, settings))
        return _finish(library, folder, settings, _SENTENCEPIECE, start, end), None
    if {"source.spm", "target.spm", "vocab.json"} <= files:
        return _marian(folder, settings, start, end)
    if {"vocab.json", "merges.txt"} <= files:
        library = _build(folder, "merges.txt", lambda: _byte_level_bpe(folder, settings))
        names = _ROBERTA if library.token_to_id("<s>") is not None else _GPT2
        return _finish(library, folder, settings, names, start, end), None
    if "vocab.txt" in files:
        library = _build(folder, "vocab.txt", lambda: _wordpiece(folder, settings))
        return _finish(library, folder, settings, _BERT, start, end), None
    raise InputError(f"no tokenizer in {folder}. It needs a tokenizer.json, a vocab.txt, a vocab.json with merges.txt "
                     "or source.spm, or a spiece.model.")  # fmt: skip


def _from_tokenizer_json(
    folder: Path, settings: Mapping[str, Any], files: set[str], start: int | None, end: int | None
) -> Tokenizers:  # fmt: skip
    """Read tokenizer.json, and target_tokenizer.json if there is one."""
    found: list[Tokenizer] = []
    for name in ("tokenizer.json", "target_tokenizer.json"):
        if name in files:
            text = _read_text(folder / name)
            try:
                library = Tokenizer.from_json(text)._tokenizer
            except DamagedFile as error:
                raise DamagedFile(f"{error} ({folder / name})") from None
            special_tokens = _special_tokens(library, _names(settings, {}), settings, start, end)
            found.append(Tokenizer.from_json(text, special_tokens))
    return found[0], found[1] if len(found) > 1 else None


def _finish(
    library: tokenizers.Tokenizer,
    folder: Path,
    settings: Mapping[str, Any],
    default_names: Names,
    start: int | None,
    end: int | None,
    first_unknown: int | None = None,
) -> Tokenizer:
    """Add the added tokens and determine the special tokens."""
    names = _names(settings, default_names)
    known = [name for name in names.values() if library.token_to_id(name) is not None]
    library.add_special_tokens([AddedToken(name, normalized=False) for name in known])
    for token, number in _added_tokens(folder, settings):
        found = library.token_to_id(token.content)
        if found is None:
            library.add_special_tokens([token]) if token.special else library.add_tokens([token])
            found = library.token_to_id(token.content)
        elif token.special:
            library.add_special_tokens([token])
        if found != number:
            raise DamagedFile(f"{folder} gives {token.content!r} the id {number}, its vocabulary {found}. "
                              "Copy all its files again.")  # fmt: skip
    special_tokens = _special_tokens(library, names, settings, start, end)
    return Tokenizer(library, None, replace(special_tokens, first_unknown=first_unknown))


def _special_tokens(
    library: tokenizers.Tokenizer, names: Names, settings: Mapping[str, Any], start: int | None, end: int | None
) -> SpecialTokens:
    """The ids of the special tokens, from their names."""
    ids = {role: library.token_to_id(name) for role, name in names.items()}

    def first(*roles: str) -> int | None:
        return next((ids[role] for role in roles if ids.get(role) is not None), None)

    bos = first("cls_token", "bos_token") if start is None else start
    eos = first("eos_token", "sep_token") if end is None else end
    unk, pad, named_bos = first("unk_token"), first("pad_token"), ids.get("bos_token")
    around_nothing = library.encode("", add_special_tokens=True).ids
    prompt_prefix = (around_nothing[0],) if around_nothing and around_nothing[0] == named_bos else ()
    if settings.get("add_bos_token") is True and named_bos is not None:
        prompt_prefix = (named_bos,)
    return SpecialTokens(
        bos,
        eos,
        eos if pad is None else pad,
        # GPT-2 encodes every text, and names its end-of-text token as the unknown one.
        None if unk == eos else unk,
        first("mask_token"),
        prompt_prefix,
        2 if _has_double_separator(library, names) else 1,
    )


def _has_double_separator(library: tokenizers.Tokenizer, names: Names) -> bool:
    """Whether two end tokens separate the texts of a pair, as in RoBERTa."""
    if library.post_processor is None:
        return {role: names.get(role) for role in _ROBERTA} == _ROBERTA
    ids = library.encode("", "", add_special_tokens=True).ids
    return len(ids) == 4 and ids[1] == ids[2] == ids[3] != ids[0]


def _settings(folder: Path) -> dict[str, Any]:
    """The settings of tokenizer_config.json over those of the older special_tokens_map.json."""
    found: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).exists():
            found |= {key: value for key, value in read_json(folder / name).items() if value is not None}
    return found


def _names(settings: Mapping[str, Any], default_names: Names) -> Names:
    """The name of each special token; a setting is a string or an object with "content"."""
    names = dict(default_names)
    for role in _ROLES:
        value = settings.get(role)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            names[role] = value
    return names


def _added_tokens(folder: Path, settings: Mapping[str, Any]) -> list[tuple[AddedToken, int]]:
    """The added tokens of a vocabulary, in the order of their ids."""
    found: dict[str, tuple[AddedToken, int]] = {}
    if (folder / "added_tokens.json").exists():
        for text, number in read_json(folder / "added_tokens.json").items():
            found[text] = AddedToken(text, normalized=True), number
    for number, value in _mapping(settings.get("added_tokens_decoder")).items():
        token = _mapping(value)
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        if isinstance(token.get("content"), str) and str(number).isdecimal():
            given = {flag: token[flag] for flag in flags if isinstance(token.get(flag), bool)}
            found[token["content"]] = AddedToken(token["content"], **given), int(number)
    if not all(isinstance(number, int) for _, number in found.values()):
        raise DamagedFile(f"{folder}/added_tokens.json cannot be used: an id is missing. Copy it again.")
    return sorted(found.values(), key=lambda pair: pair[1])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _wordpiece(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """BERT's WordPiece: vocab.txt has one token per line, whose number is its id."""
    lines = _read_text(folder / "vocab.txt").replace("\r\n", "\n").removesuffix("\n").split("\n")
    vocabulary = {token: number for number, token in enumerate(lines)}
    names = _names(settings, _BERT)
    library = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=names["unk_token"]))
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return library


def _byte_level_bpe(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The byte-level BPE of GPT-2 and RoBERTa: vocab.json and the ordered pairs of merges.txt."""
    lines = _read_text(folder / "merges.txt").splitlines()
    lines = lines[1:] if lines and lines[0].startswith("#version") else lines
    halves = [line.partition(" ") for line in lines if line]
    if not all(space and last and " " not in last for _, space, last in halves):
        raise ValueError("a line does not hold two pieces")
    merges = [(first, last) for first, _, last in halves]
    vocabulary = read_json(folder / "vocab.json")
    library = tokenizers.Tokenizer(models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix=""))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space", False))
    library.decoder = decoders.ByteLevel()
    return library


def _sentencepiece(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    sentinels = settings.get("extra_ids", 100)
    if not isinstance(sentinels, int) or not 0 <= sentinels <= 10_000:
        raise ValueError(f"extra_ids is {sentinels!r}")
    return sentencepiece_tokenizer(folder / "spiece.model", sentinels)


def _marian(folder: Path, settings: Mapping[str, Any], start: int | None, end: int | None) -> Tokenizers:
    """One tokenizer per language; target_vocab.json has the target's ids where they are separate."""
    found: list[Tokenizer] = []
    for name, vocab in (("source.spm", "vocab.json"), ("target.spm", "target_vocab.json")):
        path = folder / vocab if (folder / vocab).exists() else folder / "vocab.json"
        ids = read_json(path)
        if not all(type(number) is int for number in ids.values()):
            raise DamagedFile(f"{path} cannot be used: an id is missing. Copy it again.")

        def build(name: str = name, ids: Mapping[str, int] = ids) -> tokenizers.Tokenizer:
            return marian_tokenizer(folder / name, ids)

        own_settings = {**settings, "added_tokens_decoder": {}}
        library = _build(folder, name, build)
        found.append(_finish(library, folder, own_settings, _SENTENCEPIECE, start, end, len(ids)))
    return found[0], found[1]


def _build(folder: Path, name: str, build: Callable[[], tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    """Build a tokenizer of the library, and turn all its errors into ours."""
    try:
        library = build()
        library.encode("A probe, 1.")
    except (KeyboardInterrupt, SystemExit, InputError, DamagedFile):
        raise
    except BaseException as error:  # a panic of the Rust library is not an Exception
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DamagedFile(f"{folder / name} cannot be used: {why}. Copy or download it again.") from None
    if library.get_vocab_size() == 0:
        raise messages.BAD_TOKENIZER(why="it has no tokens")
    return library


def _read_text(path: Path) -> str:
    require_file(path)
    try:
        return read_bounded(path).decode()
    except UnicodeDecodeError:
        raise DamagedFile(f"{path} cannot be used: it is not UTF-8. Copy or download it again.") from None


Template = Literal["bos_eos", "eos", "prompt"]
"""The special tokens around a text: begin and end, only the end, or the prefix of a prompt."""


def write_huggingface_tokenizers(
    folder: Path, made: Tokenizers, *, max_length: int | None, template: Template, segments: int = 0
) -> None:
    """Write tokenizer.json with a template of special tokens, and tokenizer_config.json; or Marian's own files."""
    if made[1] is not None and _is_marian(made[0]) and _is_marian(made[1]):
        _write_marian(folder, (made[0], made[1]), max_length)
        return
    for tokenizer, name in zip(made, ("tokenizer.json", "target_tokenizer.json")):
        if tokenizer is not None:
            write_file(folder / name, _with_template(tokenizer, template).encode())
    config = _tokenizer_config(made[0], max_length)
    if segments > 1:  # else others would not give token_type_ids to the texts of a pair
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    write_file(folder / "tokenizer_config.json", json_bytes(config))


def _is_marian(tokenizer: Tokenizer) -> bool:
    """Whether some pieces of a tokenizer have no id in the model's vocabulary, as only Marian's files allow."""
    return tokenizer.special_tokens is not None and tokenizer.special_tokens.first_unknown is not None


def _write_marian(folder: Path, made: tuple[Tokenizer, Tokenizer], max_length: int | None) -> None:
    """Write source.spm, target.spm and vocab.json."""
    files = [marian_files(tokenizer.to_json(), tokenizer.vocabulary) for tokenizer in made]
    for (pieces, _), name in zip(files, ("source.spm", "target.spm")):
        write_file(folder / name, pieces)
    source_ids, target_ids = (ids for _, ids in files)
    write_file(folder / "vocab.json", json_bytes(source_ids))
    if source_ids != target_ids:
        write_file(folder / "target_vocab.json", json_bytes(target_ids))
    separate = source_ids != target_ids
    config = {**_SENTENCEPIECE, "tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    config = config if max_length is None else {**config, "model_max_length": max_length}
    write_file(folder / "tokenizer_config.json", json_bytes(config))


def _tokenizer_config(tokenizer: Tokenizer, max_length: int | None) -> dict[str, Any]:
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    bos, eos = id_or_none(lambda: tokenizer.bos), id_or_none(lambda: tokenizer.eos)
    unk, pad, mask = (
        id_or_none(read) for read in (lambda: tokenizer.unk, lambda: tokenizer.pad, lambda: tokenizer.mask)
    )
    for role, number in zip(_ROLES, (bos, eos, unk, eos, pad, bos, mask)):
        if number is not None:
            config[role] = library.id_to_token(number)
    return config if max_length is None else {**config, "model_max_length": max_length}


def id_or_none(read: Callable[[], int]) -> int | None:
    """The id of a special token, or None if the tokenizer lacks it."""
    try:
        return read()
    except InputError:
        return None


def _with_template(tokenizer: Tokenizer, template: Template) -> str:
    """tokenizer.json with a post-processor that adds the special tokens."""
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    plain = json.loads(tokenizer.to_json())

    def named(*ids: int) -> list[tuple[str, int]]:
        return [(str(library.id_to_token(number)), number) for number in ids]

    before = {"bos_eos": named(tokenizer.bos), "eos": [], "prompt": named(*tokenizer.prompt_prefix)}[template]
    after = [] if template == "prompt" else named(tokenizer.eos)
    one = " ".join([*(name for name, _ in before), "$A:0", *(f"{name}:0" for name, _ in after)])
    more = (tokenizer.special_tokens.pair_separators if tokenizer.special_tokens else 1) - 1
    two = " ".join([one, *(more * [f"{name}:0" for name, _ in after]), "$B:1", *(f"{name}:1" for name, _ in after)])
    if before or after:
        library.post_processor = processors.TemplateProcessing(one, two, [*before, *after])
        plain["post_processor"] = json.loads(library.to_str())["post_processor"]
    else:
        plain["post_processor"] = None
    return json.dumps(plain, ensure_ascii=False)


def id_tokenizer(
    folder: Path, size: int, generation_config: Mapping[str, Any], *, start: int | None, end: int | None
) -> Tokenizer:
    """A tokenizer for folders without one, whose texts are token ids: "5 7 9"."""
    warnings.warn(f"{folder} has no tokenizer, so texts are token ids, as in '5 7 9'.", Note, stacklevel=2)
    library = tokenizers.Tokenizer(WordLevel({str(number): number for number in range(size)}, unk_token="0"))
    library.pre_tokenizer = WhitespaceSplit()
    # Default settings may name tokens that the model does not have.
    found = map(generation_config.get, ("bos_token_id", "pad_token_id"))
    bos, pad = (number if number in range(size) else None for number in found)
    special_tokens = SpecialTokens(bos if start is None else start, end, end if pad is None else pad, prompt_prefix=())
    return Tokenizer(library, special_tokens=special_tokens)
