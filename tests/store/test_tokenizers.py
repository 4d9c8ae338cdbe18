"""Tokenizer files of Hugging Face: our tokens are those of transformers and sentencepiece."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    BertTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Tokenizer,
    MarianTokenizer,
    Qwen2Tokenizer,
    RobertaTokenizer,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
)

import regard
from regard.data.tokenize.encode import Template, token_rows
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import DamagedFile, InputError, Note
from regard.store.convert import convert
from regard.store.huggingface.tokenizers import read_huggingface_tokenizers, write_huggingface_tokenizers

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
    texts = [*LINES[:6], "", " ", "\n", "▁", "a" * 300, "é" * 80]
    for _ in range(300):
        words = chance.choices([*ODD, *" ".join(LINES[:6]).split(" ")], k=chance.randrange(1, 14))
        texts.append(chance.choice(["", " "]).join(words))
    return texts


STRINGS = strings()


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False))


def write_sentencepiece(path: Path, size: int, lines: list[str] = LINES, **settings: object) -> None:
    text = path.with_suffix(".txt")
    text.write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(path.with_suffix("")), vocab_size=size, hard_vocab_limit=False,
        minloglevel=2, **settings,
    )  # fmt: skip
    path.with_suffix(".model").rename(path)
    text.unlink()
    path.with_suffix(".vocab").unlink()


def write_byte_level_bpe(folder: Path, specials: list[str]) -> None:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(LINES, trainer)
    made.model.save(str(folder))


def write_wordpiece(folder: Path) -> None:
    characters = sorted({character for line in LINES for character in line.lower() + line if not character.isspace()})
    words = ["early", "bird", "the", "The", "worm", "##ing", "##ly", "do", "don", "fang", "fäng", "##t", "東"]
    tokens = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *characters,
        *(f"##{character}" for character in characters),
        *words,
    ]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(tokens)) + "\n")


def assert_same(ours: Tokenizer, theirs, texts: list[str] = STRINGS) -> None:
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
def test_vocab_txt_is_read_as_bert_reads_it(tmp_path: Path, settings: dict[str, bool]):
    write_wordpiece(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", settings)
    ours, second = read_huggingface_tokenizers(tmp_path)
    assert_same(ours, BertTokenizer.from_pretrained(tmp_path))
    assert second is None
    assert (ours.bos, ours.eos, ours.pad, ours.unk, ours.mask) == (2, 3, 0, 1, 4)


@pytest.mark.parametrize("settings", [{}, {"add_prefix_space": True}])
def test_merges_are_read_as_gpt2_reads_them(tmp_path: Path, settings: dict[str, bool]):
    write_byte_level_bpe(tmp_path, ["<|endoftext|>"])
    write_json(tmp_path / "tokenizer_config.json", settings)
    ours, _ = read_huggingface_tokenizers(tmp_path)
    assert_same(ours, GPT2Tokenizer.from_pretrained(tmp_path))
    assert (ours.bos, ours.eos, ours.pad, Template.of(ours).prefix) == (0, 0, 0, ())
    assert ours.unknown_positions([*ours.encode("abc"), 0]) == []
    with pytest.raises(InputError):
        _ = ours.mask


@pytest.mark.parametrize("named", ["tokenizer_config.json", "config.json"])
def test_merges_are_read_as_qwen2_reads_them(tmp_path: Path, named: str):
    write_byte_level_bpe(tmp_path, ["<|endoftext|>"])
    write_json(
        tmp_path / named, {"model_type": "qwen2"} if named == "config.json" else {"tokenizer_class": "Qwen2Tokenizer"}
    )
    ours, _ = read_huggingface_tokenizers(tmp_path)
    theirs = Qwen2Tokenizer.from_pretrained(tmp_path)
    assert_same(ours, theirs)
    for text in ("in 1234 (low)newer, lower\n\n new", "it'S cafe\u0301 -low", "a\r\n  b"):
        assert list(ours.encode(text)) == theirs(text)["input_ids"]
    assert (ours.eos, ours.pad) == (0, 0)


def test_merges_are_read_as_roberta_reads_them(tmp_path: Path):
    write_byte_level_bpe(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    ours, _ = read_huggingface_tokenizers(tmp_path)
    theirs = RobertaTokenizer.from_pretrained(tmp_path)
    assert_same(ours, theirs)
    pair = Template.of(ours).fill([token_rows([ours.encode(text)]) for text in ("low", "newer")])
    assert pair.ids[0].tolist() == theirs("low", "newer")["input_ids"]
    assert (ours.bos, ours.eos, ours.pad, ours.unk, ours.mask) == (0, 2, 1, 3, 4)


@pytest.mark.parametrize("sentinels", [100, 5, 0])
def test_spiece_model_is_read_as_t5_reads_it(tmp_path: Path, sentinels: int):
    write_sentencepiece(tmp_path / "spiece.model", 220, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write_json(tmp_path / "tokenizer_config.json", {"extra_ids": sentinels})
    ours, _ = read_huggingface_tokenizers(tmp_path, start=0)
    theirs = T5Tokenizer.from_pretrained(tmp_path)
    assert_same(ours, theirs)
    assert (ours.bos, ours.pad, ours.eos, ours.unk) == (0, 0, 1, 2)
    assert ours.sentinels == [theirs.convert_tokens_to_ids(f"<extra_id_{i}>") for i in range(sentinels)]
    assert ours.sentinels == sorted(ours.sentinels, reverse=True)
    assert ours.decode(ours.encode("The early bird")) == "The early bird"


def test_byte_fallback_encodes_text_without_pieces(tmp_path: Path):
    write_sentencepiece(tmp_path / "spiece.model", 420, byte_fallback=True, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    ours, _ = read_huggingface_tokenizers(tmp_path, start=0)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    for text in ["Ж ქ 𝄞", "a\u2603b", "The ☃"]:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == text


def write_marian(folder: Path, *, separate: bool = False, size: int = 150, **settings: object) -> None:
    write_sentencepiece(folder / "source.spm", size, LINES[:2] + LINES[4:5], **settings)
    write_sentencepiece(folder / "target.spm", size, LINES[2:4], **settings)
    pieces = [
        [model.id_to_piece(i) for i in range(3, len(model))]
        for model in (sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
                      for side in ("source", "target"))
    ]  # fmt: skip
    # As published: some pieces of either file have no id.
    pieces = [side[::2] + side[1:-40:2] for side in pieces]
    for name, known in (("vocab.json", pieces[0]), ("target_vocab.json", pieces[1])):
        both = known if separate else [*pieces[0], *pieces[1]]
        tokens = dict.fromkeys(["</s>", "<unk>", *both, "<pad>"])
        if separate or name == "vocab.json":
            write_json(folder / name, {token: number for number, token in enumerate(tokens)})
    settings = {"separate_vocabs": separate, "source_lang": "a", "target_lang": "b"}
    write_json(folder / "tokenizer_config.json", settings)


@pytest.mark.parametrize("separate", [False, True])
def test_source_and_target_spm_are_read_as_marian_reads_them(tmp_path: Path, separate: bool):
    write_marian(tmp_path, separate=separate)
    source, target = read_huggingface_tokenizers(tmp_path, start=7)
    theirs = MarianTokenizer.from_pretrained(tmp_path)
    assert target is not None
    assert_same(source, theirs)
    theirs._switch_to_target_mode()
    assert_same(target, theirs)
    assert source.vocabulary == len(json.loads((tmp_path / "vocab.json").read_text()))
    assert (source.bos, source.eos) == (7, 0)
    if not separate:
        ids = source.encode("The early bird")
        assert target.decode(ids) == source.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_language_code_is_a_token(tmp_path: Path):
    write_marian(tmp_path)
    ids = json.loads((tmp_path / "vocab.json").read_text())
    codes = {code: len(ids) + index for index, code in enumerate([">>fra<<", ">>deu_Latn<<"])}
    write_json(tmp_path / "vocab.json", {**ids, **codes})
    made = read_huggingface_tokenizers(tmp_path, start=7)
    (tmp_path / "new").mkdir()
    write_huggingface_tokenizers(tmp_path / "new", made, max_length=None, reads="source")
    for folder in (tmp_path, tmp_path / "new"):
        theirs = MarianTokenizer.from_pretrained(folder)
        texts = [">>fra<< The early bird", ">>deu_Latn<<The  bird", ">>fra<<", "The >> early", *STRINGS[:100]]
        assert_same(read_huggingface_tokenizers(folder, start=7)[0], theirs, texts)


def test_added_tokens_keep_their_ids(tmp_path: Path):
    write_wordpiece(tmp_path)
    size = len((tmp_path / "vocab.txt").read_text().splitlines())
    write_json(tmp_path / "added_tokens.json", {"[ENT]": size, "[REL]": size + 1})
    theirs = BertTokenizer.from_pretrained(tmp_path)
    ours, _ = read_huggingface_tokenizers(tmp_path)
    assert_same(ours, theirs, ["The [ENT] early [REL]bird", "x[ENT][ENT]"])
    write_json(tmp_path / "added_tokens.json", {"[ENT]": size + 7})
    with pytest.raises(DamagedFile, match="the id"):
        read_huggingface_tokenizers(tmp_path)


def test_tokenizer_json_is_read_with_the_special_tokens_of_its_settings(tmp_path: Path):
    write_byte_level_bpe(tmp_path, ["<|endoftext|>", "<go>"])
    theirs = GPT2Tokenizer.from_pretrained(tmp_path, bos_token="<go>")
    theirs.save_pretrained(tmp_path / "new")
    ours, _ = read_huggingface_tokenizers(tmp_path / "new")
    assert_same(ours, AutoTokenizer.from_pretrained(tmp_path / "new"))
    assert (ours.bos, ours.eos, Template.of(ours).prefix) == (1, 0, ())


@pytest.mark.parametrize("kind", ["bert", "gpt2", "t5", "marian", "marian, separate", "marian, bytes"])
def test_what_we_write_is_read_by_transformers(tmp_path: Path, kind: str):
    folder = tmp_path / "old"
    folder.mkdir()
    if kind == "bert":
        write_wordpiece(folder)
    elif kind == "gpt2":
        write_byte_level_bpe(folder, ["<|endoftext|>"])
    elif kind == "t5":
        write_sentencepiece(folder / "spiece.model", 220, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    else:
        settings = {"byte_fallback": True, "size": 420} if "bytes" in kind else {}
        write_marian(folder, separate="separate" in kind, **settings)
        kind = "marian"
    start = {"t5": 0, "marian": 1}.get(kind)
    made = read_huggingface_tokenizers(folder, start=start)
    write_huggingface_tokenizers(
        tmp_path, made, max_length=77, reads={"bert": "text", "gpt2": "prompt"}.get(kind, "source")
    )
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    again = read_huggingface_tokenizers(tmp_path, start=start)
    texts = [text for text in STRINGS if "\uffff" not in text]  # not a character
    for text in texts:
        ids = made[0].encode(text)
        expected = {"bert": [2, *ids, 3], "gpt2": ids, "t5": [*ids, 1], "marian": [*ids, 0]}[kind]
        found = theirs(text, split_special_tokens=True)["input_ids"]
        assert max(found, default=0) < made[0].vocabulary
        assert found == expected
        assert again[0].encode(text) == ids
    parts = ("bos", "eos", "pad")
    assert [getattr(again[0], part) for part in parts] == [getattr(made[0], part) for part in parts]
    assert theirs.model_max_length == 77
    if made[1] is not None:
        assert again[1] is not None
        theirs._switch_to_target_mode()
        assert_same(again[1], theirs, texts)
        assert_same(made[1], theirs, texts)


def refused(folder: Path) -> str:
    """The error of reading a folder, or nothing."""
    try:
        read_huggingface_tokenizers(folder)[0].encode("The early bird")
    except (DamagedFile, InputError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "name", ["vocab.txt", "merges.txt", "vocab.json", "spiece.model", "source.spm", "tokenizer.json"]
)
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, name: str):
    chance = random.Random(name)
    for number in range(40):
        folder = tmp_path / str(number)
        folder.mkdir()
        if name in ("merges.txt", "vocab.json"):
            write_byte_level_bpe(folder, ["<|endoftext|>"])
        elif name == "spiece.model":
            write_sentencepiece(folder / name, 120) if number == 0 else (folder / name).write_bytes(
                (tmp_path / "0.spm").read_bytes()
            )
            (tmp_path / "0.spm").write_bytes((folder / name).read_bytes())
        elif name == "source.spm":
            write_marian(folder) if number == 0 else [
                (folder / p.name).write_bytes(p.read_bytes()) for p in (tmp_path / "0").iterdir()
            ]
        elif name == "vocab.txt":
            write_wordpiece(folder)
        else:
            (folder / name).write_text(tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, [])).to_str())
    for number in range(40):
        path = tmp_path / str(number) / name
        content = bytearray(path.read_bytes())
        for _ in range(chance.randrange(1, 30)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content[: chance.randrange(len(content))] if number % 3 == 0 else content)
        message = refused(tmp_path / str(number))
        assert "\n" not in message


@pytest.mark.parametrize("settings", [{}, {"byte_fallback": True}])
def test_a_bpe_spiece_model_is_read_as_the_reformer_reads_it(tmp_path: Path, settings: dict[str, bool]):
    size = 620 if settings.get("byte_fallback") else 320
    write_sentencepiece(tmp_path / "spiece.model", size, model_type="bpe", character_coverage=0.98, **settings)
    ours, _ = read_huggingface_tokenizers(tmp_path, end=2)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert ours.vocabulary == len(theirs)
    for text in [*LINES[:6], "", " ", "  two  spaces ", "ﬁ ½ Ａ", "aaaaaaa"]:
        assert ours.encode(text) == theirs.encode(text), text
    assert (ours.eos, ours.pad, ours.unk, ours.sentinels) == (2, 2, 0, [])
    assert ours.decode(ours.encode("The early bird")) == "The early bird"


def test_without_a_tokenizer_a_language_model_continues_token_ids(tmp_path: Path):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=31, n_embd=24, n_layer=2, n_head=3, n_positions=32, bos_token_id=0, eos_token_id=0)
    theirs = GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path)
    with pytest.warns(Note, match="has no tokenizer"):
        model = regard.load(tmp_path)
    tokens = theirs.generate(torch.tensor([[5, 7, 9]]), max_new_tokens=6, do_sample=False, pad_token_id=0)[0].tolist()
    expected = tokens[: tokens.index(0)] if 0 in tokens else tokens
    assert model.generate("5 7 9", max_tokens=6, temperature=0) == " ".join(map(str, expected))


def test_without_a_tokenizer_a_translator_outputs_token_ids(tmp_path: Path):
    torch.manual_seed(0)
    config = T5Config(vocab_size=31, d_model=24, d_kv=8, d_ff=32, num_layers=2, num_heads=3, decoder_start_token_id=0)
    theirs = T5ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    with pytest.warns(Note, match="has no tokenizer"):
        model = regard.load(tmp_path)
    ids = torch.tensor([[5, 7, 9, 1]])
    with torch.no_grad():
        logits = theirs(input_ids=ids, decoder_input_ids=torch.tensor([[0, 4, 6]])).logits
        ours = model.network(torch.tensor([[0, 4, 6]]), source_ids=ids)
    torch.testing.assert_close(ours, logits, atol=1e-5, rtol=1e-5)
    tokens = theirs.generate(ids, max_new_tokens=8, num_beams=5)[0].tolist()[1:]
    expected = tokens[: tokens.index(1)] if 1 in tokens else tokens
    options = model.defaults()
    answer = model.translations(
        ["5 7 9"], type(options)(beam=5, max_tokens=8, normalization="length", early_stopping=False, length_penalty=1.0)
    )
    assert answer[0][0].text == " ".join(map(str, expected))


def test_special_token_ids_outside_the_vocabulary_are_ignored(tmp_path: Path):
    GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=24, n_layer=1, n_head=3, n_positions=32)).save_pretrained(
        tmp_path / "a"
    )
    with pytest.warns(Note, match="has no tokenizer"):
        convert(tmp_path / "a", tmp_path / "b", "regard")
    assert regard.load(tmp_path / "b").tokenizer.special_tokens.bos is None
