"""Tokenizer files of Hugging Face, read and written: every format becomes our one Tokenizer.

tokenizer.json; BERT's vocab.txt; GPT-2's and RoBERTa's vocab.json with merges.txt; T5's and the Reformer's
spiece.model; the sentencepiece.bpe.model of XLM-RoBERTa and CamemBERT; Marian's source.spm and target.spm with
vocab.json. tokenizer_config.json and the older special_tokens_map.json name the special tokens.
"""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from regard import messages
from regard.data.tokenize.encode import Reads, Template
from regard.data.tokenize.tokenizer import FIRST_TEXT, LOOKUP_ONLY, SECOND_TEXT, SpecialTokens, Tokenizer
from regard.errors import DamagedFile, InputError, Note
from regard.extras import extra
from regard.store.files import first_line, json_bytes, read_bounded, read_json, require_file, write_file
from regard.store.huggingface.languages import language_codes
from regard.store.huggingface.special_tokens import (
    BERT_NAMES,
    CLASSES,
    ROLES,
    SENTENCEPIECE,
    bert_normalizer,
    id_or_none,
    obeying,
    read_settings,
    special_names,
    special_tokens,
    tokenizer_class,
    trimmed_offsets,
    with_template,
)

Tokenizers = tuple[Tokenizer, Tokenizer | None]
"""The source's tokenizer, and the target's where it has its own."""

_FAIRSEQ = "sentencepiece.bpe.model"
_FILES = ("tokenizer.json", "spiece.model", _FAIRSEQ, "source.spm", "merges.txt", "vocab.json", "vocab.txt",
          "tokenizer.model")  # fmt: skip

_UNIGRAM, _BPE = 1, 2  # model types
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # piece types

_SPACE = "▁"
_SPECIALS = ("<unk>", "</s>", "<pad>")  # in every vocab.json of Marian
_BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
_REPLACEMENT = "\ufffe"  # replaces LOOKUP_ONLY in texts, so that no text contains it

# How Qwen2 cuts a text before its merges apply: each digit alone, and a word with the sign before it.
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds any tokenizer file."""
    return any((folder / name).exists() for name in _FILES)


def read_huggingface_tokenizers(folder: Path, *, start: int | None = None, end: int | None = None) -> Tokenizers:
    """Read the tokenizers of a Hugging Face folder; `start` and `end` are the decoder's, where its config has them."""
    settings = read_settings(folder)
    files = {path.name for path in folder.iterdir()}
    if "tokenizer.json" in files:
        return _from_tokenizer_json(folder, settings, files, start, end)
    if "spiece.model" in files:
        found = _read_sentencepiece(folder / "spiece.model", _BPE)
        default = "ReformerTokenizer" if found.bpe else "T5Tokenizer"
        albert = not found.bpe and tokenizer_class(folder, settings, default) is CLASSES["AlbertTokenizer"]
        build = _albert_tokenizer if albert else _sentencepiece
        library = _build(folder, "spiece.model", lambda: build(found, settings))
        return _finish(library, folder, settings, default, start, end), None
    if _FAIRSEQ in files:
        of_class = tokenizer_class(folder, settings, "XLMRobertaTokenizer")
        codes = language_codes(of_class, settings)
        if of_class is CLASSES["M2M100Tokenizer"]:
            return _m2m100(folder, settings, codes, start, end), None
        french = of_class is CLASSES["CamembertTokenizer"]
        library = _build(folder, _FAIRSEQ, lambda: _fairseq_tokenizer(folder / _FAIRSEQ, french=french, codes=codes))
        return _finish(library, folder, settings, "XLMRobertaTokenizer", start, end), None
    if {"source.spm", "target.spm", "vocab.json"} <= files:
        return _marian(folder, settings, start, end)
    if {"vocab.json", "merges.txt"} <= files:
        library = _build(folder, "merges.txt", lambda: _byte_level_bpe(folder, settings))
        default = "GPT2Tokenizer" if library.token_to_id("<s>") is None else "RobertaTokenizer"
        of_class = tokenizer_class(folder, settings, default)
        if of_class is CLASSES["RobertaTokenizer"]:
            library.post_processor = trimmed_offsets(settings)
        if of_class is CLASSES["Qwen2Tokenizer"]:
            split = pre_tokenizers.Split(tokenizers.Regex(_QWEN2), "isolated")
            library.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level(settings, use_regex=False)])
            library.normalizer = normalizers.NFC()
        return _finish(library, folder, settings, default, start, end), None
    if "vocab.txt" in files:
        if not tokenizer_class(folder, settings, "BertTokenizer").names.items() <= BERT_NAMES.items():
            settings = {**settings, "tokenizer_class": "BertTokenizer"}  # as Chinese ALBERTs have
        library = _build(folder, "vocab.txt", lambda: _wordpiece(folder, settings))
        return _finish(library, folder, settings, "BertTokenizer", start, end), None
    raise InputError(f"no tokenizer in {folder}. It needs a tokenizer.json, a vocab.txt, a vocab.json with merges.txt "
                     "or source.spm, or a spiece.model.")  # fmt: skip


