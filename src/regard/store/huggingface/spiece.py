"""SentencePiece models as tokenizers: spiece.model of T5 and the Reformer, Marian's source.spm and target.spm."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from regard.data.tokenize.tokenizer import LOOKUP_ONLY
from regard.errors import DamagedFile, InputError
from regard.store.files import read_bounded

_UNIGRAM, _BPE = 1, 2  # model types
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # piece types

_SPACE = "▁"
_SPECIALS = ("<unk>", "</s>", "<pad>")  # in every vocab.json of Marian
_BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
_REPLACEMENT = "\ufffe"  # replaces LOOKUP_ONLY in texts, so that no text contains it


@dataclass(frozen=True)
class SentencePieceModel:
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


def read_sentencepiece(path: Path, *types: int) -> SentencePieceModel:
    """Read a SentencePiece model: unigram, or one of these model types."""
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
    return SentencePieceModel(
        [(text, score) for text, score, _ in found],
        [piece_type for _, _, piece_type in found],
        unknown,
        proto.trainer_spec.byte_fallback,
        spec.precompiled_charsmap,
        spec.remove_extra_whitespaces,
        "nfkc" in spec.name,
        proto.trainer_spec.model_type == _BPE,
    )


def sentencepiece_tokenizer(path: Path, sentinels: int) -> tokenizers.Tokenizer:
    """The tokenizer of a spiece.model: the Reformer's if it is a BPE model, T5's if it is a unigram model."""
    found = read_sentencepiece(path, _BPE)
    return reformer_tokenizer(found) if found.bpe else t5_tokenizer(found, sentinels)


def reformer_tokenizer(found: SentencePieceModel) -> tokenizers.Tokenizer:
    """The Reformer's BPE: the pair of neighbours that makes the piece with the best score is merged first."""
    ids = {text: number for number, (text, _) in enumerate(found.pieces)}
    by_score = sorted((score, text) for (text, score), piece_type in zip(found.pieces, found.types)
                      if piece_type == _NORMAL and len(text) > 1)  # fmt: skip
    splits = [(text[:cut], text[cut:]) for _, text in reversed(by_score) for cut in range(1, len(text))]
    merges = [pair for pair in splits if pair[0] in ids and pair[1] in ids]
    unknown = found.pieces[found.unknown][0]
    model = models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=found.falls_back_to_bytes)
    tokenizer = tokenizers.Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(found.charsmap)] if found.charsmap else []
    if found.removes_extra_spaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    space_inside = any(_SPACE in text[1:] for text, _ in found.pieces)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, "always", split=not space_inside)
    tokenizer.decoder = _decoder(found, [])
    _add_special_pieces(tokenizer, found)
    tokenizer.add_special_tokens([AddedToken(unknown, normalized=False)])
    return tokenizer


def t5_tokenizer(found: SentencePieceModel, sentinels: int) -> tokenizers.Tokenizer:
    """T5's unigram model with sentinels; <extra_id_0> has the highest id."""
    extra = [f"<extra_id_{number}>" for number in range(sentinels)]
    pieces = [*found.pieces, *((name, 0.0) for name in reversed(extra))]
    model = models.Unigram(pieces, found.unknown, found.falls_back_to_bytes)
    tokenizer = tokenizers.Tokenizer(model)
    if found.charsmap:
        tokenizer.normalizer = normalizers.Precompiled(found.charsmap)
    metaspace = pre_tokenizers.Metaspace(_SPACE, "always", split=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    tokenizer.decoder = _decoder(found, [])
    _add_special_pieces(tokenizer, found)
    tokenizer.add_special_tokens(
        [AddedToken(name, normalized=False) for name in [found.pieces[found.unknown][0], *extra]]
    )
    return tokenizer


def marian_tokenizer(path: Path, ids: Mapping[str, int]) -> tokenizers.Tokenizer:
    """Marian's tokenizer of one language: the pieces of its file with the ids of vocab.json.

    Pieces of the other language are never found in a text; pieces without an id come last, beyond the vocabulary.
    """
    found = read_sentencepiece(path)
    typed = zip(found.pieces, found.types)
    own = {text: score for (text, score), piece_type in typed if piece_type not in (_CONTROL, _UNKNOWN)}
    if sorted(ids.values()) != list(range(len(ids))) or "<unk>" not in ids:
        raise _unusable(path.parent / "vocab.json", "its ids are not 0, 1, 2, ... or <unk> is not among them")
    lowest = min(own.values(), default=0.0)
    scores = [
        (text if text in own or _is_added(text) else LOOKUP_ONLY + text, own.get(text, lowest))
        for text in sorted(ids, key=ids.__getitem__)
    ]
    beyond = [(text, score) for text, score in own.items() if text not in ids]
    model = models.Unigram([*scores, *beyond], ids["<unk>"], found.falls_back_to_bytes)
    tokenizer = tokenizers.Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(LOOKUP_ONLY, _REPLACEMENT)]
    if found.nfkc:  # first, because the next step reads a letter and its marks as one and would lose marks
        steps += [normalizers.NFKC()]
    if found.charsmap:
        steps += [normalizers.Precompiled(found.charsmap)]
    if found.removes_extra_spaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, "always", split=False)
    tokenizer.decoder = _decoder(found, [decoders.Replace(LOOKUP_ONLY, "")])
    language_codes = [text for text in ids if _is_added(text) and text not in _SPECIALS]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in _SPECIALS if name in ids])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in language_codes])
    return tokenizer


def _is_added(text: str) -> bool:
    """Whether a token is no piece of text: a special token, or the code of a language."""
    return text in _SPECIALS or (text.startswith(">>") and text.endswith("<<"))


def marian_files(tokenizer_json: str, vocabulary: int) -> tuple[bytes, dict[str, int]]:
    """The inverse of `marian_tokenizer`: the SentencePiece file and the ids of its tokenizer.json."""
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


def _decoder(found: SentencePieceModel, first: list[decoders.Decoder]) -> decoders.Decoder:
    """The decoder from pieces to text."""
    fallback = [decoders.ByteFallback()] if found.falls_back_to_bytes else []
    steps = [*first, *fallback, decoders.Metaspace(_SPACE, "always")]
    return steps[0] if len(steps) == 1 else decoders.Sequence(steps)


def _add_special_pieces(tokenizer: tokenizers.Tokenizer, found: SentencePieceModel) -> None:
    """Add control pieces as special tokens, and user-defined pieces as tokens that are never split."""
    for (text, _), piece_type in zip(found.pieces, found.types):
        if piece_type == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(text, normalized=False)])
        if piece_type == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(text, normalized=False)])


def _unusable(path: Path, why: str) -> DamagedFile:
    return DamagedFile(f"{path} cannot be used: {why}. Copy or download it again.")
