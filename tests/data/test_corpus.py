"""Corpora and text files: lines, errors with location and remedy, digests, embedded corpora."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard.data.read import texts
from regard.data.read.corpus import Corpus, embedded_corpus, pair_paths, read_corpus, read_lines
from regard.data.read.texts import ReadOptions, cut_text, read_text
from regard.errors import InputError

ODD = st.text(
    st.one_of(st.sampled_from("\n\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\ufeff a"), st.characters(codec="utf-8"))
)
WITHOUT_NUL = ODD.map(lambda text: text.replace("\0", ""))
Write = Callable[[str, bytes], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes bytes to a file of the name given, inside an empty folder that is also the current one."""
    monkeypatch.chdir(tmp_path)

    def write_file(name: str, content: bytes) -> str:
        Path(name).write_bytes(content)
        return name

    return write_file


def counted_by_wc(path: Path) -> int:
    """What `wc -l` says, and one more for a last line without its newline."""
    count = int(subprocess.run(["wc", "-l", path], capture_output=True, check=True).stdout.split()[0])
    content = path.read_bytes()
    return count + bool(content and not content.endswith(b"\n"))


@settings(deadline=None)
@given(text=WITHOUT_NUL)
@example(text="")
@example(text="\n")
@example(text="a\r\nb\r\n")
@example(text="\ufeff")
def test_lines_are_counted_as_wc_counts_them(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "counted.txt"
    path.write_bytes(text.encode())
    assert len(read_lines(path)) == counted_by_wc(path)


@given(text=WITHOUT_NUL)
@example(text="\ufeffa\n\ufeffb\n")
@example(text="\ufeffa\r\nb\r\n")
def test_joined_lines_are_the_file_without_byte_order_mark_and_crlf(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "joined.txt"
    path.write_bytes(text.encode())
    expected = text.removeprefix("\ufeff")
    ends = expected.count("\n")
    if ends and expected.count("\r\n") == ends:
        expected = expected.replace("\r\n", "\n")
    assert read_text(path) == expected
    assert "\n".join(read_lines(path)) == expected.removesuffix("\n")


def test_a_carriage_return_stays_unless_every_line_has_one(write: Write) -> None:
    assert read_lines(write("mixed", b"a\r\nb\nc\r\n")) == ["a\r", "b", "c\r"]
    assert read_lines(write("all", b"a\r\nb\r\nc")) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"fine\ncaf\xe9 au lait\n",
            "train.en line 2, byte 4: 0xE9 is not UTF-8 (looks like Latin-1). Convert: iconv -f latin1 -t UTF-8 "
            '< train.en > utf8.txt. Or skip such lines in training: text.bad_utf8 = "skip".',
        ),
        (
            b"\xef\xbb\xbfa \x93quote\x94",
            "train.en line 1, byte 6: 0x93 is not UTF-8 (looks like Windows-1252). Convert: iconv -f cp1252 -t UTF-8 "
            '< train.en > utf8.txt. Or skip such lines in training: text.bad_utf8 = "skip".',
        ),
        (
            "hallo\n".encode("utf-16"),
            "train.en looks like UTF-16 (BOM FF FE). Convert: iconv -f UTF-16 -t UTF-8 < train.en > utf8.txt.",
        ),
        (
            b"\xfe\xff\0h",
            "train.en looks like UTF-16 (BOM FE FF). Convert: iconv -f UTF-16 -t UTF-8 < train.en > utf8.txt.",
        ),
        (
            b"\x1f\x8b\x08\0",
            "train.en is gzip (1F 8B). Rename it to end in .gz, or decompress it: gzip -dc < train.en > plain.txt.",
        ),
        (
            b"a\nb\0c\n",
            "train.en line 2: NUL byte. Lines affected: 1. Remove it: tr -d '\\000' < train.en > clean.txt. "
            'Or strip it in training: text.control = "strip". '
            "If every line has one, the file is UTF-16: iconv -f UTF-16LE -t UTF-8 < train.en > utf8.txt.",
        ),
    ],
)
def test_text_that_is_not_utf8_is_refused_with_its_location_and_a_remedy(
    write: Write, content: bytes, message: str
) -> None:
    write("train.en", content)
    for read in (read_lines, read_text):
        with pytest.raises(InputError) as caught:
            read("train.en")
        assert str(caught.value) == message


@given(offset=st.integers(0, 29), byte=st.sampled_from([0x80, 0xC0, 0xE9, 0xFF]))
def test_a_bad_byte_is_located_by_line_and_byte(
    offset: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(b"abcdefghi\n" * 3)
    content[offset] = byte
    path = tmp_path_factory.getbasetemp() / "bad.txt"
    path.write_bytes(content)
    line, before = content[:offset].count(b"\n") + 1, content[:offset].rpartition(b"\n")[2]
    with pytest.raises(InputError, match=f"line {line}, byte {len(before) + 1}: 0x{byte:02X} is not UTF-8"):
        read_lines(path)


def test_a_remedy_can_be_pasted_even_if_the_name_has_spaces(write: Write) -> None:
    with pytest.raises(InputError, match=r"UTF-8 < 'my file\.txt' > utf8\.txt"):
        read_lines(write("my file.txt", b"\xe9"))


def test_a_missing_file_is_named_with_the_current_directory_and_the_nearest_name(write: Write) -> None:
    write("train.en", b"a\n")
    with pytest.raises(InputError) as caught:
        read_lines("trian.en")
    assert str(caught.value) == (f'no such file: trian.en. Current directory is {Path.cwd()}. Did you mean "train.en"?')
    with pytest.raises(InputError, match=r"no such file: no/such/folder/x\. Current directory is \S+\.$"):
        read_lines("no/such/folder/x")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("x")
    with pytest.raises(InputError, match=r"has 0 lines\. Name a file that holds text"):
        read_corpus(str(tmp_path))


def test_a_giant_line_is_refused_before_it_is_read_but_may_be_a_document(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "MAX_LINE_BYTES", 9)
    write("x", b"012345678\n" + b"a" * 10 + b"\nb\n")
    with pytest.raises(InputError, match="x line 2 is longer than 9 bytes"):
        read_lines("x")
    assert list(read_corpus("x").sources) == ["012345678\naaaaaaaaaa\nb\n"]


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("data/train.{de,en}", ("data/train.de", "data/train.en")),
        ("{a,b}/x.txt", ("a/x.txt", "b/x.txt")),
        ("data/train.de", None),
        ("data/{a,b,c}", None),
        ("data/{a}", None),
    ],
)
def test_braces_with_two_names_are_two_paths(pattern: str, paths: tuple[str, str] | None) -> None:
    assert pair_paths(pattern) == (paths and tuple(map(Path, paths)))