def _from_tokenizer_json(
    folder: Path, settings: Mapping[str, Any], files: set[str], start: int | None, end: int | None
) -> Tokenizers:
    """Read tokenizer.json, and target_tokenizer.json if there is one."""
    found: list[Tokenizer] = []
    for name in ("tokenizer.json", "target_tokenizer.json"):
        if name in files:
            text = _read_text(folder / name)
            try:
                library = Tokenizer.from_json(text)._tokenizer
            except DamagedFile as error:
                raise DamagedFile(f"{error} ({folder / name})") from None
            of_class = tokenizer_class(folder, settings)
            text = obeying(text, library, of_class, settings)
            found.append(Tokenizer.from_json(text, special_tokens(library, of_class, settings, start, end, saved=True)))
    return found[0], found[1] if len(found) > 1 else None


def _finish(
    library: tokenizers.Tokenizer,
    folder: Path,
    settings: Mapping[str, Any],
    default_class: str,
    start: int | None,
    end: int | None,
    first_unknown: int | None = None,
) -> Tokenizer:
    """Add the added tokens and determine the special tokens."""
    of_class = tokenizer_class(folder, settings, default_class)
    names = special_names(settings, of_class.names)
    added = {token.content for token in library.get_added_tokens_decoder().values()}
    for role, name in names.items():
        if name not in added and library.token_to_id(name) is not None:
            library.add_special_tokens([_added_token(name, _mapping(settings.get(role)))])
    for token, number in _added_tokens(folder, settings):
        if token.special:
            library.add_special_tokens([token])
        elif library.token_to_id(token.content) is None:
            library.add_tokens([token])
        own = library.token_to_id(token.content)
        if own != number:
            raise DamagedFile(f"{folder} gives {token.content!r} the id {number}, its vocabulary {own}. "
                              "Copy all its files again.")  # fmt: skip
    found = special_tokens(library, of_class, settings, start, end, saved=False)
    return Tokenizer(library, None, replace(found, first_unknown=first_unknown))


def _added_tokens(folder: Path, settings: Mapping[str, Any]) -> list[tuple[AddedToken, int]]:
    """The added tokens of a vocabulary, in the order of their ids."""
    found: dict[str, tuple[AddedToken, int]] = {}
    if (folder / "added_tokens.json").exists():
        for text, number in read_json(folder / "added_tokens.json").items():
            found[text] = AddedToken(text, normalized=True), number
    for number, value in _mapping(settings.get("added_tokens_decoder")).items():
        token = _mapping(value)
        if isinstance(token.get("content"), str) and str(number).isdecimal():
            found[token["content"]] = _added_token(token["content"], token, normalized=True), int(number)
    if not all(isinstance(number, int) for _, number in found.values()):
        raise DamagedFile(f"{folder}/added_tokens.json cannot be used: an id is missing. Copy it again.")
    return sorted(found.values(), key=lambda pair: pair[1])


