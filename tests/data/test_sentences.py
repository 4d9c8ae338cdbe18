"""The sentence splitter: lossless, the rules of each language, hostile input; and pieces that fit a model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import abbreviations
from regard.data.sentences import split_sentences, split_to_fit
from regard.errors import InputError

SENTENCES: dict[str, list[list[str]]] = {
    "en": [
        ["Dr. Smith went to Washington.", "He met J. R. R. Tolkien at 5 p.m.", "It was late."],
        ['He said "Really?" and left.', '"Yes!"', "Then he went (at last.)", "Bye."],
        ["It costs 3.50 dollars... maybe.", "Visit https://a.b/c.html?x=1. ", "Mail a.b@c.org, or v1.2.3 of it."],
        ["1. First point.", "2. Second point.", "B. Third."],
        ["So do I.", "He left."],
        ["The U.S. Army came, e.g. Bob, etc.", "Then the U.S.", "The end."],
        ["No.", "I see No. 5 on p. 12.", "Wait...", "What?!", "Wait . . . what?"],
        ["hello there.", "how are you?"],
        ["Yes .", "No ."],
    ],
    "de": [
        [
            "Am 3. Mai 2020 kam Hr. Müller z. B. nach Berlin.",
            "Er blieb bis 2021.",
            "Dann ging er am 12.",
            "Dann kam er.",
        ],
        ["„Komm!“ rief er.", "„Nein.“", "Sie ging usw.", "Das ist bzw. war gut."],
        ["Im 19. Jahrhundert u.a. Goethe.", "Siehe S. 5."],
    ],
    "fr": [["« Vraiment ? » demanda-t-il.", "M. Dupont arriva.", "« Oui ! »", "Il a 3,5 ans, p.ex. Luc."]],
    "es": [["¿Qué tal?", "¡Bien!", "El Sr. López llegó.", "«Sí.»", "Adiós."]],
    "it": [["Il dott. Rossi è qui.", "Ecco pane, ecc.", "Poi basta!"]],
    "pt-BR": [["O Sr. Silva saiu.", "A Dra. Ana ficou."]],
    "nl": [["Dhr. Jansen komt bijv. Maandag.", "De rest enz.", "Het is goed."]],
    "pl": [["Prof. Nowak przyszedł 3. Maja.", "To np. Kot.", "Tak."]],
    "cs": [["Přišel Ing. Novák 5. Května.", "Je to např. Praha.", "Ano?"]],
    "ru": [["А. С. Пушкин родился в г. Москве.", "Он жил давно и т.д.", "Потом умер."]],
    "uk": [["Проф. Шевченко жив на вул. Садовій.", "Так!"]],
    "tr": [["3. Bölüm bitti.", "Sn. Ali geldi."]],
    "el": [["Τι κάνεις;", "Καλά· εσύ;", "Ο κ. Παπάς ήρθε."]],
    "ar": [["كيف حالك؟", "أنا بخير.", "شكرا!"]],
    "ur": [["یہ ہے۔", "وہ تھا۔"]],
    "hi": [["यह है।", "डॉ. राम आए।", "वह था।"]],
    "zh": [["你好！", "“走吧。”", "他说3.5元。", "再见。"]],
    "ja": [["「行く。」と言った。", "本当？", "はい！"]],
    "ko": [["안녕하세요.", "반갑습니다!"]],
}
UNSPACED = ("zh", "ja")


@pytest.mark.parametrize(
    ("language", "sentences"), [(language, row) for language, rows in SENTENCES.items() for row in rows]
)
def test_a_text_is_split_into_its_sentences(language: str, sentences: list[str]):
    text = ("" if language in UNSPACED else " ").join(sentence.strip() for sentence in sentences)
    assert [piece.strip() for piece in split_sentences(text, language)] == [sentence.strip() for sentence in sentences]


def test_white_space_belongs_to_the_sentence_before_it():
    assert split_sentences("  One.  Two.\n\nThree \n", "en") == ["  One.  ", "Two.\n\n", "Three \n"]
    assert split_sentences("A line\nanother", "en") == ["A line\n", "another"]
    assert split_sentences("", "en") == []
    assert split_sentences(" \n ") == [" \n "]


def test_without_a_language_the_abbreviations_of_all_are_known():
    assert split_sentences("Mme. Curie und Hr. Ohm. Dr. X came.") == ["Mme. Curie und Hr. Ohm. ", "Dr. X came."]
    assert split_sentences("Dr. X came. It works.", "xx")[0] == "Dr. "


def test_abbreviations_are_written_as_the_splitter_compares_them():
    for table in (abbreviations.ABBREVIATIONS, abbreviations.MAY_END, abbreviations.BEFORE_NUMBERS):
        for words in table.values():
            assert [word for word in words.split() if word != word.lower() or word.endswith(".")] == []


@settings(max_examples=300, deadline=None)
@given(
    st.text(st.sampled_from("aB1.!?…。！» «“”'\"()\n\t ,;:-Drzé한") | st.characters(), max_size=60),
    st.sampled_from([None, *SENTENCES]),
)
def test_nothing_is_lost(text: str, language: str | None):
    pieces = split_sentences(text, language)
    assert "".join(pieces) == text
    assert all(piece.strip() for piece in pieces) or len(pieces) == 1
    fitting = split_to_fit(text, len, 7, language)
    assert "".join(fitting) == text
    assert all(0 < len(piece) <= 7 for piece in fitting)


# A quadratic splitter would take hours for any of these.
HOSTILE = [
    ".",
    ".a",
    ". ",
    "a. ",
    "A. ",
    ". (",
    '."',
    ".\n",
    "\n",
    " ",
    "1.",
    "!",
    "“",
    "。",
    ". »",
    "x",
    ", ",
    "a, b; ",
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_a_megabyte_of_anything_is_split(unit: str):
    text = unit * (1_000_000 // len(unit) // (1 if len(unit) == 1 else 4))
    assert "".join(split_sentences(text, "fr")) == text
    assert "".join(split_to_fit(text, lambda piece: len(piece.split()), 50)) == text


def words(text: str) -> int:
    return len(text.split())


def test_a_sentence_that_fits_stays_whole_and_sentences_are_not_put_together():
    assert split_to_fit("One two. Three, four; five.", words, 3, "en") == ["One two. ", "Three, four; five."]


def test_a_long_sentence_is_cut_at_the_best_place_that_fits():
    text = "one two, three four; five six: seven eight nine ten, eleven"
    assert split_to_fit(text, words, 4) == ["one two, three four; ", "five six: ", "seven eight nine ten, ", "eleven"]
    assert split_to_fit("a b c d e f g", words, 3) == ["a b c ", "d e f ", "g"]
    assert split_to_fit("12,5 und 1:3", words, 2) == ["12,5 und ", "1:3"]
    assert split_to_fit("甲乙，丙丁、戊己", len, 3) == ["甲乙，", "丙丁、", "戊己"]
    assert split_to_fit("abcdefgh", len, 3) == ["abc", "def", "gh"]


def test_every_piece_holds_as_much_as_fits():
    text = " ".join(str(number) for number in range(100))
    pieces = split_to_fit(text, words, 30)
    assert [words(piece) for piece in pieces] == [30, 30, 30, 10]


def test_a_character_that_never_fits_is_a_piece_of_its_own():
    assert split_to_fit("ab", lambda piece: 10 * len(piece), 5) == ["a", "b"]
    with pytest.raises(InputError, match="1 token or more, got 0"):
        split_to_fit("ab", len, 0)


def test_few_pieces_are_counted():
    counted: list[str] = []

    def count(piece: str) -> int:
        counted.append(piece)
        return words(piece)

    text = "word " * 20_000
    split_to_fit(text, count, 100)
    assert sum(map(len, counted)) < 30 * len(text)
