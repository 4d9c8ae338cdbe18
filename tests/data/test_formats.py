"""File formats of a corpus: each gives the same texts and lines, cached or not."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import subprocess
from pathlib import Path

import pytest

from regard.data.read import texts
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus, concatenate_corpora, read_corpus, read_lines
from regard.data.read.tables import choose_fields, read_objects
from regard.data.read.texts import ReadOptions, StoredTexts, byte_lengths, text_parts
from regard.data.tasks.translation import Translation
from regard.data.tokenize.train import Character, train_tokenizers
from regard.errors import DamagedFile, InputError

PAIRS = [("Ein Hund.", "A dog."), ("", "nothing"), ("zwei\u2028Katzen", "two cats"), ("drei", "three")]


@pytest.fixture(params=["memory", "cached"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache" if request.param == "cached" else None)


def pairs(corpus: Corpus) -> list[tuple[str, str]]:
    assert corpus.targets is not None
    return list(zip(corpus.sources, corpus.targets))


def write(path: Path, content: bytes) -> str:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_every_format_of_pairs_gives_the_same_pairs(tmp_path: Path, cache: Cache, ending: str) -> None:
    sides = ["".join(f"{pair[side]}\n" for pair in PAIRS).encode() for side in (0, 1)]
    write(tmp_path / f"t.de{ending}", sides[0])
    write(tmp_path / f"t.en{ending}", sides[1])
    tabs = "".join(f"{one}\t{other}\n" for one, other in PAIRS).encode()
    named = "".join(json.dumps({"source": one, "target": other, "x": 1}) + "\n" for one, other in PAIRS).encode()
    nested = "".join(
        json.dumps({"translation": {"de": one, "en": other}}, ensure_ascii=False) + "\n" for one, other in PAIRS
    ).encode()
    for pattern in (
        f"{tmp_path}/t.{{de,en}}{ending}",
        write(tmp_path / f"t.tsv{ending}", tabs),
        write(tmp_path / f"named.jsonl{ending}", named),
        write(tmp_path / f"nested.jsonl{ending}", nested),
    ):
        for _ in range(2):  # the second time from the cache
            assert pairs(read_corpus(pattern, cache=cache)) == PAIRS


@pytest.mark.parametrize("name", ["t.tsv", "t.jsonl"])
def test_the_two_sides_of_one_file_are_cached_separately(tmp_path: Path, cache: Cache, name: str) -> None:
    lines = b"hund\tdog\n" if name == "t.tsv" else b'{"source": "hund", "target": "dog"}\n'
    corpus = read_corpus(write(tmp_path / name, lines), cache=cache)
    both = train_tokenizers(Character(joint=False), corpus, cache)
    assert both[1] is not None
    assert both[0].digest != both[1].digest
    batch = Translation().samples(corpus, both, cache).batch([0])
    assert both[0].decode(batch.inputs["source_ids"][0].tolist()) == "hund"
    assert both[1].decode(batch.inputs["ids"][0].tolist()) == "dog"


def test_a_folder_of_json_lines_is_all_its_files(tmp_path: Path, cache: Cache) -> None:
    folder = tmp_path / "books"
    folder.mkdir()
    write(folder / "a.jsonl", b'{"text": "one"}\r\n\r\n{"text": "second"}')
    write(folder / "b.jsonl.gz", b'{"text": "drei"}\n')
    assert list(read_corpus(str(folder), cache=cache).sources) == ["one", "second", "drei"]
    write(folder / "c.jsonl", b'{"source": "a", "target": "b"}')
    with pytest.raises(InputError, match=r"c\.jsonl: it has a text where .* pairs"):
        read_corpus(str(folder), cache=cache)
    write(folder / "README.md", b"about this")
    with pytest.raises(InputError, match="files of several formats"):
        read_corpus(str(folder), cache=cache)


def test_folders_pair_file_by_file(tmp_path: Path, cache: Cache) -> None:
    for side, counts in (("de", (3, 2)), ("en", (2, 3))):
        (tmp_path / side).mkdir()
        for number, count in enumerate(counts):
            write(tmp_path / side / f"{number}.txt", b"x\n" * count)
    with pytest.raises(InputError, match="file by file"):
        read_corpus(f"{tmp_path}/{{de,en}}", cache=cache)
    for number, count in enumerate((3, 2)):
        write(tmp_path / "en" / f"{number}.txt", b"y\n" * count)
    assert pairs(read_corpus(f"{tmp_path}/{{de,en}}", cache=cache)) == [("x", "y")] * 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("0", "1"), r'^"0" is no number of a column \(text\.fields\)'),
        (("de", "en"), r't\.tsv line 1 names no column "de" \(text\.fields\)\. Known: a, b\.$'),
        (("²", "1"), r't\.tsv line 1 names no column "²"'),
        ((), r"^0 fields were named \(text\.fields\)"),
        (("1", "2", "3", "4"), r"^4 fields were named \(text\.fields\)"),
    ],
)
def test_a_field_that_is_no_column_is_refused(
    tmp_path: Path, cache: Cache, fields: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_corpus(write(tmp_path / "t.tsv", b"a\tb\n"), ReadOptions(fields=fields), cache)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("name", ["t.tsv", "t.tsv.gz"])
def test_a_header_is_no_text(tmp_path: Path, cache: Cache, ending: bytes, name: str) -> None:
    reading = ReadOptions(fields=("en", "de"), bad_utf8="skip")
    lines = [b"\xef\xbb\xbfde\tx\ten", b"Hund\t1\tdog", b"\xff\t2\tcat", b"Kuh\t3\tcow\r"]
    corpus = read_corpus(write(tmp_path / name, ending.join(lines)), reading, cache)
    assert pairs(corpus) == [("dog", "Hund"), ("", ""), ("cow\r", "Kuh")]
    assert (sorted(corpus.bad_utf8), len(corpus)) == ([1], 3)
    assert corpus.where([0, 2]) == f"{tmp_path}/{name}:2, 4"
    with pytest.raises(InputError, match=r"line 3 has 1 columns"):
        read_corpus(write(tmp_path / "u.tsv", b"de\ten\na\tb\nc\n"), reading, cache)
    with pytest.raises(InputError, match=r"v\.tsv has 0 lines"):
        read_corpus(write(tmp_path / "v.tsv", b"de\ten\n"), reading, cache)


@pytest.mark.parametrize("fields", [("de", "en"), ("de", "de", "en")])
def test_each_file_of_a_folder_has_its_own_header(tmp_path: Path, cache: Cache, fields: tuple[str, ...]) -> None:
    (tmp_path / "f").mkdir()
    write(tmp_path / "f" / "a.tsv", b"de\ten\r\nHund\tdog\r\nKuh\tcow\r\n")
    write(tmp_path / "f" / "b.tsv", b"en\tde\ncat\tKatze\n")
    corpus = read_corpus(str(tmp_path / "f"), ReadOptions(fields=fields), cache)
    source = (lambda word: word) if len(fields) == 2 else (lambda word: f"{word}\t{word}")
    assert pairs(corpus) == [(source("Hund"), "dog"), (source("Kuh"), "cow"), (source("Katze"), "cat")]


def test_fields_select_columns_and_keys(tmp_path: Path, cache: Cache) -> None:
    path = write(tmp_path / "t.tsv", b"1\tHund\tdog\tx\n2\tKatze\tcat\ty\n")
    assert pairs(read_corpus(path, ReadOptions(fields=("2", "3")), cache)) == [("Hund", "dog"), ("Katze", "cat")]
    assert pairs(read_corpus(path, ReadOptions(fields=("4", "1")), cache)) == [("x", "1"), ("y", "2")]
    lines = write(tmp_path / "t.jsonl", b'{"de": "Hund", "en": "dog"}\n\n{"de": "Katze", "en": "cat"}')
    assert pairs(read_corpus(lines, ReadOptions(fields=("en", "de")), cache)) == [("dog", "Hund"), ("cat", "Katze")]
    assert list(read_corpus(lines, ReadOptions(fields=("en",)), cache).sources) == ["dog", "cat"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.tsv", b"a\tb\nc\n", r"line 2 has 1 columns, .*text\.fields"),
        ("t.tsv", b"a\tb\tc\n", r"line 1 has 3 columns"),
        ("t.jsonl", b'{"text": "a"}\nnot json\n', r"line 2: not JSON"),
        ("t.jsonl", b'{"text": "a"}\n[1]\n', r"line 2: not an object"),
        ("t.jsonl", b'{"text": "a \\ud83d"}\n', r"line 1: an unpaired surrogate \(U\+D83D\)"),
        ("t.jsonl", b'{"source": "a", "target": "b"}\n{"source": "a"}\n', r'line 2: no text under "target"'),
    ],
)
def test_a_malformed_line_is_located(tmp_path: Path, cache: Cache, name: str, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_corpus(write(tmp_path / name, content), cache=cache)


@pytest.mark.parametrize(
    "content",
    [b"plain text", gzip.compress(b"x" * 1000, mtime=0)[:-9], b"\x1f\x8b\x08\0damaged"],
    ids=["plain", "cut off", "damaged"],
)
def test_a_broken_gzip_is_an_error(tmp_path: Path, cache: Cache, content: bytes) -> None:
    (tmp_path / "t.txt.gz").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"t\.txt\.gz cannot be decompressed: .* name it without \.gz"):
        read_corpus(str(tmp_path / "t.txt.gz"), cache=cache)


def test_a_folder_is_its_files_in_order(tmp_path: Path, cache: Cache) -> None:
    folder = tmp_path / "books"
    (folder / "b").mkdir(parents=True)
    write(folder / "b" / "2.txt", b"\xef\xbb\xbfsecond\r\nbook\r\n")
    write(folder / "a.txt.gz", b"first\n\nbook")
    (folder / ".hidden").write_bytes(b"no")
    assert list(read_corpus(str(folder), cache=cache).sources) == ["first\n\nbook", "second\nbook\n"]
    lines = read_corpus(str(folder), ReadOptions("line"), cache)
    assert list(lines.sources) == ["first", "", "book", "second", "book"]
    assert list(read_corpus(str(folder), ReadOptions("paragraph"), cache).sources) == ["first", "book", "second\nbook"]


def test_standard_input_is_a_file(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Hund\tdog\nKatze\tcat\n")))
    found = read_corpus("-", cache=cache)
    assert pairs(found) == [("Hund", "dog"), ("Katze", "cat")]
    assert found.where([1]) == "standard input:2"
    lines = gzip.compress(b'{"text": "one"}\n{"text": "two"}\n')
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert list(read_corpus("-", cache=cache).sources) == ["one", "two"]


def test_a_broken_gzip_on_standard_input_is_an_error(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\x1f\x8b\x08garbage")))
    with pytest.raises(DamagedFile, match="cannot be decompressed"):
        read_corpus("-", cache=cache)


def test_texts_that_are_not_utf8_can_be_skipped(tmp_path: Path, cache: Cache) -> None:
    path = write(tmp_path / "t.txt", b"a\ncaf\xe9\nb\n\n\xff\nc\n")
    lines = read_corpus(path, ReadOptions("line", bad_utf8="skip"), cache)
    assert (list(lines.sources), sorted(lines.bad_utf8)) == (["a", "", "b", "", "", "c"], [1, 4])
    assert lines.sources[1] == ""
    paragraphs = read_corpus(path, ReadOptions("paragraph", bad_utf8="skip"), cache)
    assert (list(paragraphs.sources), sorted(paragraphs.bad_utf8)) == (["", ""], [0, 1])
    tabs = read_corpus(write(tmp_path / "t.tsv", b"a\tb\n\xe9\tc\n"), ReadOptions(bad_utf8="skip"), cache)
    assert sorted(tabs.bad_utf8) == [1]
    content = b'{"source": "\xe9", "target": "x"}\r\n{"source": "a\\r\\nb", "target": "y"}\r\n'
    objects = read_corpus(write(tmp_path / "t.jsonl", content), ReadOptions(bad_utf8="skip"), cache)
    assert (pairs(objects), sorted(objects.bad_utf8)) == ([("", ""), ("a\r\nb", "y")], [0])


def test_control_characters_can_be_stripped_and_no_line_moves(tmp_path: Path, cache: Cache) -> None:
    path = write(tmp_path / "t.txt", b"a\0b\n\x1c\x0bc\td\n\x07\nlast")
    lines = read_corpus(path, ReadOptions("line", control="strip"), cache)
    assert list(lines.sources) == ["ab", "c\td", "", "last"]
    assert isinstance(lines.sources, StoredTexts)
    assert lines.sources.stripped == 3
    with pytest.raises(InputError, match=r"line 1: NUL byte\. Lines affected: 1"):
        read_corpus(path, ReadOptions("line"), cache)


def test_long_texts_are_read_in_parts(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_BLOCK", 7)
    monkeypatch.setattr(texts, "_PART", 5)
    content = "é中 ab\r\n𝄞x y " * 40 + "\r\n"
    path = write(tmp_path / "t.txt", content.encode())
    corpus = read_corpus(path, cache=cache)
    expected = content.replace("\r\n", "\n")
    parts = [part for number, part in text_parts(corpus.sources) if number == 0]
    assert len(parts) > 20
    assert "".join(parts) == corpus.sources[0] == expected
    assert byte_lengths(corpus.sources).tolist() == [len(content.encode())]


def test_a_long_text_that_is_not_utf8_can_be_skipped(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_BLOCK", 7)
    folder = tmp_path / "books"
    folder.mkdir()
    write(folder / "1.txt", b"a good book\n")
    write(folder / "2.txt", b"a \xe9 bad one, and long")
    write(folder / "3.txt", b"short")
    corpus = read_corpus(str(folder), ReadOptions(bad_utf8="skip"), cache)
    found = ["".join(part for number, part in text_parts(corpus.sources) if number == book) for book in range(3)]
    assert found == list(corpus.sources) == ["a good book\n", "", "short"]


def test_the_block_size_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "ä中𝄞\n\nzwei\r\n".encode() * 30
    path = write(tmp_path / "t.txt", content)
    expected = read_lines(path)
    for size in range(1, 9):
        monkeypatch.setattr(texts, "_BLOCK", size)
        assert read_lines(path) == expected
        assert list(read_corpus(path).sources) == [content.decode()]


def test_the_cache_is_keyed_by_content(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    path = write(tmp_path / "t.txt", b"one\ntwo\n")
    first = read_corpus(path, ReadOptions("line"), cache)
    write(tmp_path / "t.txt", b"one\n2wo\n")
    second = read_corpus(path, ReadOptions("line"), cache)
    assert list(second.sources) == ["one", "2wo"]
    assert first.digest != second.digest
    write(tmp_path / "u.txt", b"one\n2wo\n")
    assert read_corpus(str(tmp_path / "u.txt"), ReadOptions("line"), cache).digest == second.digest


def test_lines_are_counted_as_wc_does_in_2000_files(tmp_path: Path) -> None:
    draw = random.Random(1)
    signs = [*"\n\n\r", "\r\n", *"\v\f\x1c\x85\u2028\u2029\ufeffaé ", "x" * 50]
    contents = ["".join(draw.choices(signs, k=draw.randrange(40))).encode() for _ in range(2000)]
    for number, content in enumerate(contents):
        (tmp_path / f"{number:04}").write_bytes(content)
    counted = subprocess.run(["wc", "-l", *sorted(str(p) for p in tmp_path.iterdir())], capture_output=True, text=True)
    agreed = 0
    for number, (line, content) in enumerate(zip(counted.stdout.splitlines(), contents)):
        expected = int(line.split()[0]) + (bool(content) and not content.endswith(b"\n"))
        agreed += len(read_lines(tmp_path / f"{number:04}")) == expected
    assert agreed == 2000


def test_concatenated_corpora_locate_their_lines(tmp_path: Path, cache: Cache) -> None:
    one = read_corpus(write(tmp_path / "a.tsv", b"a\tA\nb\tB\n"), cache=cache)
    other = read_corpus(write(tmp_path / "b.tsv", b"c\tC\n"), cache=cache)
    both = concatenate_corpora([(one, 2.0), (other, 1.0)])
    assert pairs(both) == [("a", "A"), ("b", "B"), ("c", "C")]
    assert [both.sources[i] for i in (0, 2, -1)] == ["a", "c", "c"]
    assert both.where([1, 2]) == f"{tmp_path}/a.tsv:2; {tmp_path}/b.tsv:1"
    assert [(part.texts, part.weight) for part in both.subcorpora] == [(2, 2.0), (1, 1.0)]
    plain = read_corpus(write(tmp_path / "c.txt", b"x\n"), cache=cache)
    with pytest.raises(InputError, match="are pairs, others are not"):
        concatenate_corpora([(one, 1.0), (plain, 1.0)])


QUOTED = [('Ein Hund, "gut"', "A dog"), ("zwei\nZeilen", "two\nlines"), ("drei\tTabs", "three; tabs"), ("vier", "4")]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv"])
@pytest.mark.parametrize("header", [None, ("german", "english")])
def test_a_table_with_quotes_and_line_ends_is_read(
    tmp_path: Path, cache: Cache, delimiter: str, name: str, header: tuple[str, str] | None
) -> None:
    text = io.StringIO()
    rows = csv.writer(text, delimiter="\t" if name == "t.tsv" else delimiter)
    rows.writerows([*([header] if header else []), *QUOTED])
    path = write(tmp_path / name, text.getvalue().encode())
    corpus = read_corpus(path, cache=cache)
    assert pairs(corpus) == QUOTED
    note = corpus.subcorpora[0].note
    assert ("header (german, english) and skipped" in note) == (header is not None)
    swapped = read_corpus(path, ReadOptions(fields=("english", "german") if header else ("2", "1")), cache)
    assert pairs(swapped) == [(target, source) for source, target in QUOTED]
    assert not swapped.subcorpora[0].note


def test_quotes_in_the_text_of_a_tsv_stay(tmp_path: Path, cache: Cache) -> None:
    lines = b'"Ja", sagte er.\tYes\n"Nein."\t"No."\nx\ty\n'
    found = pairs(read_corpus(write(tmp_path / "t.tsv", lines), cache=cache))
    assert found == [('"Ja", sagte er.', "Yes"), ('"Nein."', '"No."'), ("x", "y")]


@pytest.mark.parametrize(
    ("head", "skipped"),
    [
        ("de\ten", True), ("source\ttarget", True), ("Satz\tKlasse", True), ("Hi.\tHallo!", False),
        ("go\tgehen", False), ("1\t2", False),
    ],
)  # fmt: skip
def test_a_header_is_skipped_and_said(tmp_path: Path, cache: Cache, head: str, skipped: bool) -> None:
    labels = head == "Satz\tKlasse"
    rows = [(f"Satz {number}", ("ja", "nein")[number % 2] if labels else f"line {number}") for number in range(99)]
    path = write(tmp_path / "t.tsv", "\n".join([head, *map("\t".join, rows)]).encode())
    corpus = read_corpus(path, cache=cache)
    assert pairs(corpus) == ([] if skipped else [tuple(head.split("\t"))]) + rows
    assert bool(corpus.subcorpora[0].note) == skipped
    assert corpus.where([0]) == f"{path}:{1 + skipped}"
    read = read_corpus(path, ReadOptions(fields=("1", "2")), cache)
    assert len(read) == 100
    assert ("looks like a header" in read.subcorpora[0].note) == skipped


def test_one_column_is_texts_and_many_must_be_chosen(tmp_path: Path, cache: Cache) -> None:
    assert list(read_corpus(write(tmp_path / "t.csv", b'text\n"a, b"\nc\n'), cache=cache).sources) == ["a, b", "c"]
    path = write(tmp_path / "u.csv", b"id,de,en\n1,Hund,dog\n2,Katze,cat\n")
    with pytest.raises(InputError, match=r'u\.csv line 1 has 3 columns, .*id \("1"\), de \("Hund"\).*text\.fields'):
        read_corpus(path, cache=cache)
    assert pairs(read_corpus(path, ReadOptions(fields=("de", "en")), cache)) == [("Hund", "dog"), ("Katze", "cat")]
    assert pairs(read_corpus(path, ReadOptions(fields=("de", "en", "id")), cache))[0] == ("Hund\tdog", "1")
    with pytest.raises(InputError, match=r'names no column "fr"'):
        read_corpus(path, ReadOptions(fields=("de", "fr")), cache)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'a,b\n"c,d\n', r"line 2: a quote is opened and not closed"),
        (b'a,b\n"c" d,e\n', r"line 2: a quote inside a quoted cell must be doubled"),
        (b"a,b\nc,d\ne\n", r"line 3 has 1 columns, a pair has 2"),
        (b"a,b\n\xff,d\n", r"line 2, byte 1: 0xFF is not UTF-8"),
    ],
)
def test_a_malformed_csv_is_located(tmp_path: Path, cache: Cache, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_corpus(write(tmp_path / "t.csv", content), cache=cache)


def test_rows_of_a_csv_that_are_not_utf8_can_be_skipped(tmp_path: Path, cache: Cache) -> None:
    path = write(tmp_path / "t.csv", b'de,en\nx,y\n"a\n\xff",b\nc,d\n')
    corpus = read_corpus(path, ReadOptions(bad_utf8="skip"), cache)
    assert sorted(corpus.bad_utf8) == [1]
    assert pairs(corpus) == [("x", "y"), ("", ""), ("c", "d")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.xlsx", b"PK\x03\x04", "t.xlsx is a spreadsheet, not text. Save it as CSV"),
        ("t.docx", b"PK\x03\x04", "t.docx is a word processor's document, not text. Save it as plain text"),
        ("t.pdf", b"%PDF-1.7", "t.pdf is a PDF, not text. Extract its text: pdftotext"),
        ("t.txt", b"%PDF-1.7 ...", "t.txt is a PDF, not text"),
        ("t.zip", b"PK\x03\x04", "t.zip is an archive, not text. Unpack it"),
        ("t.txt", b"PAR1", "t.txt is a binary table, not text"),
    ],
)
def test_a_document_that_is_no_text_is_named(
    tmp_path: Path, cache: Cache, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        read_corpus(write(tmp_path / name, content), cache=cache)


def test_fields_of_plain_text_are_refused(tmp_path: Path, cache: Cache) -> None:
    with pytest.raises(InputError, match=r"is plain text, which has no columns \(text\.fields\)"):
        read_corpus(write(tmp_path / "t.txt", b"a\n"), ReadOptions(fields=("de", "en")), cache)


def test_a_comma_without_quotes_does_not_cut_a_text_in_two(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("en,de\nGood morning to you,Guten Morgen\nWell, good night,Gute Nacht\n")
    with pytest.raises(InputError, match=r'line 3: it has 3 cells, the first line 2; a text with ","'):
        read_corpus(str(path), ReadOptions(fields=("en", "de")))
    path.write_text("en,de\nGood morning to you,Guten Morgen\nGood night,Gute Nacht,,\n")
    assert len(read_corpus(str(path), ReadOptions(fields=("en", "de")))) == 2


def test_a_json_line_that_lacks_a_key_is_named_and_does_not_change_the_task(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"de": "ja", "en": "yes"}\n' * 20 + '{"de": "nein"}\n')
    found = read_objects(path)
    assert found is not None
    assert choose_fields(found) == ("de", "en")
    with pytest.raises(InputError, match=r'line 21: no text under "en"'):
        read_corpus(str(path), ReadOptions(fields=choose_fields(found)))