def _added_token(name: str, given: Mapping[str, Any], **default: bool) -> AddedToken:
    """A token with the flags that a file gives it."""
    flags = {"normalized": False, **default}
    for flag in ("single_word", "lstrip", "rstrip", "normalized", "special"):
        if isinstance(given.get(flag), bool):
            flags[flag] = given[flag]
    return AddedToken(name, **flags)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _wordpiece(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """BERT's WordPiece: vocab.txt has one token per line, whose number is its id."""
    lines = _read_text(folder / "vocab.txt").replace("\r\n", "\n").removesuffix("\n").split("\n")
    vocabulary = {token: number for number, token in enumerate(lines)}
    names = special_names(settings, CLASSES["BertTokenizer"].names)
    library = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=names["unk_token"]))
    library.normalizer = bert_normalizer(settings)
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
    library.pre_tokenizer = byte_level(settings)
    library.decoder = decoders.ByteLevel()
    return library


def byte_level(settings: Mapping[str, Any], *, use_regex: bool = True) -> pre_tokenizers.PreTokenizer:
    """Bytes as characters; before it, GPT-2's rules cut a text into words, unless others do."""
    prefix_space = settings.get("add_prefix_space", False) is True
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=use_regex)


def _sentencepiece(found: _SentencePieceModel, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer of a spiece.model: the Reformer's if it is a BPE model, T5's if it is a unigram model."""
    sentinels = settings.get("extra_ids", 100)
    if not isinstance(sentinels, int) or not 0 <= sentinels <= 10_000:
        raise ValueError(f"extra_ids is {sentinels!r}")
    return _reformer_tokenizer(found) if found.bpe else _t5_tokenizer(found, sentinels)


def _marian(folder: Path, settings: Mapping[str, Any], start: int | None, end: int | None) -> Tokenizers:
    """One tokenizer per language; target_vocab.json has the target's ids where they are separate."""
    found: list[Tokenizer] = []
    for name, vocab in (("source.spm", "vocab.json"), ("target.spm", "target_vocab.json")):
        path = folder / vocab if (folder / vocab).exists() else folder / "vocab.json"
        ids = read_json(path)
        if not all(type(number) is int for number in ids.values()):
            raise DamagedFile(f"{path} cannot be used: an id is missing. Copy it again.")
        own_settings = {**settings, "added_tokens_decoder": {}}
        library = _build(folder, name, partial(_marian_tokenizer, folder / name, ids))
        found.append(_finish(library, folder, own_settings, "MarianTokenizer", start, end, len(ids)))
    return found[0], found[1]


def _m2m100(
    folder: Path, settings: Mapping[str, Any], codes: list[str], start: int | None, end: int | None
) -> Tokenizer:  # fmt: skip
    """M2M100's tokenizer: pieces with the ids of vocab.json, then the codes of languages."""
    require_file(folder / "vocab.json")
    ids = read_json(folder / "vocab.json")
    ids |= {code: len(ids) + number for number, code in enumerate(codes)}
    library = _build(folder, _FAIRSEQ, partial(_marian_tokenizer, folder / _FAIRSEQ, ids, {"<s>", *codes}))
    library.add_special_tokens([AddedToken(name, normalized=False) for name in ("<s>", *codes)])
    beyond = len(ids) if library.get_vocab_size() > len(ids) else None
    return _finish(library, folder, settings, "M2M100Tokenizer", start, end, beyond)


def _build(folder: Path, name: str, build: Callable[[], tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    """Build a tokenizer of the library, and turn all its errors into ours."""
    try:
        library = build()
        library.encode("A probe, 1.")
    except (KeyboardInterrupt, SystemExit, InputError, DamagedFile):
        raise
    except BaseException as error:  # a panic of the Rust library is not an Exception
        raise _unusable(folder / name, first_line(error)) from None
    if library.get_vocab_size() == 0:
        raise messages.BAD_TOKENIZER(why="it has no tokens")
    return library


def _read_text(path: Path) -> str:
    try:
        return read_bounded(path).decode()
    except UnicodeDecodeError:
        raise _unusable(path, "it is not UTF-8") from None


def write_huggingface_tokenizers(
    folder: Path, made: Tokenizers, *, max_length: int | None, reads: Reads, segments: int = 0
) -> None:
    """Write tokenizer.json with a template of special tokens, and tokenizer_config.json; or Marian's own files."""
    if made[1] is None and _is_marian(made[0]):
        raise InputError("some pieces of this tokenizer have no id in the vocabulary, which tokenizer.json cannot say. "
                         "It can only be saved as regard's own folder.")  # fmt: skip
    if made[1] is not None and _is_marian(made[0]) and _is_marian(made[1]):
        _write_marian(folder, (made[0], made[1]), max_length)
        return
    for tokenizer, name in zip(made, ("tokenizer.json", "target_tokenizer.json")):
        if tokenizer is not None:
            write_file(folder / name, with_template(tokenizer, Template.of(tokenizer, reads)).encode())
    config = _tokenizer_config(made[0], max_length)
    if segments > 1:  # else others would not give token_type_ids to the texts of a pair
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    write_file(folder / "tokenizer_config.json", json_bytes(config))


def _is_marian(tokenizer: Tokenizer) -> bool:
    """Whether some pieces of a tokenizer have no id in the model's vocabulary, as only Marian's files allow."""
    return tokenizer.special_tokens is not None and tokenizer.special_tokens.first_unknown is not None


def _write_marian(folder: Path, made: tuple[Tokenizer, Tokenizer], max_length: int | None) -> None:
    """Write source.spm, target.spm and vocab.json."""
    files = [_marian_files(tokenizer.to_json(), tokenizer.vocabulary) for tokenizer in made]
    for (pieces, _), name in zip(files, ("source.spm", "target.spm")):
        write_file(folder / name, pieces)
    source_ids, target_ids = (ids for _, ids in files)
    separate = source_ids != target_ids
    write_file(folder / "vocab.json", json_bytes(source_ids))
    if separate:
        write_file(folder / "target_vocab.json", json_bytes(target_ids))
    config = {**SENTENCEPIECE, "tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    config = config if max_length is None else {**config, "model_max_length": max_length}
    write_file(folder / "tokenizer_config.json", json_bytes(config))


def _tokenizer_config(tokenizer: Tokenizer, max_length: int | None) -> dict[str, Any]:
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    bos, eos = id_or_none(lambda: tokenizer.bos), id_or_none(lambda: tokenizer.eos)
    unk, pad, mask = (
        id_or_none(read) for read in (lambda: tokenizer.unk, lambda: tokenizer.pad, lambda: tokenizer.mask)
    )
    for role, number in zip(ROLES, (bos, eos, unk, eos, pad, bos, mask)):
        if number is not None:
            config[role] = library.id_to_token(number)
    return config if max_length is None else {**config, "model_max_length": max_length}


def id_tokenizer(
    folder: Path, size: int, generation_config: Mapping[str, Any], *, start: int | None, end: int | None
) -> Tokenizer:
    """A tokenizer for folders without one, whose texts are token ids: "5 7 9"."""
    warnings.warn(f"{folder} has no tokenizer, so texts are token ids, as in '5 7 9'.", Note, stacklevel=2)
    library = tokenizers.Tokenizer(models.WordLevel({str(number): number for number in range(size)}, unk_token="0"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # Default settings may name tokens that the model does not have.
    found = map(generation_config.get, ("bos_token_id", "pad_token_id"))
    bos, pad = (number if number in range(size) else None for number in found)
    pad = pad if pad is not None else 0 if end is None else end
    bare = ((FIRST_TEXT, 0),), ((FIRST_TEXT, 0), (SECOND_TEXT, 0))
    special = SpecialTokens(bos if start is None else start, end, pad, single=bare[0], pair=bare[1])
    return Tokenizer(library, special_tokens=special)


@dataclass(frozen=True)
class _SentencePieceModel:
    """The contents of a SentencePiece file."""

    pieces: list[tuple[str, float]]  # with their scores
    types: list[int]
    unknown: int
    byte_fallback: bool
    charsmap: bytes  # the precompiled normalization of characters
    removes_extra_spaces: bool
    nfkc: bool  # characters are normalized to NFKC first
    bpe: bool  # a BPE model, not a unigram model

    @property
    def falls_back_to_bytes(self) -> bool:
        """Whether text without a piece is encoded as bytes."""
        return self.byte_fallback and _BYTE in self.types


def _read_sentencepiece(path: Path, *types: int) -> _SentencePieceModel:
    """Read a SentencePiece model: unigram, or one of these model types."""
    with extra("published", f"a SentencePiece model ({path})"):
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(read_bounded(path))
        found = [(piece.piece, piece.score, piece.type) for piece in proto.pieces]
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise _unusable(path, "it is not a SentencePiece model") from error
    if proto.trainer_spec.model_type not in (_UNIGRAM, *types):
        raise InputError(f"{path} is not a unigram model, the only kind that is read. Save a tokenizer.json instead.")
    unknown = proto.trainer_spec.unk_id
    if not 0 <= unknown < len(found) or len({text for text, _, _ in found}) < len(found):
        raise _unusable(path, "it has no unknown token, or a piece twice")
    if not all(score == score and abs(score) < 1e30 for _, score, _ in found):
        raise _unusable(path, "a score is not finite")
    spec = proto.normalizer_spec
    return _SentencePieceModel(
        [(text, score) for text, score, _ in found],
        [piece_type for _, _, piece_type in found],
        unknown,
        proto.trainer_spec.byte_fallback,
        spec.precompiled_charsmap,
        spec.remove_extra_whitespaces,
        "nfkc" in spec.name,
        proto.trainer_spec.model_type == _BPE,
    )


def _reformer_tokenizer(found: _SentencePieceModel) -> tokenizers.Tokenizer:
    """The Reformer's BPE: the pair of neighbours that makes the piece with the best score is merged first."""
    ids = {text: number for number, (text, _) in enumerate(found.pieces)}
    by_score = sorted((score, text) for (text, score), piece_type in zip(found.pieces, found.types)
                      if piece_type == _NORMAL and len(text) > 1)  # fmt: skip
    splits = [(text[:cut], text[cut:]) for _, text in reversed(by_score) for cut in range(1, len(text))]
    merges = [pair for pair in splits if pair[0] in ids and pair[1] in ids]
    unknown = found.pieces[found.unknown][0]
    model = models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=found.falls_back_to_bytes)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = _normalizer(found, [])
    space_inside = any(_SPACE in text[1:] for text, _ in found.pieces)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, "always", split=not space_inside)
    tokenizer.decoder = _decoder(found, [])
    _add_special_pieces(tokenizer, found)
    tokenizer.add_special_tokens([AddedToken(unknown, normalized=False)])
    return tokenizer


def _unigram_tokenizer(
    found: _SentencePieceModel, pieces: list[tuple[str, float]], unknown: int
) -> tokenizers.Tokenizer:
    """A unigram model of these pieces, which cuts a text at its spaces first."""
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unknown, found.falls_back_to_bytes))
    if found.charsmap:
        tokenizer.normalizer = normalizers.Precompiled(found.charsmap)
    metaspace = pre_tokenizers.Metaspace(_SPACE, "always", split=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    tokenizer.decoder = _decoder(found, [])
    return tokenizer


def _fairseq_tokenizer(path: Path, *, french: bool, codes: list[str]) -> tokenizers.Tokenizer:
    """The tokenizer of XLM-RoBERTa, CamemBERT or mBART: pieces after the special tokens of fairseq, and <mask> last."""
    found = _read_sentencepiece(path)
    first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    kept = found.pieces[3:]
    if french:
        first = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)]
        kept = found.pieces[1:]
    tokenizer = _unigram_tokenizer(found, [*first, *kept, *((code, 0.0) for code in codes), ("<mask>", 0.0)], 3)
    unused = [name for name, _ in first if name.endswith("NOTUSED")]
    special = [AddedToken(name, normalized=False) for name in (*unused, "<s>", "</s>", "<pad>", "<unk>", *codes)]
    # As in RoBERTa, the mask stands for a word with the space before it.
    tokenizer.add_special_tokens([*special, AddedToken("<mask>", lstrip=True, normalized=False)])
    return tokenizer


def _t5_tokenizer(found: _SentencePieceModel, sentinels: int) -> tokenizers.Tokenizer:
    """T5's unigram model with sentinels; <extra_id_0> has the highest id."""
    extra = [f"<extra_id_{number}>" for number in range(sentinels)]
    pieces = [*found.pieces, *((name, 0.0) for name in reversed(extra))]
    tokenizer = _unigram_tokenizer(found, pieces, found.unknown)
    _add_special_pieces(tokenizer, found)
    special = [found.pieces[found.unknown][0], *extra]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    return tokenizer


def _albert_tokenizer(found: _SentencePieceModel, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """ALBERT's unigram model, of texts in lower case without accents unless settings say otherwise."""
    tokenizer = _unigram_tokenizer(found, found.pieces, found.unknown)
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if settings.get("keep_accents") is not True:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.get("do_lower_case", True):
        steps += [normalizers.Lowercase()]
    steps += [normalizers.Precompiled(found.charsmap)] if found.charsmap else []
    tokenizer.normalizer = normalizers.Sequence(steps)
    _add_special_pieces(tokenizer, found)
    tokenizer.add_special_tokens([AddedToken(found.pieces[found.unknown][0], normalized=False)])
    return tokenizer


def _marian_tokenizer(path: Path, ids: Mapping[str, int], more: Collection[str] = ()) -> tokenizers.Tokenizer:
    """Marian's tokenizer of one language: the pieces of its file with the ids of vocab.json.

    Pieces of the other language are never found in a text; pieces without an id come last, beyond the vocabulary.
    `more` are special tokens besides Marian's.
    """
    found = _read_sentencepiece(path)
    typed = zip(found.pieces, found.types)
    own = {text: score for (text, score), piece_type in typed if piece_type not in (_CONTROL, _UNKNOWN)}
    if sorted(ids.values()) != list(range(len(ids))) or "<unk>" not in ids:
        raise _unusable(path.parent / "vocab.json", "its ids are not 0, 1, 2, ... or <unk> is not among them")
    lowest = min(own.values(), default=0.0)
    scores = [
        (text if text in own or _is_added(text) or text in more else LOOKUP_ONLY + text, own.get(text, lowest))
        for text in sorted(ids, key=ids.__getitem__)
    ]
    beyond = [(text, score) for text, score in own.items() if text not in ids]
    tokenizer = tokenizers.Tokenizer(models.Unigram([*scores, *beyond], ids["<unk>"], found.falls_back_to_bytes))
    steps: list[normalizers.Normalizer] = [normalizers.Replace(LOOKUP_ONLY, _REPLACEMENT)]
    if found.nfkc:  # first, because the next step reads a letter and its marks as one and would lose marks
        steps += [normalizers.NFKC()]
    tokenizer.normalizer = _normalizer(found, steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, "always", split=False)
    tokenizer.decoder = _decoder(found, [decoders.Replace(LOOKUP_ONLY, "")])
    language_codes = [text for text in ids if _is_added(text) and text not in _SPECIALS]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in _SPECIALS if name in ids])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in language_codes])
    return tokenizer


