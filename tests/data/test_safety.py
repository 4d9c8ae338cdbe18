"""Safety of a tokenizer.json: patterns that hang, rules that make a text very long, sizes that fill the memory."""

from __future__ import annotations

import json

import pytest
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import _WORDS, _WORDS_AND_DIGITS, BPE, Byte, Unigram, Word, WordPiece
from regard.errors import DamagedFile, InputError

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
SAFE = [GPT2, GPT4, CLIP, _WORDS, _WORDS_AND_DIGITS, " {2,}", "^ | $", r"\S{1,64}", r"[0-9][0-9][0-9]", r"\s+", "."]
UNSAFE = [
    r"\y.", r"\Y.", r"a\b",
    r"(a+)+$", r"(a|a)*b", r"(a|aa)+$", r"(\w+\s?)*$", r"(?:a{1,64}){1,64}b", r"a*a*a*a*b", r"a+b", r"\s+$", r"a+(?=b)",
    r"(.*)*x", r"(a)\1+b", r"a?a?a?a?a?a?a?a?b", r"a+(?![ab])", r"a+?b", r".*.*=", r"([a-z]+)*@", "a" * 1001,
    r"\y.", r"\Y.", r"a\b", "a{50000,}", "[" + r"\p{L}" * 40 + "]+b+c", 4 * ("(?:" + "|".join(55 * ["."]) + ")") + "$",
]  # fmt: skip


def with_pattern(where: str, pattern: str) -> str:
    """A tokenizer.json with this pattern."""
    made = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    if where == "split":
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated")])
    elif where == "replace":
        made.normalizer = normalizers.Sequence([normalizers.Replace(Regex(pattern), "b")])
    else:
        made.decoder = decoders.Replace(Regex(pattern), "b")
    return made.to_str()


@pytest.mark.parametrize("where", ["split", "replace", "decode"])
@pytest.mark.parametrize("pattern", UNSAFE)
def test_patterns_that_can_backtrack_catastrophically_are_refused(where: str, pattern: str):
    with pytest.raises(DamagedFile, match="could hang") as caught:
        Tokenizer.from_json(with_pattern(where, pattern))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pattern", SAFE)
def test_patterns_of_known_tokenizers_are_safe(pattern: str):
    made = Tokenizer.from_json(with_pattern("split", pattern))
    for text in ("a" * 100_000, " " * 100_000, "a b" * 30_000, "'" * 100_000, "\n " * 50_000 + "x", "é́" * 50_000):
        made.encode(text)  # a pattern that backtracks would take minutes


def test_replacements_that_grow_a_text_exponentially_are_refused():
    made = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    made.normalizer = normalizers.Sequence(40 * [normalizers.Replace("a", "aa")])
    with pytest.raises(DamagedFile, match="times as long"):
        Tokenizer.from_json(made.to_str())


BOMBS: dict[str, dict[str, object]] = {
    "bytes of bytes": {"pre_tokenizer": pre_tokenizers.Sequence(12 * [pre_tokenizers.ByteLevel(use_regex=False)])},
    "bytes of bytes, normalized": {"normalizer": normalizers.Sequence(9 * [normalizers.ByteLevel()])},
    "spaces around spaces": {"normalizer": normalizers.Sequence(60 * [normalizers.BertNormalizer()])},
    "many rules": {"normalizer": normalizers.Sequence(101 * [normalizers.Strip()])},
    "a long replacement": {"normalizer": normalizers.Replace("a", "b" * 100)},
    "letters made of ligatures": {
        "normalizer": normalizers.Sequence(2 * [normalizers.Replace("a", "ﷺﷺ"), normalizers.NFKD(),
                                                normalizers.Replace("ا", "a")])},
    "a long prefix": {"normalizer": normalizers.Prepend("a" * 5000)},
    "a decoder": {"decoder": decoders.Sequence(40 * [decoders.Replace("a", "aa")])},
    "texts repeated": {
        "post_processor": processors.Sequence(40 * [processors.TemplateProcessing("$A $A", special_tokens=[])])},
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_rules_that_grow_a_text_out_of_memory_are_refused(name: str):
    made = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    for slot, step in BOMBS[name].items():
        setattr(made, slot, step)
    with pytest.raises(DamagedFile, match=r"times as long|rules, the most"):
        Tokenizer.from_json(made.to_str())


def test_a_bomb_is_refused_before_added_tokens_are_normalized():
    made = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    made.add_tokens([tokenizers.AddedToken("a", normalized=True)])
    plain = json.loads(made.to_str())
    rule = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    plain["normalizer"] = {"type": "Sequence", "normalizers": 60 * [rule]}
    with pytest.raises(DamagedFile, match="times as long"):
        Tokenizer.from_json(json.dumps(plain))


def test_pieces_of_length_zero_and_huge_tokens_are_refused(capfd: pytest.CaptureFixture[str]):
    plain = json.loads(tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, [])).to_str())
    with pytest.raises(DamagedFile, match="length 0"):
        Tokenizer.from_json(json.dumps({**plain, "pre_tokenizer": {"type": "FixedLength", "length": 0}}))
    model = {**plain["model"], "vocab": {"a" * 10_001: 0}}
    with pytest.raises(DamagedFile, match="a token of 10,001 characters"):
        Tokenizer.from_json(json.dumps({**plain, "model": model}))
    assert capfd.readouterr().err == ""  # no panic of the library


def test_a_size_that_the_trainer_would_allocate_at_once_is_refused():
    for kind in (BPE, Unigram, WordPiece, Word):
        with pytest.raises(InputError, match=r"at most 1,000,000"):
            kind(size=10**12)
    with pytest.raises(InputError, match=r"sentinels = 1,000,000,000"):
        Byte(sentinels=10**9).train([])


def test_a_wordpiece_limit_with_quadratic_time_is_refused():
    made = tokenizers.Tokenizer.from_str(WordPiece(size=11).train(["ab ba"] * 9).to_json())
    made.model = models.WordPiece(made.get_vocab(), unk_token="<unk>", max_input_chars_per_word=10**6)
    with pytest.raises(DamagedFile, match="max_input_chars_per_word"):
        Tokenizer.from_json(made.to_str())
