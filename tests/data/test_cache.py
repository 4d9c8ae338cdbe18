"""The cache: unfinished tables of killed processes are removed; one that cannot be written says what to do."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.read.cache import Cache, Columns, Table
from regard.data.read.corpus import Corpus, read_corpus
from regard.data.read.report import report_on
from regard.data.read.split import HeldOut
from regard.data.read.texts import ReadOptions
from regard.data.samples import Samples
from regard.data.tasks.translation import Translation
from regard.data.tokenize.encode import encode_texts
from regard.data.tokenize.train import Character, Word, train_tokenizers
from regard.errors import DiskTrouble, InputError

LINES = ReadOptions("line")
TOKENIZER = Character().train(["line 0123456789"])


def samples_of(corpus: Corpus, cache: Cache = Cache()) -> Samples:  # noqa: B008 (frozen)
    return Translation().samples(corpus, (TOKENIZER, None), cache)


def make(columns: Columns) -> Mapping[str, Any]:
    columns.append("numbers", np.arange(3))
    return {}


@pytest.mark.parametrize(("folder_days", "file_days", "stays"), [(2, 2, False), (2, 0, True), (0, 0, True)])
def test_unfinished_tables_are_removed_after_a_day(tmp_path: Path, folder_days: int, file_days: int, stays: bool):
    part = tmp_path / ".part-abc"
    part.mkdir()
    (part / "tokens").write_bytes(b"12")
    for path, days in ((part / "tokens", file_days), (part, folder_days)):
        before = time.time() - 86_400 * days - 60
        os.utime(path, (before, before))
    finished = Cache(tmp_path).table("text", 1, make)
    assert finished.columns["numbers"].tolist() == [0, 1, 2]
    assert part.exists() == stays
    assert len(list(tmp_path.glob("text-*"))) == 1


WORK: dict[str, Callable[[Corpus, Cache], object]] = {
    "tokens": lambda corpus, cache: encode_texts(TOKENIZER, corpus.sources, cache),
    "tokenizer": lambda corpus, cache: train_tokenizers(Word(), corpus, cache),
    "split": lambda corpus, cache: read_corpus(corpus.names[0], LINES, cache, split="valid", held_out=HeldOut(0.5)),
    "report": lambda corpus, cache: report_on(corpus, samples_of(corpus), {}, cache),
}


@pytest.mark.parametrize("kind", WORK)
def test_nothing_is_kept_of_a_text_that_was_rewritten_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    path, cache = tmp_path / "text.tsv", Cache(tmp_path / "cache")
    path.write_bytes(b"".join(b"line %03d\tline %03d\n" % (number, number) for number in range(100)))
    os.utime(path, (1e9, 1e9))  # the clock of a file system may stand still for some milliseconds
    corpus = read_corpus(str(path), LINES, cache)
    table = Cache.table

    def rewritten(self: Cache, name: str, key: Any, make: Callable[[Columns], Mapping[str, Any]]) -> Table:
        def late(columns: Columns) -> Mapping[str, Any]:
            path.write_bytes(path.read_bytes().replace(b"line", b"LINE"))
            return make(columns)

        return table(self, name, key, late if name == kind else make)

    monkeypatch.setattr(Cache, "table", rewritten)
    with pytest.raises(InputError, match=r"text\.tsv: it was changed while it was read"):
        WORK[kind](corpus, cache)
    assert not list((tmp_path / "cache").glob(f"{kind}-*"))


def test_a_text_may_grow_while_it_is_used_but_not_change(tmp_path: Path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"one\ntwo\n")
    os.utime(path, (1e9, 1e9))
    texts = read_corpus(str(path), LINES, Cache(tmp_path / "cache")).sources
    os.utime(path, (2e9, 2e9))
    assert list(texts) == ["one", "two"]
    with open(path, "ab") as file:
        file.write(b"three\n")
    assert list(texts) == ["one", "two"]
    for content in (b"ONE\nTWO\n", b"one"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"text\.txt: it was changed while it was read"):
            texts[0]


@pytest.mark.parametrize(("number", "full"), [(errno.EACCES, False), (errno.EROFS, False), (errno.ENOSPC, True)])
def test_only_a_full_disk_asks_for_space_and_another_folder_is_always_named(tmp_path: Path, number: int, full: bool):
    def fail(_: Columns) -> Mapping[str, Any]:
        raise OSError(number, os.strerror(number))

    with pytest.raises(DiskTrouble, match=r"another folder: REGARD_CACHE=") as found:
        Cache(tmp_path).table("text", 1, fail)
    assert ("Free some space" in str(found.value)) == full


def test_a_home_that_cannot_be_written_is_a_cache_that_cannot(tmp_path: Path):
    (tmp_path / "home").write_text("in the way")
    with pytest.raises(DiskTrouble, match=r"cannot write the cache .*home/.cache/regard: .* REGARD_CACHE="):
        Cache(tmp_path / "home" / ".cache" / "regard").table("text", 1, make)
    with pytest.raises(DiskTrouble, match="REGARD_CACHE="):
        Cache(Path("/proc/1/nowhere/.cache/regard")).table("text", 1, make)
