"""Encoding of texts: in slices, with prefixes, and from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.read.corpus import Corpus, concatenate_corpora, read_corpus
from regard.data.read.files import ReadOptions
from regard.data.read.texts import StoredTexts, byte_lengths, prefixed, texts_digest
from regard.data.tokenize import encode as encode_module
from regard.data.tokenize.encode import encode_texts
from regard.data.tokenize.tokenizer import BOS, EOS
from tests.data.rows import BYTE, numbers


@given(texts=st.lists(st.text("ab \n", max_size=60), max_size=20))
def test_encoding_in_slices_changes_nothing(texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode_module, "_SLICE_TEXTS", 3)
        patch.setattr(encode_module, "_SLICE_CHARACTERS", 50)
        patch.setattr("regard.data.read.texts._PART", 20)
        rows = encode_texts(BYTE, texts)
    assert [rows.tokens[start : start + size].tolist() for start, size in zip(rows.starts, rows.lengths)] == [
        [BOS, *numbers(text), EOS] if text else [] for text in texts
    ]
    assert rows.tokens.dtype == np.uint16


def test_prefixed_texts_stay_on_disk_and_have_their_own_digest(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"one\n\ntwo\n")
    stored = read_corpus(str(tmp_path / "t.txt"), ReadOptions("line")).sources
    assert isinstance(stored, StoredTexts)
    assert prefixed(stored, "") is stored
    texts, other = prefixed(stored, "a: "), prefixed(stored, "b: ")
    assert list(texts) == ["a: one", "", "a: two"] == [texts[0], texts[1], texts[-1]]
    assert texts[1:] == ["", "a: two"]
    assert len({texts_digest(stored), texts_digest(texts), texts_digest(other)}) == 3
    assert texts_digest(texts) == texts_digest(prefixed(stored, "a: "))
    assert byte_lengths(texts, 1).tolist() == [0, 3]
    parts = [Corpus(texts, texts, ("a",)), Corpus(other, other, ("b",))]
    joined = concatenate_corpora([(part, 1.0) for part in parts])
    assert list(joined.sources) == [*texts, *other]
    assert byte_lengths(joined.sources, 2, 4).tolist() == [3, 3]
    rows = encode_texts(BYTE, joined.sources)
    assert rows.lengths.tolist() == [8, 0, 8, 8, 0, 8]
