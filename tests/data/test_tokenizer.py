"""Tokenizers: lossless, text is never a special token, training is a function of the text; words."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from itertools import chain, pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from regard.data.read import texts as texts_module
from regard.data.read.corpus import Corpus
from regard.data.read.texts import cut_text
from regard.data.tokenize.tokenizer import (
    BERT_SPECIALS,
    BOS,
    EOS,
    MASK,
    PAD,
    SPECIALS,
    UNK,
    SpecialTokens,
    Tokenizer,
    word_ids,
    word_offsets,
)
from regard.data.tokenize.train import (
    BPE,
    Byte,
    Character,
    Saved,
    TokenizerKind,
    Unigram,
    Word,
    WordPiece,
    train_tokenizers,
)
from regard.errors import DamagedFile, InputError
from regard.schema import from_dict, to_dict

PROVERBS = [
    "Der frühe Vogel fängt den Wurm, und das seit 1848.",
    "The early bird catches the worm, they said in 1848.",
    "Кто рано встаёт, тому Бог подаёт: 12 раз из 34.",
    "早起きは三文の徳、と言われています。",
    "सुबह का भूला शाम को घर आ जाए।",
    "for line in lines:\n    print(line, end='')\n\n\tpass  # </s> <pad> <mask>\n",
] * 4
TEXTS = [text + f" ({number} mal {number * 37})" for number, text in enumerate(PROVERBS)]
KINDS: dict[str, TokenizerKind] = {
    "character": Character(),
    "byte": Byte(),
    "word": Word(size=300),
    "bpe": BPE(size=400),
    "bpe_digits": BPE(size=400, split_digits=True),
    "unigram": Unigram(size=285),
    "unigram_digits": Unigram(size=285, split_digits=True),
    "word_piece": WordPiece(size=320),
}
LOSSLESS = ["byte", "bpe", "bpe_digits", "unigram", "unigram_digits"]
ODD = [*"aA 01\n\r\t\0\x85\xa0\u2028\ufeff\u0301\u200d\U0010ffffĠ▁", "</s>", "<pad>", "👨‍👩‍👧"]
ODD_TEXT = st.lists(st.one_of(st.text(), st.sampled_from(ODD))).map("".join)
TRAINED = {name: kind.train(TEXTS) for name, kind in KINDS.items()}


@pytest.fixture(params=list(KINDS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Each kind, trained."""
    return TRAINED[request.param]


@pytest.mark.parametrize("name", LOSSLESS)
@given(text=ODD_TEXT)
def test_byte_level_tokenizers_are_lossless(name: str, text: str) -> None:
    tokenizer = TRAINED[name]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.unk not in ids


@pytest.mark.parametrize("name", ["character", "word"])
@pytest.mark.parametrize("text", TEXTS[:6])
def test_tokenizers_are_lossless_on_their_training_text(name: str, text: str) -> None:
    assert TRAINED[name].decode(TRAINED[name].encode(text)) == text


def test_wordpiece_is_lossless_except_for_spacing() -> None:
    tokenizer = TRAINED["word_piece"]
    assert tokenizer.decode(tokenizer.encode("They said:\nthe  early bird.")) == "They said : the early bird ."


@pytest.mark.parametrize("name", list(KINDS))
@given(text=ODD_TEXT)
def test_encoding_gives_offsets_that_cover_the_text(name: str, text: str) -> None:
    tokenizer = TRAINED[name]
    read = tokenizer.encode_with_offsets(text)
    assert read.ids == tokenizer.encode(text)
    starts, ends = ([span[side] for span in read.offsets] for side in (0, 1))
    assert starts == sorted(starts)
    assert ends == sorted(ends)
    covered = {index for start, end in read.offsets for index in range(start, end)}
    assert {index for index, character in enumerate(text) if not character.isspace()} <= covered


