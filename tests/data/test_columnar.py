"""Parquet, Arrow, folders that `datasets` saved, and zstd hold the same texts as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.data.read.cache import Cache
from regard.data.read.columnar import table_blocks
from regard.data.read.formats import open_sides
from regard.data.read.texts import ReadOptions
from regard.errors import DamagedFile, InputError, RegardError

pyarrow = pytest.importorskip("pyarrow")
zstandard = pytest.importorskip("zstandard")

ROWS = [{"source": f"Zeile {number}, é", "target": f"line {number}", "id": number} for number in range(3000)]


def write_parquet(path: Path, rows: list[dict[str, object]]) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=700)


def write_arrow(path: Path, rows: list[dict[str, object]], *, stream: bool) -> None:
    table = pyarrow.Table.from_pylist(rows)
    new = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=700)


def write_all(folder: Path) -> dict[str, Path]:
    """The same rows in every form."""
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    (folder / "t.jsonl").write_bytes(lines)
    (folder / "t.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines))
    write_parquet(folder / "t.parquet", ROWS)
    write_arrow(folder / "t.arrow", ROWS, stream=False)
    saved = folder / "saved"  # as save_to_disk writes it, in two shards
    saved.mkdir()
    for number, part in enumerate((ROWS[:2000], ROWS[2000:])):
        write_arrow(saved / f"data-{number:05}-of-00002.arrow", part, stream=True)
    (saved / "state.json").write_text("{}")
    (saved / "dataset_info.json").write_text("{}")
    return {path.name: path for path in sorted(folder.iterdir())}


def test_every_form_holds_the_same_texts(tmp_path: Path):
    forms = write_all(tmp_path)
    options = ReadOptions(fields=("source", "target"))
    sides = {name: open_sides(str(path), options, Cache()) for name, path in forms.items()}
    expected = [list(side) for side in sides.pop("t.jsonl")]
    assert len(expected[0]) == len(ROWS)
    for name, found in sides.items():
        assert [list(side) for side in found] == expected, name


def test_a_table_is_read_in_batches_of_bounded_size(tmp_path: Path):
    write_parquet(tmp_path / "t.parquet", ROWS)
    assert max(block.count(b"\n") for block in table_blocks(tmp_path / "t.parquet")) <= 1024


def test_errors_name_the_row_or_the_file(tmp_path: Path):
    write_parquet(tmp_path / "b.parquet", [{"text": "a"}, {"text": "b"}])
    write_parquet(tmp_path / "c.parquet", [{"text": b"a"}])
    with pytest.raises(InputError, match="row 1 holds what is neither text"):
        list(table_blocks(tmp_path / "c.parquet"))
    with pytest.raises(RegardError, match=r"b\.parquet") as caught:
        open_sides(str(tmp_path / "b.parquet"), ReadOptions(fields=("source", "target")), Cache())
    assert "1" in str(caught.value)
    assert "\n" not in str(caught.value)
    whole = (tmp_path / "b.parquet").read_bytes()
    (tmp_path / "d.parquet").write_bytes(whole[:-20])
    (tmp_path / "d.txt.zst").write_bytes(b"no zstd" * 99)
    for name in ("d.parquet", "d.txt.zst"):
        with pytest.raises(DamagedFile, match="Copy or download it again"):
            open_sides(str(tmp_path / name), ReadOptions(), Cache())
