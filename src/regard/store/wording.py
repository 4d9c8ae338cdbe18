"""Tokenizers as files that others read: the opposite of `words`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import processors

from regard.errors import InputError
from regard.store.files import json_bytes, write_file
from regard.store.pieces import marian_files
from regard.store.words import PIECES, Tokenizers
from regard.text.tokenizer import Tokenizer

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