@pytest.mark.parametrize("name", list(KINDS))
@given(text=ODD_TEXT, cut=st.integers(0, 20))
def test_decoding_gives_offsets_that_cover_the_text(name: str, text: str, cut: int) -> None:
    tokenizer = TRAINED[name]
    ids = [*tokenizer.encode(text)[cut:], tokenizer.mask, *tokenizer.encode(text)]
    decoded, offsets = tokenizer.decode_with_offsets(ids)
    assert decoded == tokenizer.decode(ids)
    visible = [span for span, number in zip(offsets, ids) if number not in (tokenizer.mask, tokenizer.unk)]
    assert all(one == other or one[1] == other[0] for one, other in pairwise(visible))
    assert not visible or (visible[0][0], visible[-1][1]) == (0, len(decoded))


def test_the_parts_of_a_character_share_its_offsets() -> None:
    byte = TRAINED["byte"]
    assert byte.encode_with_offsets("aé").offsets == [(0, 1), (1, 2), (1, 2)]
    assert byte.decode_with_offsets(byte.encode("aé"))[1] == [(0, 1), (1, 2), (1, 2)]
    assert byte.decode_with_offsets(byte.encode("aé")[:2]) == ("a\ufffd", [(0, 1), (1, 2)])


def test_a_special_token_in_a_text_is_encoded_as_text_with_offsets() -> None:
    pieces = [("<unk>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), *((letter, -3.0) for letter in "</s>abpd")]
    tokenizer = Tokenizer.from_json(saved_elsewhere(models.Unigram(pieces, 0), specials=["<unk>", "<pad>", "</s>"]))
    text = "ab</s> a"
    assert [text[start:end] for start, end in tokenizer.encode_with_offsets(text).offsets] == list("ab</s>a")


@pytest.mark.parametrize(
    ("name", "text", "units", "tokens"),
    [
        ("word", "The Zürich bird", [0, 1, 2], ["Zürich", " Zürich"]),
        ("word_piece", "The Zürich bird", [0, 1, 2], ["Zürich", "Zürich"]),
        ("character", "The 🐦", [0, 1, 2, 3, 4], ["Zürich", "Zürich"]),
    ],
)
def test_an_unknown_token_can_be_replaced_by_text(name: str, text: str, units: list[int], tokens: list[str]) -> None:
    tokenizer = TRAINED[name]
    read = tokenizer.encode_with_offsets(text)
    assert [read.units.index(unit) for unit in read.units] == units
    assert [tokenizer.token_for_text("Zürich", new_word=new_word) for new_word in (False, True)] == tokens
    ids = tokenizer.encode(text)
    index = tokenizer.unknown_positions(ids)[0]
    start, end = read.offsets[index]
    token = tokenizer.token_for_text(text[start:end], new_word=True)
    decoded, offsets = tokenizer.decode_with_offsets(ids, {index: token})
    assert decoded.startswith(text[:end])
    assert decoded[slice(*offsets[index])].strip() == text[start:end].strip()
    assert len(offsets) == len(ids)


def test_pieces_of_a_word_are_one_unit_in_word_level_tokenizers() -> None:
    tokenizer = WordPiece(size=20).train(["a ab abc b bc"] * 3 + ["xyz"])
    read = tokenizer.encode_with_offsets("xyz a zyx")
    groups = [read.units.count(unit) for unit in dict.fromkeys(read.units)]
    assert len(groups) == 3
    assert sum(groups) == len(read.ids) > 3


def test_a_vocabulary_without_unk_has_no_unknown_positions() -> None:
    words = {"<pad>": 0, "</s>": 1, "a": 2}
    tokenizer = Tokenizer.from_json(saved_elsewhere(models.WordLevel(words, unk_token="a"), specials=["<pad>", "</s>"]))
    assert tokenizer.unknown_positions([0, 1, 2, 2]) == []
    assert TRAINED["word"].unknown_positions([3, 7, 3]) == [0, 2]


def test_special_tokens_come_first(tokenizer: Tokenizer) -> None:
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk, tokenizer.mask) == (0, 1, 2, 3, 4)
    assert (PAD, BOS, EOS, UNK, MASK) == (0, 1, 2, 3, 4)
    assert tuple(tokenizer.token_texts(range(5))) in (SPECIALS, BERT_SPECIALS)
    assert tokenizer.decode([0, 1, 2, 4]) == ""


@settings(deadline=None)
@given(text=ODD_TEXT, special=st.sampled_from(SPECIALS), after=ODD_TEXT)
def test_a_special_token_written_in_a_text_is_text(text: str, special: str, after: str) -> None:
    for name, tokenizer in TRAINED.items():
        for whole in (special, f"{text}{special}{after}", f"{text} {special} {after}"):
            ids = tokenizer.encode(whole)
            assert ids
            assert not {PAD, BOS, EOS, MASK} & set(ids), name


def test_a_special_token_that_is_frequent_in_training_is_text_too() -> None:
    texts = ["<s> </s> <pad><pad> <mask> <unk> x</s>"] * 50
    for kind in (Character(), Word(), BPE(size=266), Unigram(size=266), WordPiece(size=40)):
        try:
            ids = kind.train(texts).encode(texts[0])
        except InputError as error:
            size = int(str(error).removesuffix(".").rpartition(" ")[2])
            ids = type(kind)(size=size).train(texts).encode(texts[0])
        assert min(ids) > MASK


def saved_elsewhere(model: models.Model, *, specials: list[str]) -> str:
    """A tokenizer.json of someone else, whose model takes a special token in a text for that token."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(specials)
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=5)
    return tokenizer.to_str()


def test_a_saved_model_with_special_tokens_as_words_encodes_them_as_text() -> None:
    pieces = [("<unk>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), *((letter, -3.0) for letter in "</s>abpd")]
    tokenizer = Tokenizer.from_json(saved_elsewhere(models.Unigram(pieces, 0), specials=["<unk>", "<pad>", "</s>"]))
    ids = tokenizer.encode("ab</s> a<pad>b")
    assert tokenizer.token_texts(ids) == list("ab</s>a<pad>b")
    assert tokenizer.encode("ab</s></s>") == tokenizer.encode_batch(["x", "ab</s></s>"])[1]


def test_a_saved_tokenizer_neither_truncates_nor_pads() -> None:
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3}
    text = saved_elsewhere(models.WordLevel(words, unk_token="<unk>"), specials=["<pad>", "</s>", "<unk>"])
    assert Tokenizer.from_json(text).encode("a a a a b") == [3, 3, 3, 3, 2]
    assert Tokenizer.from_json(text).encode("a") == [3]


def test_saved_special_tokens_may_have_berts_spelling() -> None:
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "x": 9}
    text = saved_elsewhere(models.WordLevel(words, unk_token="[UNK]"), specials=list(words)[:5])
    tokenizer = Tokenizer.from_json(text)
    assert [tokenizer.pad, tokenizer.unk, tokenizer.bos, tokenizer.eos, tokenizer.mask] == [0, 1, 2, 3, 4]
    assert tokenizer.vocabulary == 10
    assert tokenizer.token_texts([7]) == ["<7>"]


def test_a_saved_tokenizer_is_used_unchanged(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(TRAINED["bpe"].to_json())
    saved, other = train_tokenizers(Saved(str(tmp_path / "tokenizer.json")), Corpus(["x"], ["y"], ("x", "y")))
    assert saved.digest == TRAINED["bpe"].digest
    assert other is None


@pytest.mark.parametrize("missing", ["</s>", "<pad>"])
def test_a_saved_tokenizer_without_eos_or_pad_is_refused(tmp_path: Path, missing: str) -> None:
    words = {name: number for number, name in enumerate(SPECIALS) if name != missing}
    text = saved_elsewhere(models.WordLevel(words, unk_token="<unk>"), specials=list(words))
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(InputError, match=f"the tokenizer has no {missing} token"):
        Saved(str(tmp_path / "t.json")).train([])


def test_a_missing_saved_tokenizer_is_an_error() -> None:
    with pytest.raises(InputError, match=r"no such file: nowhere/tokenizer\.json"):
        Saved("nowhere/tokenizer.json").train([])


def broken(**changes: object) -> str:
    """A tokenizer.json with some parts replaced."""
    return json.dumps({**json.loads(TRAINED["bpe"].to_json()), **changes})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", "not an object"),
        ("[" * 100_000, "recursion"),
        (broken(model={"type": "BPE", "vocab": {"a": 0}, "merges": [["ab", "cd"]]}), "out of vocabulary"),
        (broken(model={"type": "Unigram", "unk_id": 50, "vocab": [["a", 0.0]]}), "UnkIdNotInVocabulary"),
        (broken(model={"type": "WordLevel", "unk_token": "zzz", "vocab": {"a": 0}}), "Missing"),
        (broken(added_tokens=[], model={"type": "BPE", "vocab": {}, "merges": []}), "no tokens"),
        (broken(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "Precompiled"),
        (broken(pre_tokenizer={"type": "FixedLength", "length": 0}), "length 0"),
        (broken(normalizer=[5]), "not an object"),
    ],
)
def test_a_damaged_json_is_refused_even_where_the_library_panics(text: str, reason: str) -> None:
    with pytest.raises(DamagedFile, match=f"^tokenizer.json cannot be used: .*{reason}"):
        Tokenizer.from_json(text)


def test_saving_and_loading_changes_nothing(tokenizer: Tokenizer) -> None:
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.to_json() == tokenizer.to_json()
    assert again.digest == tokenizer.digest
    assert again.vocabulary == tokenizer.vocabulary
    assert again.encode_batch([*TEXTS, "</s>"]) == tokenizer.encode_batch([*TEXTS, "</s>"])


@given(scores=st.lists(st.floats(-20, -1), min_size=20, max_size=20))
def test_a_saved_model_is_written_as_it_was_read(scores: list[float]) -> None:
    pieces = [*((name, 0.0) for name in SPECIALS), *((chr(97 + n), score) for n, score in enumerate(scores))]
    text = saved_elsewhere(models.Unigram(pieces, 3), specials=list(SPECIALS))
    read = Tokenizer.from_json(text)
    assert read.to_json() == text
    assert Tokenizer.from_json(read.to_json()).digest == read.digest


def test_a_batch_is_encoded_like_single_texts(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.encode("") == []


@settings(deadline=None)
@given(text=st.text(st.sampled_from("ab1 \n\t.</s>é中"), max_size=300))
def test_a_text_cut_in_parts_has_the_same_tokens(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts_module, "_PART", 20)
        parts = list(cut_text(text))
    for tokenizer in TRAINED.values():
        assert list(chain.from_iterable(tokenizer.encode_batch(parts))) == tokenizer.encode(text)


def test_an_unpaired_surrogate_is_refused_with_its_position(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"unpaired surrogate \(U\+D83D\) at position 7"):
        tokenizer.encode_batch(["fine", "hello \ud83d!"])


def test_token_texts_are_readable() -> None:
    byte = TRAINED["byte"]
    assert byte.token_texts(byte.encode("a b\né")) == ["a", "▁", "b", "↵", "\\xc3", "\\xa9"]
    bpe = TRAINED["bpe"]
    assert bpe.token_texts(bpe.encode("The early bird")) == ["The", "▁ear", "ly", "▁bi", "rd"]
    assert "".join(bpe.token_texts(bpe.encode("Der Vogel"))) == "Der▁Vogel"
    word = TRAINED["word"]
    assert word.token_texts(word.encode("The early\tbird")) == ["The", "▁early", "⇥", "<unk>"]


def test_a_byte_token_has_the_number_of_its_byte() -> None:
    assert TRAINED["byte"].encode("aé\0") == [5 + byte for byte in "aé\0".encode()]
    assert TRAINED["byte"].vocabulary == 261


@pytest.mark.parametrize("name", ["bpe_digits", "unigram_digits"])
@given(number=st.integers(0, 10**12))
def test_each_digit_is_a_token_when_digits_are_split(name: str, number: int) -> None:
    tokenizer = TRAINED[name]
    texts = tokenizer.token_texts(tokenizer.encode(f"x{number} {number}"))
    assert [text for text in texts if text.isdigit()] == list(f"{number}{number}")


def test_digits_are_merged_unless_they_are_split() -> None:
    texts = ["1848 1848 1848"] * 20
    tokenizer = BPE(size=264).train(texts)
    assert "1848" in tokenizer.token_texts(tokenizer.encode(texts[0]))


@pytest.mark.parametrize("kind", [BPE(), Unigram(), WordPiece()])
def test_more_tokens_than_the_text_supports_are_refused_and_the_advice_works(kind: TokenizerKind) -> None:
    with pytest.raises(InputError, match=r"^asked for 8,000 tokens, the text supports ([\d,]+) \(text") as caught:
        kind.train(TEXTS)
    message = str(caught.value)
    size = int(message.removesuffix(".").rpartition(" ")[2])
    assert type(kind)(size=size).train(TEXTS).vocabulary == size  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [BPE, Unigram, WordPiece])
def test_fewer_tokens_than_there_are_characters_are_refused_and_the_advice_works(kind: type[BPE]) -> None:
    with pytest.raises(
        InputError, match=r"^asked for 50 tokens, special ones and single characters need \d+ \(text"
    ) as caught:
        kind(size=50).train(TEXTS)
    size = int(str(caught.value).removesuffix(" or more.").rpartition(" ")[2])
    assert kind(size=size).train(TEXTS).vocabulary == size


@pytest.mark.parametrize("kind", [Word, BPE, Unigram, WordPiece])
@pytest.mark.parametrize("size", [-1, 0, 5])
def test_a_size_without_room_is_refused(kind: type[BPE], size: int) -> None:
    with pytest.raises(InputError, match=r"text\.tokenizer\.size"):
        kind(size=size)


def test_a_word_tokenizer_may_be_smaller_than_its_size() -> None:
    assert Word(size=10_000).train(["a b b", "c"]).vocabulary == 5 + len({"a", " b", "c"})
    small = Word(size=6).train(["a b b", "c"])
    assert small.token_texts(small.encode("a b")) == ["<unk>", "▁b"]


def test_training_is_a_function_of_the_text_in_every_process() -> None:
    program = "from test_tokenizer import TRAINED; print({n: t.digest for n, t in TRAINED.items()})"
    expected = str({name: tokenizer.digest for name, tokenizer in TRAINED.items()})
    command, folder = [sys.executable, "-c", program], Path(__file__).parent
    for _ in range(3):
        assert subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=folder).stdout.strip() == expected


def test_the_digest_is_that_of_the_json(tokenizer: Tokenizer) -> None:
    assert tokenizer.digest == hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


@pytest.mark.parametrize("kind", [Character, Byte, Word, BPE, Unigram, WordPiece])
def test_two_sides_share_a_vocabulary_unless_told_otherwise(kind: type[Character]) -> None:
    pairs = Corpus(["aa bb ab aabb"] * 9, ["cc dd cd ccdd"] * 9, ("x", "y"))
    size = {BPE: {"size": 261}, Unigram: {"size": 262}, WordPiece: {"size": 17}}.get(kind, {})
    both, none = train_tokenizers(kind(**size), pairs)
    assert none is None
    for text in ("aa", "cc"):
        assert both.unk not in both.encode(text)
    if kind is WordPiece:
        size = {"size": 11}
    first, second = train_tokenizers(kind(joint=False, **size), pairs)
    assert second is not None
    assert first.unk not in first.encode("aa")
    assert second.unk not in second.encode("cc")
    alone, none = train_tokenizers(kind(**size), Corpus(pairs.sources, None, ("x",)))
    assert none is None
    assert alone.digest == first.digest


def test_a_tokenizer_trains_on_a_long_text_without_spaces() -> None:
    text = "ACGT" * 50_000 + "TTAG" * 50_000
    for kind in (Character(), Byte(), Word(), BPE(size=266), WordPiece(size=20)):
        tokenizer = kind.train([text])
        assert len(tokenizer.encode(text)) > 0


@pytest.mark.parametrize("kind", [*KINDS.values(), Saved("x.json")])
def test_a_kind_survives_a_round_trip_through_a_dict(kind: TokenizerKind) -> None:
    plain = to_dict(kind)
    assert plain["kind"] in ("character", "byte", "word", "bpe", "unigram", "word_piece", "saved")
    assert from_dict(TokenizerKind, plain, where="text.tokenizer") == kind


def test_special_tokens_can_be_given_by_id() -> None:
    plain = TRAINED["bpe"]
    special_tokens = SpecialTokens(bos=PAD, eos=BOS, unk=None)
    other = Tokenizer.from_json(plain.to_json(), special_tokens)
    assert (other.bos, other.eos, other.pad, other.mask) == (PAD, BOS, PAD, MASK)
    assert plain.bos == BOS
    assert other.encode("a b") == plain.encode("a b")
    assert other.digest != plain.digest


def test_pieces_from_first_unknown_on_are_unk() -> None:
    plain = TRAINED["character"]
    few = Tokenizer.from_json(plain.to_json(), SpecialTokens(first_unknown=plain.encode("b")[0]))
    assert few.encode("ab") == [plain.encode("a")[0], UNK]
    assert few.encode_with_offsets("ab").ids == few.encode("ab")
    assert few.vocabulary == plain.encode("b")[0]
    assert few.unknown_positions(few.encode("ab")) == [1]


def test_sentinels_come_in_the_order_of_their_names() -> None:
    library = tokenizers.Tokenizer.from_str(TRAINED["byte"].to_json())
    assert TRAINED["byte"].sentinels == []
    library.add_special_tokens(["<extra_id_1>", "<extra_id_0>", "<extra_id_3>"])
    size = TRAINED["byte"].vocabulary
    assert Tokenizer(library).sentinels == [size + 1, size]


def test_a_vocabulary_with_one_special_token_uses_it_for_every_role() -> None:
    model = models.BPE({letter: number for number, letter in enumerate(["<|endoftext|>", "a", "b"])}, [])
    library = tokenizers.Tokenizer(model)
    library.add_special_tokens(["<|endoftext|>"])
    tokenizer = Tokenizer(library)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.pad) == (0, 0, 0)


def words_of(text: str) -> list[str]:
    return [text[start:end] for start, end in word_offsets(text)]


@given(st.text(), st.text())
def test_a_text_with_spaces_has_the_words_of_split(one: str, other: str):
    text = f"a{one} {other}a"
    assert words_of(text) == text.split()


@given(st.text())
def test_no_visible_character_is_lost(text: str):
    assert "".join(words_of(text)) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("", []),
        (" \n ", []),
        ("Hello!", ["Hello!"]),
        ("  Straße ", ["Straße"]),
        ("안녕하세요", ["안녕하세요"]),
        ("早起きは三文の徳。", list("早起きは三文の徳。")),
        (" 2024年3月15日 ", ["2024", "年", "3", "月", "15", "日"]),
        ("2024年3月15日 金曜日", ["2024年3月15日", "金曜日"]),
        ("か\u3099き", ["か\u3099", "き"]),
        ("กำ", ["ก", "ำ"]),
        ("กี่ปี", ["กี่", "ปี"]),
    ],
)
def test_without_spaces_the_characters_of_an_unspaced_script_are_words(text: str, cut: list[str]):
    assert words_of(text) == cut


def test_a_token_belongs_to_the_word_of_its_first_visible_character():
    text = "ab  cd e"
    spans = [(0, 1), (1, 2), (2, 3), (3, 5), (5, 6), (6, 7), (6, 8), (3, 8), (2, 2)]
    assert word_ids(text, spans) == [0, 0, -1, 1, 1, -1, 2, 1, -1]
