"""SentencePiece files as tokenizers: T5's and the Reformer's spiece.model, Marian's pair over one numbering."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from regard.data.tokenize.tokenizer import ELSEWHERE
from regard.errors import DamagedFile, InputError
from regard.store.files import read_bounded

_UNIGRAM, _PAIRS = 1, 2  # kinds of models


_NORMAL, _UNKNOWN, _CONTROL, _USER, _BYTE = 1, 2, 3, 4, 6  # kinds of pieces


_MARK = "▁"
_SPECIAL = ("<unk>", "</s>", "<pad>")  # what every numbering of Marian's has
_BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
_NOWHERE = "\ufffe"  # stands in a text for ELSEWHERE, so that no text holds that


@dataclass(frozen=True)
class Pieces:
    """What a SentencePiece file says."""

    scores: list[tuple[str, float]]
    kinds: list[int]
    unknown: int
    byte_fallback: bool
    characters: bytes  # how characters are written before they are cut
    trimmed: bool
    compatible: bool  # characters are first written as Unicode's NFKC has them
    paired: bool  # pieces come from joining pairs, not from their probabilities

    @property
    def bytewise(self) -> bool:
        """Whether what no piece writes is written byte by byte."""
        return self.byte_fallback and _BYTE in self.kinds


def read_pieces(path: Path, *kinds: int) -> Pieces:
    """A SentencePiece model, of the unigram kind unless other kinds are read too."""
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(read_bounded(path))
        found = [(piece.piece, piece.score, piece.type) for piece in proto.pieces]
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise _unusable(path, "it is not a SentencePiece model") from error
    if proto.trainer_spec.model_type not in (_UNIGRAM, *kinds):
        raise InputError(f"{path} is not a unigram model, the only kind that is read. Save a tokenizer.json instead.")
    unknown = proto.trainer_spec.unk_id
    if not 0 <= unknown < len(found) or len({text for text, _, _ in found}) < len(found):
        raise _unusable(path, "it has no unknown token, or a piece twice")
    if not all(score == score and abs(score) < 1e30 for _, score, _ in found):
        raise _unusable(path, "a score is not finite")
    spec = proto.normalizer_spec
    return Pieces(
        [(text, score) for text, score, _ in found],
        [kind for _, _, kind in found],
        unknown,
        proto.trainer_spec.byte_fallback,
        spec.precompiled_charsmap,
        spec.remove_extra_whitespaces,
        "nfkc" in spec.name,
        proto.trainer_spec.model_type == _PAIRS,
    )


def piece_tokenizer(path: Path, sentinels: int) -> tokenizers.Tokenizer:
    """The tokenizer of a spiece.model: the Reformer's if pairs were joined, else T5's."""
    found = read_pieces(path, _PAIRS)
    return paired_tokenizer(found) if found.paired else t5_tokenizer(path, sentinels)


def paired_tokenizer(found: Pieces) -> tokenizers.Tokenizer:
    """The Reformer's: of two neighbours that make a piece, those that make the best are joined first."""
    numbers = {text: number for number, (text, _) in enumerate(found.scores)}
    best = sorted(
        (score, text) for (text, score), kind in zip(found.scores, found.kinds) if kind == _NORMAL and len(text) > 1
    )  # fmt: skip
    halves = [(text[:cut], text[cut:]) for _, text in reversed(best) for cut in range(1, len(text))]
    pairs = [pair for pair in halves if pair[0] in numbers and pair[1] in numbers]
    unknown = found.scores[found.unknown][0]
    model = models.BPE(numbers, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=found.bytewise)
    tokenizer = tokenizers.Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(found.characters)] if found.characters else []
    if found.trimmed:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    within = any(_MARK in text[1:] for text, _ in found.scores)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_MARK, "always", split=not within)
    tokenizer.decoder = _decoder(found, [])
    _add(tokenizer, found)
    tokenizer.add_special_tokens([AddedToken(unknown, normalized=False)])
    return tokenizer


def t5_tokenizer(path: Path, sentinels: int) -> tokenizers.Tokenizer:
    """T5's: <extra_id_0> has the highest number of all."""
    found = read_pieces(path)
    extra = [f"<extra_id_{number}>" for number in range(sentinels)]
    numbered = [*found.scores, *((name, 0.0) for name in reversed(extra))]
    model = models.Unigram(numbered, found.unknown, found.bytewise)
    tokenizer = tokenizers.Tokenizer(model)
    if found.characters:
        tokenizer.normalizer = normalizers.Precompiled(found.characters)
    words = pre_tokenizers.Metaspace(_MARK, "always", split=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), words])
    tokenizer.decoder = _decoder(found, [])
    _add(tokenizer, found)
    tokenizer.add_special_tokens(
        [AddedToken(name, normalized=False) for name in [found.scores[found.unknown][0], *extra]]
    )
    return tokenizer


