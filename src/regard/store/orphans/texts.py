"""Their vocabularies and ways to cut a text, as our tokenizer: words, subword-nmt's BPE, SentencePiece, characters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from regard.data.tokenize.tokenizer import FIRST_TEXT, SECOND_TEXT, Pieces, SpecialTokens, Tokenizer
from regard.errors import DamagedFile, InputError
from regard.store.files import read_bounded
from regard.store.huggingface.tokenizers import numbered_sentencepiece

_CODES = ("bpecodes", "codes", "code", "bpe.codes", "codes.bpe", "bpe.code")
_END, _CONTINUED = "</w>", "@@"


@dataclass(frozen=True)
class Words:
    """A vocabulary by id, the ids of its special tokens, and what stands around a source text."""

    tokens: tuple[str, ...]
    bos: int
    eos: int
    pad: int
    unk: int
    mask: int | None = None
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def special(self) -> SpecialTokens:
        """The special tokens of our tokenizer."""

        def around(*texts: int) -> Pieces:
            inner = [token for text in texts for token in (text, *self.after)]
            return tuple((token, 0) for token in (*self.before, *inner))

        ids = SpecialTokens(self.bos, self.eos, self.pad, self.unk, self.mask)
        return SpecialTokens(ids.bos, ids.eos, ids.pad, ids.unk, ids.mask, around(FIRST_TEXT),
                             around(FIRST_TEXT, SECOND_TEXT), len(self.tokens))  # fmt: skip

    @property
    def special_ids(self) -> list[int]:
        """All special tokens but the unknown one, which a translation shows."""
        found = {self.bos, self.eos, self.pad, *self.before, *self.after}
        return sorted(found | ({self.mask} if self.mask is not None else set()))


def read_lines(path: Path) -> list[str]:
    """The lines of a vocabulary; only a line feed ends one, since other separators are tokens."""
    try:
        text = read_bounded(path).decode()
    except UnicodeDecodeError:
        raise DamagedFile(f"{path} cannot be used: it is not UTF-8. Copy it again.") from None
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def tokenizer_for(
    words: Words, folder: Path, side: str, *, lowercase: bool = False, named: Path | None = None, cut: bool = True
) -> Tokenizer:
    """The tokenizer of a side: by SentencePiece or subword-nmt where the folder holds their file, else by words.

    The file may be for one side (`spm.de.model`, `codes.de`) or for both; `named` is the file that a config names; it
    may also say that there is none (`cut`).
    """
    found = _segmentation(folder, side) if cut and named is None else None
    if named is not None:
        found = folder / named.name
        if not found.is_file():
            raise InputError(
                f"{folder} lacks {named.name}, which cuts its texts. Copy it from the folder of the training."
            )
    if found is None:
        return by_words(words, lowercase=lowercase)
    if found.suffix in (".model", ".spm"):
        return by_sentencepiece(words, found, lowercase=lowercase)
    return by_subword_nmt(words, found, lowercase=lowercase)


def _segmentation(folder: Path, side: str) -> Path | None:
    """The only file of a folder that says how to cut the texts of a side."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    codes = [path for path in files if path.name in _CODES or path.name.startswith(tuple(f"{c}." for c in _CODES))]
    pieces = [path for path in files if path.suffix in (".model", ".spm")]
    both = [*codes, *pieces]
    own = [path for path in both if side and re.search(rf"(^|[._-]){re.escape(side)}([._-]|$)", path.name)]
    chosen = own or both
    if len(chosen) > 1:
        names = ", ".join(path.name for path in chosen)
        raise InputError(
            f"{folder} holds several files that cut a text: {names}. Keep those of one kind, one per side."
        )
    return chosen[0] if chosen else None


def by_words(words: Words, *, lowercase: bool = False) -> Tokenizer:
    """Words between spaces: the text must be tokenized as that of the training was."""
    library = tokenizers.Tokenizer(models.WordLevel(_numbered(words), words.tokens[words.unk]))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _finish(library, words, lowercase)


