"""The embedded corpus of Python source: which files, in which split, unchanged."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import get_args

import pytest

from regard.data.corpora import Split, split_of
from regard.data.corpora.python_source import python_documents
from regard.errors import InputError

SPLITS = get_args(Split)


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[tuple[str, str]]]:
    return {split: python_documents(split) for split in SPLITS}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small standard library in which every file would be a training document."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr("regard.data.corpora.python_source.split_of", lambda name: "train")
    return tmp_path


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_a_document_is_the_whole_file_unchanged(corpus: dict[str, list[tuple[str, str]]]) -> None:
    folder = Path(sysconfig.get_path("stdlib"))
    documents = [document for documents in corpus.values() for document in documents]
    assert "json/decoder.py" in dict(documents)
    assert all(text.encode("utf-8") == (folder / name).read_bytes() for name, text in documents)


def test_line_endings_stay_as_they_are(library: Path) -> None:
    write(library / "windows.py", b"a = 1\r\nb = 2\r\n")
    assert python_documents("train") == [("windows.py", "a = 1\r\nb = 2\r\n")]


def test_documents_are_sorted_by_name(corpus: dict[str, list[tuple[str, str]]]) -> None:
    for documents in corpus.values():
        names = [name for name, _ in documents]
        assert names == sorted(set(names))


def test_a_file_belongs_to_one_split_and_most_train(corpus: dict[str, list[tuple[str, str]]]) -> None:
    names = {split: {name for name, _ in documents} for split, documents in corpus.items()}
    total = sum(map(len, names.values()))
    assert len(set().union(*names.values())) == total
    assert 0.85 < len(names["train"]) / total < 0.95
    assert names["valid"]
    assert names["test"]


def test_the_split_of_a_name_never_changes() -> None:
    names = ("json/decoder.py", "operator.py", "json/encoder.py")
    assert [split_of(name) for name in names] == ["train", "valid", "test"]


def test_tests_packages_empty_files_and_other_encodings_are_left_out(library: Path) -> None:
    for name in ("test/a.py", "json/tests/b.py", "idlelib/idle_test/c.py", "site-packages/numpy/d.py"):
        write(library / name, b"left = 'out'\n")
    write(library / "empty.py", b"")
    write(library / "latin.py", "# -*- coding: latin-1 -*-\ncafé = 1\n".encode("latin-1"))
    write(library / "json/decoder.py", b"kept = True\n")
    write(library / "notes.txt", b"no Python\n")
    assert python_documents("train") == [("json/decoder.py", "kept = True\n")]


@pytest.mark.usefixtures("library")
def test_a_python_without_source_files_is_an_error() -> None:
    with pytest.raises(InputError, match="not zipped"):
        python_documents("train")


def test_an_unknown_split_is_refused_with_a_hint() -> None:
    with pytest.raises(InputError, match='Did you mean "valid"'):
        python_documents("vald")  # type: ignore[arg-type]
