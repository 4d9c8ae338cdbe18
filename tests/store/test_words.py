"""Published tokenizers give the tokens their makers' library gives, whatever files they come in."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoTokenizer, BertTokenizer, GPT2Tokenizer, MarianTokenizer, RobertaTokenizer, T5Tokenizer

from regard.data.tokenize.encode import Frame, rows_of
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import DamagedFile, InputError
from regard.store.huggingface.tokenizers import read_published, write_published

LINES = [
    "The early bird catches the worm, they said in 1848.",
    "Der frühe Vogel fängt den Wurm, und das seit 1848.",
    "Кто рано встаёт, тому Бог подаёт: 12 раз из 34.",
    "早起きは三文の徳、と言われています。",
    "सुबह का भूला शाम को घर आ जाए।",
    "for line in lines:\n    print(line, end='')\n\n\tpass",
] * 20
ODD = [*"aAéÅﬁ½ 01\n\r\t\0\x7f\x85\xa0\u2028\ufeff\u0301\u200b\u200d\ufffd\uffff\ufffe\U0010ffffĠ▁#", "##ing", "don't",
       "👨‍👩‍👧", "e\u0301", "Ａ", "İ", "ß", "東京", "  ", "…", "ﷺ", "\u1112\u1161\u11ab"]  # fmt: skip


def strings() -> list[str]:
    chance = random.Random(4)
    made = [*LINES[:6], "", " ", "\n", "▁", "a" * 300, "é" * 80]
    for _ in range(300):
        words = chance.choices([*ODD, *" ".join(LINES[:6]).split(" ")], k=chance.randrange(1, 14))
        made.append(chance.choice(["", " "]).join(words))
    return made


STRINGS = strings()


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False))


def spm(path: Path, size: int, lines: list[str] = LINES, **settings: object) -> None:
    text = path.with_suffix(".txt")
    text.write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(path.with_suffix("")), vocab_size=size, hard_vocab_limit=False,
        minloglevel=2, **settings,
    )  # fmt: skip
    path.with_suffix(".model").rename(path)
    text.unlink()
    path.with_suffix(".vocab").unlink()


def byte_pairs(folder: Path, specials: list[str]) -> None:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(LINES, trainer)
    made.model.save(str(folder))


def word_pieces(folder: Path) -> None:
    letters = sorted({letter for line in LINES for letter in line.lower() + line if not letter.isspace()})
    words = ["early", "bird", "the", "The", "worm", "##ing", "##ly", "do", "don", "fang", "fäng", "##t", "東"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *words]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(tokens)) + "\n")


def same(ours: Tokenizer, theirs, texts: list[str] = STRINGS) -> None:
    wrong = [
        (text, ours.encode(text), expected)
        for text in texts
        if ours.encode(text) != (expected := theirs.encode(text, add_special_tokens=False, split_special_tokens=True))
    ]
    assert not wrong, (len(wrong), wrong[:3])


@pytest.mark.parametrize(
    "settings",
    [{}, {"do_lower_case": False}, {"strip_accents": True, "do_lower_case": False}, {"tokenize_chinese_chars": False}],
)
def test_a_list_of_word_pieces_is_read_as_bert_reads_it(tmp_path: Path, settings: dict[str, bool]):
    word_pieces(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", settings)
    ours, second = read_published(tmp_path)
    same(ours, BertTokenizer.from_pretrained(tmp_path))
    assert second is None
    assert (ours.begin, ours.end, ours.pad, ours.unknown, ours.mask) == (2, 3, 0, 1, 4)


@pytest.mark.parametrize("settings", [{}, {"add_prefix_space": True}])
def test_merges_are_read_as_gpt2_reads_them(tmp_path: Path, settings: dict[str, bool]):
    byte_pairs(tmp_path, ["<|endoftext|>"])
    write_json(tmp_path / "tokenizer_config.json", settings)
    ours, _ = read_published(tmp_path)
    same(ours, GPT2Tokenizer.from_pretrained(tmp_path))
    assert (ours.begin, ours.end, ours.pad, ours.opening) == (0, 0, 0, ())
    assert ours.unknowns([*ours.encode("abc"), 0]) == []
    with pytest.raises(InputError):
        _ = ours.mask


def test_merges_are_read_as_roberta_reads_them(tmp_path: Path):
    byte_pairs(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    ours, _ = read_published(tmp_path)
    theirs = RobertaTokenizer.from_pretrained(tmp_path)
    same(ours, theirs)
    pair = Frame.of(ours).put([rows_of([ours.encode(text)]) for text in ("low", "newer")])
    assert pair.ids[0].tolist() == theirs("low", "newer")["input_ids"]
    assert (ours.begin, ours.end, ours.pad, ours.unknown, ours.mask) == (0, 2, 1, 3, 4)


@pytest.mark.parametrize("sentinels", [100, 5, 0])
def test_pieces_are_read_as_t5_reads_them(tmp_path: Path, sentinels: int):
    spm(tmp_path / "spiece.model", 220, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write_json(tmp_path / "tokenizer_config.json", {"extra_ids": sentinels})
    ours, _ = read_published(tmp_path, start=0)
    theirs = T5Tokenizer.from_pretrained(tmp_path)
    same(ours, theirs)
    assert (ours.begin, ours.pad, ours.end, ours.unknown) == (0, 0, 1, 2)
    assert ours.sentinels == [theirs.convert_tokens_to_ids(f"<extra_id_{i}>") for i in range(sentinels)]
    assert ours.sentinels == sorted(ours.sentinels, reverse=True)
    assert ours.decode(ours.encode("The early bird")) == "The early bird"


def test_pieces_with_bytes_write_what_no_piece_writes(tmp_path: Path):
    spm(tmp_path / "spiece.model", 420, byte_fallback=True, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    ours, _ = read_published(tmp_path, start=0)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    for text in ["Ж ქ 𝄞", "a\u2603b", "The ☃"]:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == text


def marian(folder: Path, *, separate: bool = False, size: int = 150, **settings: object) -> None:
    spm(folder / "source.spm", size, LINES[:2] + LINES[4:5], **settings)
    spm(folder / "target.spm", size, LINES[2:4], **settings)
    pieces = [
        [model.id_to_piece(i) for i in range(3, len(model))]
        for model in (sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
                      for side in ("source", "target"))
    ]  # fmt: skip
    # As published: some pieces of either file have no number.
    pieces = [side[::2] + side[1:-40:2] for side in pieces]
    for name, known in (("vocab.json", pieces[0]), ("target_vocab.json", pieces[1])):
        both = known if separate else [*pieces[0], *pieces[1]]
        tokens = dict.fromkeys(["</s>", "<unk>", *both, "<pad>"])
        if separate or name == "vocab.json":
            write_json(folder / name, {token: number for number, token in enumerate(tokens)})
    settings = {"separate_vocabs": separate, "source_lang": "a", "target_lang": "b"}
    write_json(folder / "tokenizer_config.json", settings)


@pytest.mark.parametrize("separate", [False, True])
def test_two_lists_of_pieces_are_read_as_marian_reads_them(tmp_path: Path, separate: bool):
    marian(tmp_path, separate=separate)
    source, target = read_published(tmp_path, start=7)
    theirs = MarianTokenizer.from_pretrained(tmp_path)
    assert target is not None
    same(source, theirs)
    theirs._switch_to_target_mode()
    same(target, theirs)
    assert source.vocabulary == len(json.loads((tmp_path / "vocab.json").read_text()))
    assert (source.begin, source.end) == (7, 0)
    if not separate:
        ids = source.encode("The early bird")
        assert target.decode(ids) == source.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_what_says_the_language_of_a_translation_is_a_token(tmp_path: Path):
    marian(tmp_path)
    numbers = json.loads((tmp_path / "vocab.json").read_text())
    codes = {code: len(numbers) + place for place, code in enumerate([">>fra<<", ">>deu_Latn<<"])}
    write_json(tmp_path / "vocab.json", {**numbers, **codes})
    made = read_published(tmp_path, start=7)
    (tmp_path / "new").mkdir()
    write_published(tmp_path / "new", made, longest=None, frame="end")
    for folder in (tmp_path, tmp_path / "new"):
        theirs = MarianTokenizer.from_pretrained(folder)
        texts = [">>fra<< The early bird", ">>deu_Latn<<The  bird", ">>fra<<", "The >> early", *STRINGS[:100]]
        same(read_published(folder, start=7)[0], theirs, texts)


def test_what_was_added_later_keeps_its_number(tmp_path: Path):
    word_pieces(tmp_path)
    size = len((tmp_path / "vocab.txt").read_text().splitlines())
    write_json(tmp_path / "added_tokens.json", {"[ENT]": size, "[REL]": size + 1})
    theirs = BertTokenizer.from_pretrained(tmp_path)
    ours, _ = read_published(tmp_path)
    same(ours, theirs, ["The [ENT] early [REL]bird", "x[ENT][ENT]"])
    write_json(tmp_path / "added_tokens.json", {"[ENT]": size + 7})
    with pytest.raises(DamagedFile, match="the number"):
        read_published(tmp_path)


def test_a_saved_tokenizer_is_read_with_the_parts_its_settings_name(tmp_path: Path):
    byte_pairs(tmp_path, ["<|endoftext|>", "<go>"])
    theirs = GPT2Tokenizer.from_pretrained(tmp_path, bos_token="<go>")
    theirs.save_pretrained(tmp_path / "new")
    ours, _ = read_published(tmp_path / "new")
    same(ours, AutoTokenizer.from_pretrained(tmp_path / "new"))
    assert (ours.begin, ours.end, ours.opening) == (1, 0, ())


@pytest.mark.parametrize("kind", ["bert", "gpt2", "t5", "marian", "marian, apart", "marian, bytes"])
def test_what_is_written_is_read_by_others(tmp_path: Path, kind: str):
    folder = tmp_path / "old"
    folder.mkdir()
    if kind == "bert":
        word_pieces(folder)
    elif kind == "gpt2":
        byte_pairs(folder, ["<|endoftext|>"])
    elif kind == "t5":
        spm(folder / "spiece.model", 220, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    else:
        settings = {"byte_fallback": True, "size": 420} if "bytes" in kind else {}
        marian(folder, separate="apart" in kind, **settings)
        kind = "marian"
    start = {"t5": 0, "marian": 1}.get(kind)
    made = read_published(folder, start=start)
    write_published(tmp_path, made, longest=77, frame={"bert": "both", "gpt2": "opening"}.get(kind, "end"))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    again = read_published(tmp_path, start=start)
    texts = [text for text in STRINGS if "\uffff" not in text]  # which no text holds that anybody wrote
    for text in texts:
        ids = made[0].encode(text)
        expected = {"bert": [2, *ids, 3], "gpt2": ids, "t5": [*ids, 1], "marian": [*ids, 0]}[kind]
        found = theirs(text, split_special_tokens=True)["input_ids"]
        assert max(found, default=0) < made[0].vocabulary
        assert found == expected
        assert again[0].encode(text) == ids
    parts = ("begin", "end", "pad")
    assert [getattr(again[0], part) for part in parts] == [getattr(made[0], part) for part in parts]
    assert theirs.model_max_length == 77
    if made[1] is not None:
        assert again[1] is not None
        theirs._switch_to_target_mode()
        same(again[1], theirs, texts)
        same(made[1], theirs, texts)


def refused(folder: Path) -> str:
    """Why a folder cannot be used; nothing, if it can."""
    try:
        read_published(folder)[0].encode("The early bird")
    except (DamagedFile, InputError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "name", ["vocab.txt", "merges.txt", "vocab.json", "spiece.model", "source.spm", "tokenizer.json"]
)
def test_files_that_are_not_what_they_are_called_are_refused_in_one_line(tmp_path: Path, name: str):
    chance = random.Random(name)
    for number in range(40):
        folder = tmp_path / str(number)
        folder.mkdir()
        if name in ("merges.txt", "vocab.json"):
            byte_pairs(folder, ["<|endoftext|>"])
        elif name == "spiece.model":
            spm(folder / name, 120) if number == 0 else (folder / name).write_bytes((tmp_path / "0.spm").read_bytes())
            (tmp_path / "0.spm").write_bytes((folder / name).read_bytes())
        elif name == "source.spm":
            marian(folder) if number == 0 else [
                (folder / p.name).write_bytes(p.read_bytes()) for p in (tmp_path / "0").iterdir()
            ]
        elif name == "vocab.txt":
            word_pieces(folder)
        else:
            (folder / name).write_text(tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, [])).to_str())
    for number in range(40):
        path = tmp_path / str(number) / name
        content = bytearray(path.read_bytes())
        for _ in range(chance.randrange(1, 30)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content[: chance.randrange(len(content))] if number % 3 == 0 else content)
        said = refused(tmp_path / str(number))
        assert "\n" not in said


@pytest.mark.parametrize("settings", [{}, {"byte_fallback": True}])
def test_joined_pairs_are_read_as_the_reformer_reads_them(tmp_path: Path, settings: dict[str, bool]):
    size = 620 if settings.get("byte_fallback") else 320
    spm(tmp_path / "spiece.model", size, model_type="bpe", character_coverage=0.98, **settings)
    ours, _ = read_published(tmp_path, end=2)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert ours.vocabulary == len(theirs)
    for text in [*LINES[:6], "", " ", "  two  spaces ", "ﬁ ½ Ａ", "aaaaaaa"]:
        assert ours.encode(text) == theirs.encode(text), text
    assert (ours.end, ours.pad, ours.unknown, ours.sentinels) == (2, 2, 0, [])
    assert ours.decode(ours.encode("The early bird")) == "The early bird"