def test_pairs_are_line_by_line(write: Write) -> None:
    write("t.de", "Hund\u2028 eins\n\nKatze\n".encode())
    write("t.en", b"dog\n\ncat")
    pairs = read_corpus("t.{de,en}")
    assert list(pairs.sources) == ["Hund\u2028 eins", "", "Katze"]
    assert pairs.targets is not None
    assert list(pairs.targets) == ["dog", "", "cat"]
    assert pairs.names == ("t.de", "t.en")
    assert len(pairs) == 3


def test_files_of_different_length_are_no_pairs(write: Write) -> None:
    write("t.de", b"x\n" * 1200)
    write("t.en", b"x\n" * 1199)
    with pytest.raises(InputError, match=r"^t\.de has 1,200 lines, t\.en 1,199: they must match\. "):
        read_corpus("t.{de,en}")


def test_one_file_is_one_document_or_its_lines_or_its_paragraphs(write: Write) -> None:
    write("x", b"a\nb\n\n \n\nc\n")
    assert list(read_corpus("x").sources) == ["a\nb\n\n \n\nc\n"]
    assert list(read_corpus("x", ReadOptions("line")).sources) == ["a", "b", "", " ", "", "c"]
    assert list(read_corpus("x", ReadOptions("paragraph")).sources) == ["a\nb", "c"]
    assert read_corpus("x").targets is None


@pytest.mark.parametrize("documents", ["file", "line", "paragraph"])
def test_an_empty_file_is_refused(write: Write, documents: texts.Documents) -> None:
    write("x", b"")
    with pytest.raises(InputError, match=r"^x has 0 lines\. Name a file that holds text\.$"):
        read_corpus("x", ReadOptions(documents))


def test_empty_pairs_are_refused(write: Write) -> None:
    write("x.a", b"")
    write("x.b", b"")
    with pytest.raises(InputError, match=r"^x\.a has 0 lines\."):
        read_corpus("x.{a,b}")


def test_where_counts_lines_from_one_and_joins_neighbours() -> None:
    texts = Corpus(["x"] * 100, None, ("data/train.de",))
    assert texts.where([19, 11, 14, 20, 21, 20]) == "data/train.de:12, 15, 20-22"
    assert texts.where([0]) == "data/train.de:1"
    assert texts.where(range(0, 100, 2)) == "data/train.de:1, 3, 5, 7, 9, 11 and 44 more"


def test_different_corpora_have_different_digests() -> None:
    sides = [
        (["ab", "c"], None), (["a", "bc"], None), (["abc"], None), (["ab"], ["c"]), (["a"], ["bc"]), (["1\na"], None),
        (["ab", "c"], ["d", "e"]), (["ab", "d"], ["c", "e"]),
    ]  # fmt: skip
    digests = [Corpus(sources, targets, ("x",)).digest for sources, targets in sides]
    assert len(set(digests)) == len(sides)


def test_the_digest_depends_only_on_the_text() -> None:
    program = "from regard.data.read.corpus import Corpus; print(Corpus(['ä', 'b'], ('c', 'd'), ('x',)).digest)"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert Corpus(("ä", "b"), ["c", "d"], ("another name",)).digest == other


def test_dates_are_pairs_grouped_by_language_and_number_of_dates() -> None:
    dates = embedded_corpus("dates", "valid")
    assert dates.targets is not None
    assert len(dates) == len(dates.targets) == len(dates.groups["language"]) == len(dates.groups["dates"])
    assert dates.groups["dates"] == [str(len(target.split())) for target in dates.targets]
    assert dates.where([0]) == "dates:1"


def test_python_has_one_document_per_file() -> None:
    python = embedded_corpus("python", "valid")
    assert python.targets is None
    assert len(python) > 10
    assert python.names == ("python",)


def test_an_unknown_corpus_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match=r'no embedded corpus is called "pyton".*Did you mean "python"'):
        embedded_corpus("pyton", "train")


@given(st.text(st.sampled_from("ab \n\t\u00a0."), max_size=200))
def test_a_text_cut_in_parts_is_whole_and_cut_only_before_a_space(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "_PART", 10)
        parts = list(cut_text(text))
    assert "".join(parts) == text
    for before, after in itertools.pairwise(parts):
        assert len(before) >= 10
        assert not before[-1].isspace()
        assert after[0] in " \n"


def test_reading_text_needs_no_torch() -> None:
    program = "import sys, regard.data.read.corpus, regard.data.tokenize.tokenizer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