def marian_tokenizer(path: Path, numbers: Mapping[str, int]) -> tuple[tokenizers.Tokenizer, int]:
    """Marian's for one language: pieces as its file has them, numbered as vocab.json has them; and how many are known.

    Pieces that only the other language has are never found in a text; those that have no number come behind the rest.
    """
    found = read_pieces(path)
    own = {text: score for (text, score), kind in zip(found.scores, found.kinds) if kind not in (_CONTROL, _UNKNOWN)}
    if sorted(numbers.values()) != list(range(len(numbers))) or "<unk>" not in numbers:
        raise _unusable(path.parent / "vocab.json", "its numbers are not 0, 1, 2, ... or <unk> is not among them")
    lowest = min(own.values(), default=0.0)
    scores = [
        (text if text in own or _apart(text) else ELSEWHERE + text, own.get(text, lowest))
        for text in sorted(numbers, key=numbers.__getitem__)
    ]
    beyond = [(text, score) for text, score in own.items() if text not in numbers]
    model = models.Unigram([*scores, *beyond], numbers["<unk>"], found.bytewise)
    tokenizer = tokenizers.Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(ELSEWHERE, _NOWHERE)]
    if found.compatible:  # the step after it looks at a letter and its marks as one, and would lose marks
        steps += [normalizers.NFKC()]
    if found.characters:
        steps += [normalizers.Precompiled(found.characters)]
    if found.trimmed:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_MARK, "always", split=False)
    tokenizer.decoder = _decoder(found, [decoders.Replace(ELSEWHERE, "")])
    codes = [text for text in numbers if _apart(text) and text not in _SPECIAL]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in _SPECIAL if name in numbers])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in codes])
    return tokenizer, len(numbers)


def _apart(text: str) -> bool:
    """Whether a token has a number though no text is cut into it: special ones, and the codes of languages."""
    return text in _SPECIAL or (text.startswith(">>") and text.endswith("<<"))


def marian_files(written: str, known: int) -> tuple[bytes, dict[str, int]]:
    """The opposite of `marian_tokenizer`: the SentencePiece file of a tokenizer.json of its making, and the numbers."""
    from sentencepiece import sentencepiece_model_pb2

    plain = json.loads(written)
    if plain["model"]["type"] != "Unigram" or "normalizers" not in (plain["normalizer"] or {}):
        raise DamagedFile("a tokenizer.json that knows pieces without a number is none of Marian's (roles: known). "
                          "Convert the published folder again.")  # fmt: skip
    pieces, steps = plain["model"]["vocab"], plain["normalizer"]["normalizers"]
    numbers = {text.removeprefix(ELSEWHERE): number for number, (text, _) in enumerate(pieces[:known])}
    own = [(text, score) for text, score in pieces if not text.startswith(ELSEWHERE) and not _apart(text)]
    proto = sentencepiece_model_pb2.ModelProto()
    for text, kind in (("<unk>", _UNKNOWN), ("<s>", _CONTROL), ("</s>", _CONTROL)):
        proto.pieces.add(piece=text, score=0.0, type=kind)
    for text, score in own:
        bytewise = plain["model"]["byte_fallback"] and text in _BYTES
        proto.pieces.add(piece=text, score=score, type=_BYTE if bytewise else _NORMAL)
    proto.trainer_spec.model_type = _UNIGRAM
    proto.trainer_spec.vocab_size = len(proto.pieces)
    proto.trainer_spec.byte_fallback = plain["model"]["byte_fallback"]
    kinds = {step["type"]: step for step in steps}
    proto.normalizer_spec.name = "nmt_nfkc" if "NFKC" in kinds else "identity"
    if "Precompiled" in kinds:
        characters = base64.b64decode(kinds["Precompiled"]["precompiled_charsmap"])
        proto.normalizer_spec.precompiled_charsmap = characters
    proto.normalizer_spec.remove_extra_whitespaces = {"Regex": " {2,}"} in [step.get("pattern") for step in steps]
    return bytes(proto.SerializeToString(deterministic=True)), numbers


def _decoder(found: Pieces, first: list[decoders.Decoder]) -> decoders.Decoder:
    """How pieces become text again."""
    bytewise = [decoders.ByteFallback()] if found.bytewise else []
    steps = [*first, *bytewise, decoders.Metaspace(_MARK, "always")]
    return steps[0] if len(steps) == 1 else decoders.Sequence(steps)


def _add(tokenizer: tokenizers.Tokenizer, found: Pieces) -> None:
    """Tell the tokenizer which pieces are not text, and which of them nobody may cut."""
    for (text, _), kind in zip(found.scores, found.kinds):
        if kind == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(text, normalized=False)])
        if kind == _USER:
            tokenizer.add_tokens([AddedToken(text, normalized=False)])


def _unusable(path: Path, why: str) -> DamagedFile:
    return DamagedFile(f"{path} cannot be used: {why}. Copy or download it again.")