def by_characters(words: Words, space: str, *, lowercase: bool = False) -> Tokenizer:
    """Single characters; `space` is the token of a space."""
    vocabulary = _numbered(words)
    library = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=words.tokens[words.unk]))
    library.normalizer = normalizers.Replace(" ", space)
    library.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace(space, " ")])
    return _finish(library, words, lowercase)


def by_subword_nmt(words: Words, codes: Path, *, lowercase: bool = False) -> Tokenizer:
    """Sennrich's BPE: words between spaces, merged by the codes; "@@" ends a piece that does not end a word."""
    lines = read_lines(codes)
    if not lines or not lines[0].startswith("#version: 0.2"):
        raise InputError(
            f"{codes} is not of version 0.2 of subword-nmt, the only one that is read. Learn its codes again."
        )
    merges = [(first, second) for first, _, second in (line.partition(" ") for line in lines[1:] if line.strip())]
    if not all(first and second and " " not in second for first, second in merges):
        raise DamagedFile(f"{codes} cannot be used: a line does not hold two pieces. Copy it again.")
    merges = list(dict.fromkeys(merges))
    known: dict[str, int] = {}
    for number, token in enumerate(words.tokens):
        own = token.removesuffix(_CONTINUED) if token.endswith(_CONTINUED) else token + _END
        known[token if number in (*words.special_ids, words.unk) else own] = number
    # Pieces on the way to longer ones have no id of theirs; whatever a text leaves of them is unknown.
    pieces = [piece for pair in merges for piece in (*pair, "".join(pair))]
    single = [character for piece in pieces for character in piece.removesuffix(_END)]
    for piece in (*single, *(character + _END for character in single), *pieces):
        known.setdefault(piece, len(known))
    model = models.BPE(known, merges, unk_token=words.tokens[words.unk], end_of_word_suffix=_END)
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    unknown = words.tokens[words.unk]
    library.decoder = decoders.Sequence([decoders.Replace(unknown, unknown + _END), decoders.BPEDecoder(_END)])
    return _finish(library, words, lowercase)


def by_sentencepiece(words: Words, model: Path, *, lowercase: bool = False) -> Tokenizer:
    """The pieces of a SentencePiece model, with the ids of the vocabulary."""
    ids = _numbered(words)
    special = {words.tokens[number] for number in (*words.special_ids, words.unk)}
    library = numbered_sentencepiece(model, ids, special, words.tokens[words.unk])
    return _finish(library, words, lowercase)


def _numbered(words: Words) -> dict[str, int]:
    ids = {token: number for number, token in enumerate(words.tokens)}
    if len(ids) < len(words.tokens):
        double = next(token for number, token in enumerate(words.tokens) if ids[token] != number)
        raise DamagedFile(f"the vocabulary holds {double!r} twice. Copy it again.")
    return ids


def _finish(library: tokenizers.Tokenizer, words: Words, lowercase: bool) -> Tokenizer:
    if lowercase:
        steps = [normalizers.Lowercase(), *([library.normalizer] if library.normalizer is not None else [])]
        library.normalizer = normalizers.Sequence(steps)
    library.add_special_tokens([AddedToken(words.tokens[number], normalized=False) for number in words.special_ids])
    return Tokenizer(library, special_tokens=words.special)


def vocabulary(tokens: Sequence[str], bos: str, eos: str, pad: str, unk: str, *, before: Sequence[str] = (),
               after: Sequence[str] = (), mask: str | None = None, where: Path) -> Words:  # fmt: skip
    """A vocabulary whose special tokens are given by name."""
    ids = {token: number for number, token in enumerate(tokens)}
    names = [bos, eos, pad, unk, *before, *after, *([mask] if mask else [])]
    missing = sorted({name for name in names if name not in ids})
    if missing:
        raise DamagedFile(f"the vocabulary lacks {', '.join(missing)} ({where}). Copy it again.")
    around = [tuple(ids[name] for name in several) for several in (before, after)]
    return Words(tuple(tokens), ids[bos], ids[eos], ids[pad], ids[unk], ids[mask] if mask else None, *around)
