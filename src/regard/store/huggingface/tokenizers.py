"""Published tokenizers: every layout of files becomes the one Tokenizer.

tokenizer.json; BERT's vocab.txt; GPT-2's and RoBERTa's vocab.json with merges.txt; T5's and the Reformer's
spiece.model; Marian's source.spm and target.spm with vocab.json. What plays which part is said by
tokenizer_config.json or its older like.
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
from regard.data.tokenize.tokenizer import Roles, Tokenizer
from regard.errors import DamagedFile, InputError, Note
from regard.store.files import json_bytes, read_bounded, read_json, require_file, write_file
from regard.store.huggingface.spiece import marian_files, marian_tokenizer, piece_tokenizer

Names = dict[str, str]
"""Spellings by the part they play: "bos_token" -> "<s>"."""

_PARTS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BERT: Names = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
                "mask_token": "[MASK]"}  # fmt: skip
_ROBERTA: Names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>",
                   "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>"}  # fmt: skip
_GPT2: Names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
PIECES: Names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

Tokenizers = tuple[Tokenizer, Tokenizer | None]

_FILES = ("tokenizer.json", "spiece.model", "source.spm", "merges.txt", "vocab.json", "vocab.txt", "tokenizer.model")


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds any file of a tokenizer."""
    return any((folder / name).exists() for name in _FILES)


def read_published(folder: Path, *, start: int | None = None, end: int | None = None) -> Tokenizers:
    """The tokenizers of a published folder; `start` and `end` are what its decoder begins and ends with, if it says."""
    settings = _settings(folder)
    there = {path.name for path in folder.iterdir()}
    if "tokenizer.json" in there:
        return _saved(folder, settings, there, start, end)
    if "spiece.model" in there:
        made = _built(folder, "spiece.model", lambda: _t5(folder, settings))
        return _finished(made, folder, settings, PIECES, start, end), None
    if {"source.spm", "target.spm", "vocab.json"} <= there:
        return _marian(folder, settings, start, end)
    if {"vocab.json", "merges.txt"} <= there:
        made = _built(folder, "merges.txt", lambda: _byte_pairs(folder, settings))
        names = _ROBERTA if made.token_to_id("<s>") is not None else _GPT2
        return _finished(made, folder, settings, names, start, end), None
    if "vocab.txt" in there:
        made = _built(folder, "vocab.txt", lambda: _word_pieces(folder, settings))
        return _finished(made, folder, settings, _BERT, start, end), None
    raise InputError(f"no tokenizer in {folder}. It needs a tokenizer.json, a vocab.txt, a vocab.json with merges.txt "
                     "or source.spm, or a spiece.model.")  # fmt: skip


def _saved(
    folder: Path, settings: Mapping[str, Any], there: set[str], start: int | None, end: int | None
) -> Tokenizers:  # fmt: skip
    """A tokenizer.json, and target_tokenizer.json where a second one stands beside it."""
    made: list[Tokenizer] = []
    for name in ("tokenizer.json", "target_tokenizer.json"):
        if name in there:
            text = _text(folder / name)
            try:
                library = Tokenizer.from_json(text)._tokenizer
            except DamagedFile as error:
                raise DamagedFile(f"{error} ({folder / name})") from None
            names = _names(settings, {})
            made.append(Tokenizer.from_json(text, _roles(library, names, settings, start, end)))
    return made[0], made[1] if len(made) > 1 else None


def _finished(
    made: tokenizers.Tokenizer,
    folder: Path,
    settings: Mapping[str, Any],
    standard: Names,
    start: int | None,
    end: int | None,
    known: int | None = None,
) -> Tokenizer:
    """Add what was added to the vocabulary since, and say which token plays which part."""
    names = _names(settings, standard)
    made.add_special_tokens([AddedToken(name, normalized=False) for name in names.values() if _has(made, name)])
    for name, number in _added(folder, settings):
        given = made.token_to_id(name.content)
        if given is None:
            made.add_special_tokens([name]) if name.special else made.add_tokens([name])
            given = made.token_to_id(name.content)
        elif name.special:
            made.add_special_tokens([name])
        if given != number:
            raise DamagedFile(f"{folder} gives {name.content!r} the number {number}, its vocabulary {given}. "
                              "Copy all its files again.")  # fmt: skip
    roles = _roles(made, names, settings, start, end)
    return Tokenizer(made, None, roles if known is None else replace(roles, known=known))


def _has(made: tokenizers.Tokenizer, name: str) -> bool:
    return made.token_to_id(name) is not None


