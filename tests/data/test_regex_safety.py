"""Regex safety: patterns of a tokenizer.json that can backtrack catastrophically are refused."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import _WORDS, _WORDS_AND_DIGITS, WordPiece
from regard.errors import DamagedFile

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
SAFE = [GPT2, GPT4, CLIP, _WORDS, _WORDS_AND_DIGITS, " {2,}", "^ | $", r"\S{1,64}", r"[0-9][0-9][0-9]", r"\s+", "."]
UNSAFE = [
    r"(a+)+$", r"(a|a)*b", r"(a|aa)+$", r"(\w+\s?)*$", r"(?:a{1,64}){1,64}b", r"a*a*a*a*b", r"a+b", r"\s+$", r"a+(?=b)",
    r"(.*)*x", r"(a)\1+b", r"a?a?a?a?a?a?a?a?b", r"a+(?![ab])", r"a+?b", r".*.*=", r"([a-z]+)*@", "a" * 1001,
    "a{50000,}", "[" + r"\p{L}" * 40 + "]+b+c", 4 * ("(?:" + "|".join(55 * ["."]) + ")") + "$",
]  # fmt: skip


def tokenizer(where: str, pattern: str) -> str:
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
        Tokenizer.from_json(tokenizer(where, pattern))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pattern", SAFE)
def test_patterns_of_known_tokenizers_are_safe(pattern: str):
    made = Tokenizer.from_json(tokenizer("split", pattern))
    for text in ("a" * 100_000, " " * 100_000, "a b" * 30_000, "'" * 100_000, "\n " * 50_000 + "x", "é́" * 50_000):
        made.encode(text)  # a pattern that backtracks would take minutes


def test_replacements_that_grow_a_text_exponentially_are_refused():
    made = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    made.normalizer = normalizers.Sequence(40 * [normalizers.Replace("a", "aa")])
    with pytest.raises(DamagedFile, match="times as long"):
        Tokenizer.from_json(made.to_str())


def test_a_wordpiece_limit_with_quadratic_time_is_refused():
    made = tokenizers.Tokenizer.from_str(WordPiece(size=11).train(["ab ba"] * 9).to_json())
    made.model = models.WordPiece(made.get_vocab(), unk_token="<unk>", max_input_chars_per_word=10**6)
    with pytest.raises(DamagedFile, match="max_input_chars_per_word"):
        Tokenizer.from_json(made.to_str())