def numbered_sentencepiece(
    path: Path, ids: Mapping[str, int], special: Collection[str], unknown: str
) -> tokenizers.Tokenizer:
    """The pieces of a unigram or BPE model with the ids of a vocabulary; pieces without one come last, beyond it."""
    found = _read_sentencepiece(path, _BPE)
    typed = zip(found.pieces, found.types)
    own = {text: score for (text, score), piece_type in typed if piece_type not in (_CONTROL, _UNKNOWN)}
    first: list[normalizers.Normalizer] = [normalizers.Replace(LOOKUP_ONLY, _REPLACEMENT)]
    if found.bpe:
        all_ids = {**ids, **{text: len(ids) + n for n, text in enumerate(text for text in own if text not in ids)}}
        by_score = sorted(((score, text) for text, score in own.items() if len(text) > 1), reverse=True)
        splits = [(text[:cut], text[cut:]) for _, text in by_score for cut in range(1, len(text))]
        merges = [pair for pair in splits if pair[0] in own and pair[1] in own]
        model: models.Model = models.BPE(
            all_ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=found.falls_back_to_bytes
        )
    else:
        lowest = min(own.values(), default=0.0)
        names = [
            text if text in own or text in special else LOOKUP_ONLY + text for text in sorted(ids, key=ids.__getitem__)
        ]
        pieces = [(text, own.get(text, lowest)) for text in names]
        beyond = [(text, score) for text, score in own.items() if text not in ids]
        model = models.Unigram([*pieces, *beyond], ids[unknown], found.falls_back_to_bytes)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = _normalizer(found, first)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, "always", split=False)
    tokenizer.decoder = _decoder(found, [decoders.Replace(LOOKUP_ONLY, "")])
    return tokenizer