def _roles(
    made: tokenizers.Tokenizer, names: Names, settings: Mapping[str, Any], start: int | None, end: int | None
) -> Roles:
    """The parts that tokens play, by the names that others give them."""
    at = {part: made.token_to_id(name) for part, name in names.items()}

    def first(*parts: str) -> int | None:
        return next((at[part] for part in parts if at.get(part) is not None), None)

    first_token = first("cls_token", "bos_token") if start is None else start
    last_token = first("eos_token", "sep_token") if end is None else end
    unknown = first("unk_token")
    frame = made.encode("", add_special_tokens=True).ids
    opening = (frame[0],) if frame and frame[0] == at.get("bos_token") else ()
    begins = at.get("bos_token")
    if settings.get("add_bos_token") is True and begins is not None:
        opening = (begins,)
    return Roles(
        first_token,
        last_token,
        last_token if first("pad_token") is None else first("pad_token"),
        # In GPT-2's vocabulary nothing is unknown, and the token named so is the one that ends a text.
        None if unknown == last_token else unknown,
        first("mask_token"),
        opening,
        2 if _pairs_apart(made, names) else 1,
    )


def _pairs_apart(made: tokenizers.Tokenizer, names: Names) -> bool:
    """Whether two ends stand between the texts of a pair, as RoBERTa has it."""
    if made.post_processor is None:
        return {name: names.get(name) for name in _ROBERTA} == _ROBERTA
    ids = made.encode("", "", add_special_tokens=True).ids
    return len(ids) == 4 and ids[1] == ids[2] == ids[3] != ids[0]


def _settings(folder: Path) -> dict[str, Any]:
    """What the small files say of the tokenizer, the newer before the older."""
    found: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).exists():
            found |= {key: value for key, value in read_json(folder / name).items() if value is not None}
    return found


def _names(settings: Mapping[str, Any], standard: Names) -> Names:
    """Each part's spelling; a token is text or an object with "content"."""
    names = dict(standard)
    for part in _PARTS:
        said = settings.get(part)
        said = said.get("content") if isinstance(said, dict) else said
        if isinstance(said, str):
            names[part] = said
    return names


def _added(folder: Path, settings: Mapping[str, Any]) -> list[tuple[AddedToken, int]]:
    """Tokens that were added to a vocabulary, in the order of their numbers."""
    found: dict[str, tuple[AddedToken, int]] = {}
    if (folder / "added_tokens.json").exists():
        for text, number in read_json(folder / "added_tokens.json").items():
            found[text] = AddedToken(text, normalized=True), number
    for number, said in _mapping(settings.get("added_tokens_decoder")).items():
        token = _mapping(said)
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        if isinstance(token.get("content"), str) and str(number).isdecimal():
            given = {flag: token[flag] for flag in flags if isinstance(token.get(flag), bool)}
            found[token["content"]] = AddedToken(token["content"], **given), int(number)
    if not all(isinstance(number, int) for _, number in found.values()):
        raise DamagedFile(f"{folder}/added_tokens.json cannot be used: a number is missing. Copy it again.")
    return sorted(found.values(), key=lambda pair: pair[1])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _word_pieces(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """BERT's: a word a line, its number is the line's."""
    lines = _text(folder / "vocab.txt").replace("\r\n", "\n").removesuffix("\n").split("\n")
    vocabulary = {token: number for number, token in enumerate(lines)}
    names = _names(settings, _BERT)
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=names["unk_token"]))
    made.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return made


