"""Word offsets and word ids, which alignments count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenize.tokenizer import word_ids, word_offsets


def words(text: str) -> list[str]:
    return [text[start:end] for start, end in word_offsets(text)]


@given(st.text(), st.text())
def test_a_text_with_spaces_has_the_words_of_split(one: str, other: str):
    text = f"a{one} {other}a"
    assert words(text) == text.split()


@given(st.text())
def test_no_visible_character_is_lost(text: str):
    assert "".join(words(text)) == "".join(text.split())


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
    assert words(text) == cut


def test_a_token_belongs_to_the_word_of_its_first_visible_character():
    text = "ab  cd e"
    spans = [(0, 1), (1, 2), (2, 3), (3, 5), (5, 6), (6, 7), (6, 8), (3, 8), (2, 2)]
    assert word_ids(text, spans) == [0, 0, -1, 1, 1, -1, 2, 1, -1]