def sentencepiece_pieces(path: Path) -> list[str]:
    """The pieces of a SentencePiece model, in the order of their ids."""
    return [text for text, _ in _read_sentencepiece(path, _BPE).pieces]


def _is_added(text: str) -> bool:
    """Whether a token is no piece of text: a special token, or the code of a language."""
    return text in _SPECIALS or (text.startswith(">>") and text.endswith("<<"))


def _marian_files(tokenizer_json: str, vocabulary: int) -> tuple[bytes, dict[str, int]]:
    """The inverse of `_marian_tokenizer`: the SentencePiece file and the ids of its tokenizer.json."""
    with extra("published", "Marian's tokenizer"):
        from sentencepiece import sentencepiece_model_pb2

    plain = json.loads(tokenizer_json)
    if plain["model"]["type"] != "Unigram" or "normalizers" not in (plain["normalizer"] or {}):
        raise DamagedFile("tokenizer.json is not one of Marian's, though special_tokens has first_unknown. "
                          "Convert the published folder again.")  # fmt: skip
    pieces, steps = plain["model"]["vocab"], plain["normalizer"]["normalizers"]
    ids = {text.removeprefix(LOOKUP_ONLY): number for number, (text, _) in enumerate(pieces[:vocabulary])}
    own = [(text, score) for text, score in pieces if not text.startswith(LOOKUP_ONLY) and not _is_added(text)]
    proto = sentencepiece_model_pb2.ModelProto()
    for text, piece_type in (("<unk>", _UNKNOWN), ("<s>", _CONTROL), ("</s>", _CONTROL)):
        proto.pieces.add(piece=text, score=0.0, type=piece_type)
    for text, score in own:
        is_byte = plain["model"]["byte_fallback"] and text in _BYTES
        proto.pieces.add(piece=text, score=score, type=_BYTE if is_byte else _NORMAL)
    proto.trainer_spec.model_type = _UNIGRAM
    proto.trainer_spec.vocab_size = len(proto.pieces)
    proto.trainer_spec.byte_fallback = plain["model"]["byte_fallback"]
    by_type = {step["type"]: step for step in steps}
    proto.normalizer_spec.name = "nmt_nfkc" if "NFKC" in by_type else "identity"
    if "Precompiled" in by_type:
        charsmap = base64.b64decode(by_type["Precompiled"]["precompiled_charsmap"])
        proto.normalizer_spec.precompiled_charsmap = charsmap
    proto.normalizer_spec.remove_extra_whitespaces = {"Regex": " {2,}"} in [step.get("pattern") for step in steps]
    return bytes(proto.SerializeToString(deterministic=True)), ids


def _normalizer(found: _SentencePieceModel, first: list[normalizers.Normalizer]) -> normalizers.Normalizer:
    """The model's own normalization after these steps."""
    steps = [*first, *([normalizers.Precompiled(found.charsmap)] if found.charsmap else [])]
    if found.removes_extra_spaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
    return normalizers.Sequence(steps)


def _decoder(found: _SentencePieceModel, first: list[decoders.Decoder]) -> decoders.Decoder:
    """The decoder from pieces to text."""
    fallback = [decoders.ByteFallback()] if found.falls_back_to_bytes else []
    steps = [*first, *fallback, decoders.Metaspace(_SPACE, "always")]
    return steps[0] if len(steps) == 1 else decoders.Sequence(steps)


def _add_special_pieces(tokenizer: tokenizers.Tokenizer, found: _SentencePieceModel) -> None:
    """Add control pieces as special tokens, and user-defined pieces as tokens that are never split."""
    for (text, _), piece_type in zip(found.pieces, found.types):
        if piece_type == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(text, normalized=False)])
        if piece_type == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(text, normalized=False)])


def _unusable(path: Path, why: str) -> DamagedFile:
    return DamagedFile(f"{path} cannot be used: {why}. Copy or download it again.")