def _byte_pairs(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """GPT-2's and RoBERTa's: pieces of bytes, and which pairs of them were joined, in order."""
    lines = _text(folder / "merges.txt").splitlines()
    lines = lines[1:] if lines and lines[0].startswith("#version") else lines
    halves = [line.partition(" ") for line in lines if line]
    if not all(space and last and " " not in last for _, space, last in halves):
        raise ValueError("a line does not hold two pieces")
    pairs = [(first, last) for first, _, last in halves]
    vocabulary = read_json(folder / "vocab.json")
    made = tokenizers.Tokenizer(models.BPE(vocabulary, pairs, continuing_subword_prefix="", end_of_word_suffix=""))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space", False))
    made.decoder = decoders.ByteLevel()
    return made


def _t5(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    extra = settings.get("extra_ids", 100)
    if not isinstance(extra, int) or not 0 <= extra <= 10_000:
        raise ValueError(f"extra_ids is {extra!r}")
    return piece_tokenizer(folder / "spiece.model", extra)


def _marian(folder: Path, settings: Mapping[str, Any], start: int | None, end: int | None) -> Tokenizers:
    """A tokenizer a language; target_vocab.json numbers the second apart, where it is there."""
    apart = folder / "target_vocab.json"
    made: list[Tokenizer] = []
    for name, numbers in (("source.spm", folder / "vocab.json"), ("target.spm", apart)):
        numbers = numbers if numbers.exists() else folder / "vocab.json"
        vocabulary = read_json(numbers)
        if not all(type(number) is int for number in vocabulary.values()):
            raise DamagedFile(f"{numbers} cannot be used: a number is missing. Copy it again.")
        known = 0

        def build(name: str = name, vocabulary: Mapping[str, int] = vocabulary) -> tokenizers.Tokenizer:
            nonlocal known
            library, known = marian_tokenizer(folder / name, vocabulary)
            return library

        library = _built(folder, name, build)
        made.append(_finished(library, folder, {**settings, "added_tokens_decoder": {}}, PIECES, start, end, known))
    return made[0], made[1]


def _built(folder: Path, name: str, build: Callable[[], tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    """A tokenizer of the library's, which says what is wrong with a file in ways of its own."""
    try:
        made = build()
        made.encode("A probe, 1.")
    except (KeyboardInterrupt, SystemExit, InputError, DamagedFile):
        raise
    except BaseException as error:  # a panic of the Rust library is not an Exception
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DamagedFile(f"{folder / name} cannot be used: {why}. Copy or download it again.") from None
    if made.get_vocab_size() == 0:
        raise messages.BAD_TOKENIZER(why="it has no tokens")
    return made


def _text(path: Path) -> str:
    require_file(path)
    try:
        return read_bounded(path).decode()
    except UnicodeDecodeError:
        raise DamagedFile(f"{path} cannot be used: it is not UTF-8. Copy or download it again.") from None


Frame = Literal["both", "end", "opening"]
"""What stands around a text: begin and end, the end alone, or what opens a prompt."""


def write_published(folder: Path, made: Tokenizers, *, longest: int | None, frame: Frame, segments: int = 0) -> None:
    """Tokenizer files that others read: tokenizer.json with what frames a text, and the parts that tokens play."""
    if made[1] is not None and all(one.roles is not None and one.roles.known is not None for one in made if one):
        _write_marian(folder, (made[0], made[1]), longest)
        return
    for tokenizer, name in zip(made, ("tokenizer.json", "target_tokenizer.json")):
        if tokenizer is not None:
            write_file(folder / name, _framed(tokenizer, frame).encode())
    config = _described(made[0], longest)
    if segments > 1:  # else others would not say which text of a pair a token belongs to
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    write_file(folder / "tokenizer_config.json", json_bytes(config))


def _write_marian(folder: Path, made: tuple[Tokenizer, Tokenizer], longest: int | None) -> None:
    """Marian's own files, the only form in which a piece of text can have no number of the model's."""
    files = [marian_files(tokenizer.to_json(), tokenizer.vocabulary) for tokenizer in made]
    for (pieces, _), name in zip(files, ("source.spm", "target.spm")):
        write_file(folder / name, pieces)
    numbers = [numbers for _, numbers in files]
    apart = numbers[0] != numbers[1]
    write_file(folder / "vocab.json", json_bytes(numbers[0]))
    if apart:
        write_file(folder / "target_vocab.json", json_bytes(numbers[1]))
    config = {**PIECES, "tokenizer_class": "MarianTokenizer", "separate_vocabs": apart}
    config = config if longest is None else {**config, "model_max_length": longest}
    write_file(folder / "tokenizer_config.json", json_bytes(config))


def _described(tokenizer: Tokenizer, longest: int | None) -> dict[str, Any]:
    """tokenizer_config.json."""
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    parts = {"bos_token": "begin", "eos_token": "end", "unk_token": "unknown", "sep_token": "end", "pad_token": "pad",
             "cls_token": "begin", "mask_token": "mask"}  # fmt: skip
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for theirs, ours in parts.items():
        try:
            config[theirs] = library.id_to_token(getattr(tokenizer, ours))
        except InputError:
            continue
    return config if longest is None else {**config, "model_max_length": longest}


def _framed(tokenizer: Tokenizer, frame: Frame) -> str:
    """tokenizer.json with what stands around a text."""
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    written = json.loads(tokenizer.to_json())

    def named(*numbers: int) -> list[tuple[str, int]]:
        return [(str(library.id_to_token(number)), number) for number in numbers]

    before = {"both": named(tokenizer.begin), "end": [], "opening": named(*tokenizer.opening)}[frame]
    after = [] if frame == "opening" else named(tokenizer.end)
    one = " ".join([*(name for name, _ in before), "$A:0", *(f"{name}:0" for name, _ in after)])
    more = (tokenizer.roles.between if tokenizer.roles else 1) - 1
    two = " ".join([one, *(more * [f"{name}:0" for name, _ in after]), "$B:1", *(f"{name}:1" for name, _ in after)])
    if before or after:
        library.post_processor = processors.TemplateProcessing(one, two, [*before, *after])
        written["post_processor"] = json.loads(library.to_str())["post_processor"]
    else:
        written["post_processor"] = None
    return json.dumps(written, ensure_ascii=False)


def numbered(folder: Path, size: int, said: Mapping[str, Any], *, start: int | None, end: int | None) -> Tokenizer:
    """A tokenizer whose words are numbers: "5 7 9" is the tokens 5, 7 and 9."""
    warnings.warn(f"{folder} has no tokenizer, so texts are the numbers of tokens, as in '5 7 9'.", Note, stacklevel=2)
    words = tokenizers.Tokenizer(WordLevel({str(number): number for number in range(size)}, unk_token="0"))
    words.pre_tokenizer = WhitespaceSplit()
    # Settings that nobody made may name tokens that the model does not have.
    first, pad = (
        number if number in range(size) else None for number in map(said.get, ("bos_token_id", "pad_token_id"))
    )
    begin = first if start is None else start
    return Tokenizer(words, roles=Roles(begin, end, end if pad is None else pad, opening=()))
