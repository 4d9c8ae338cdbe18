"""Held-out text: a share of the training text, kept apart by content."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest

from regard.config.recipe import Text, Weighted
from regard.data.corpora import Split
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.errors import InputError

SPLITS: tuple[Split, ...] = ("train", "valid", "test")


@pytest.fixture(params=["memory", "cached"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache" if request.param == "cached" else None)


def read(text: Text, cache: Cache) -> dict[str, Corpus]:
    found = {split: text.read(split, cache) for split in SPLITS}
    return {split: corpus for split, corpus in found.items() if corpus is not None}


def write_pairs(path: Path, count: int = 2000) -> list[tuple[str, str]]:
    """Pairs of which many sources occur more than once: with other targets, cases and spaces."""
    draw = random.Random(1)
    words = [f"wort{number}" for number in range(count // 3)]
    rows = [(draw.choice([word, word.upper(), f"{word} "]), f"word {number}") for number, word in
            enumerate(draw.choices(words, k=count))]  # fmt: skip
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    return rows


def test_every_text_is_in_one_split_and_no_source_is_in_two(tmp_path: Path, cache: Cache) -> None:
    rows = write_pairs(tmp_path / "t.tsv")
    parts = read(Text(str(tmp_path / "t.tsv"), 0.1, 0.05), cache)
    found = {split: list(zip(corpus.sources, corpus.targets or ())) for split, corpus in parts.items()}
    assert sorted(pair for several in found.values() for pair in several) == sorted(rows)
    assert 100 < len(found["valid"]) < 300 > 2 * len(found["test"]) > 60
    seen = [{source.strip().lower() for source, _ in several} for several in found.values()]
    assert not seen[0] & seen[1] | seen[0] & seen[2] | seen[1] & seen[2]
    again = read(Text(str(tmp_path / "t.tsv"), 0.1, 0.05), cache)
    assert [corpus.digest for corpus in again.values()] == [corpus.digest for corpus in parts.values()]
    assert len({corpus.digest for corpus in parts.values()}) == 3


def test_a_text_stays_in_its_split_when_others_are_added(tmp_path: Path, cache: Cache) -> None:
    write_pairs(tmp_path / "t.tsv")
    text = Text(str(tmp_path / "t.tsv"), 0.1)
    before = set(read(text, cache)["valid"].sources)
    with (tmp_path / "t.tsv").open("a") as file:
        file.write("".join(f"neu{number}\tnew\n" for number in range(500)))
    assert before < set(read(text, cache)["valid"].sources)


def test_held_out_lines_are_located(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "t.csv").write_text("de,en\n" + "".join(f"{number},x{number}\n" for number in range(300)))
    valid = read(Text(str(tmp_path / "t.csv"), 0.1), cache)["valid"]
    assert valid.where([3]) == f"{tmp_path}/t.csv:{int(valid.sources[3]) + 2}"


def test_parallel_files_and_several_corpora_are_split_alike(tmp_path: Path, cache: Cache) -> None:
    lines = [f"line {number}" for number in range(400)]
    (tmp_path / "t.de").write_text("".join(f"{line}\r\n" for line in lines))
    (tmp_path / "t.en").write_text("".join(f"{line} en\n" for line in lines))
    (tmp_path / "more.tsv").write_text("".join(f"{line}\t{line} more\n" for line in lines))
    whole = (f"{tmp_path}/t.{{de,en}}", Weighted(f"{tmp_path}/more.tsv", 2.5))
    parts = read(Text(whole, 0.1), cache)
    assert all(
        target.startswith(source) for source, target in zip(parts["valid"].sources, parts["valid"].targets or ())
    )
    assert not set(parts["train"].sources) & set(parts["valid"].sources)
    assert [part.weight for part in parts["train"].subcorpora] == [1, 2.5]
    assert [part.weight for part in parts["valid"].subcorpora] == [1, 1]


def test_of_a_book_the_end_is_held_out(tmp_path: Path, cache: Cache) -> None:
    lines = [f"line {number} of a book\r\n" for number in range(1000)]
    (tmp_path / "book.txt").write_bytes("".join(lines).encode())
    parts = read(Text(str(tmp_path / "book.txt"), 0.05, 0.1), cache)
    texts = [corpus.sources[0] for corpus in parts.values()]
    assert "".join(texts) == "".join(lines).replace("\r\n", "\n")
    assert [text.count("\n") for text in texts] == pytest.approx([850, 50, 100], abs=2)


def test_of_many_documents_whole_ones_are_held_out(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "f").mkdir()
    for number in range(60):
        (tmp_path / "f" / f"{number}.txt").write_text(f"document {number // 2}\n" * 9)
    parts = read(Text(str(tmp_path / "f"), 0.2), cache)
    assert {len(text) for corpus in parts.values() for text in corpus.sources} == {99, 108}
    assert not set(parts["train"].sources) & set(parts["valid"].sources)


def test_texts_that_are_not_utf8_stay_left_out(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "t.txt").write_bytes(b"".join(b"\xff%d\n" % n if n % 3 else b"ok %d\n" % n for n in range(300)))
    parts = read(Text(str(tmp_path / "t.txt"), 0.2, documents="line", bad_utf8="skip"), cache)
    for corpus in parts.values():
        assert [bool(text) for text in corpus.sources] == [n not in corpus.bad_utf8 for n in range(len(corpus))]
    assert sum(len(corpus.bad_utf8) for corpus in parts.values()) == 200


@pytest.mark.parametrize("share", [0.6, -0.1, 1.0])
def test_a_share_that_is_none_is_refused(tmp_path: Path, share: float) -> None:
    with pytest.raises(InputError, match=r"between 0 and 0\.5, got .* \(text\.valid\)"):
        Text(str(tmp_path), share)


def test_too_few_texts_built_in_corpora_and_music_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a\tb\n")
    with pytest.raises(InputError, match=r"no text is left for text\.\w+ of so few"):
        [Text(str(tmp_path / "t.tsv"), 0.5).read(split) for split in SPLITS]
    with pytest.raises(InputError, match=r'"dates" has splits of its own'):
        Text(corpus="dates", valid=0.1)
    with pytest.raises(InputError, match=r"has splits of its own"):
        Text(str(tmp_path / "music.json"), 0.1).read("train")


def test_standard_input_is_read_once_for_all_splits(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(f"{number}\tx{number}\n" for number in range(300))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    parts = read(Text("-", 0.1, 0.1), cache)
    assert sum(map(len, parts.values())) == 300
    assert len(parts) == 3
