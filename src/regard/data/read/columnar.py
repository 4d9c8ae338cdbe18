"""Parquet and Arrow tables, read as JSON lines batch by batch, and files compressed with Zstandard (extra `data`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.errors import DamagedFile, InputError
from regard.extras import extra

BINARY_TABLES = (".parquet", ".arrow", ".feather")
COMPRESSED = (".gz", ".zst")

_ROWS = 1024  # rows that are read at a time


def table_blocks(path: Path) -> Iterator[bytes]:
    """The rows of a table, each as a line of JSON; memory holds a batch of rows only."""
    first = 1
    for rows in _batches(path):
        lines = []
        for number, row in enumerate(rows, first):
            try:
                lines.append(json.dumps(row, ensure_ascii=False) + "\n")
            except (TypeError, ValueError):
                raise InputError(f"row {number:,} holds what is neither text, number nor list ({path}). "
                                 "Leave that column out.") from None  # fmt: skip
        first += len(lines)
        yield "".join(lines).encode("utf-8", "surrogatepass")


def _batches(path: Path) -> Iterator[list[dict[str, Any]]]:
    with extra("data", f"{path.suffix} ({path})"):
        import pyarrow
        import pyarrow.parquet
    try:
        if path.suffix == ".parquet":
            with pyarrow.parquet.ParquetFile(path) as table:
                for batch in table.iter_batches(_ROWS):
                    yield batch.to_pylist()
            return
        with pyarrow.memory_map(str(path)) as source:
            for batch in _record_batches(source):
                for start in range(0, batch.num_rows, _ROWS):
                    yield batch.slice(start, _ROWS).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise DamagedFile(f"{path} cannot be read as a table: {why.rstrip('.')}. Copy or download it again.") from None


def _record_batches(source: Any) -> Iterator[Any]:
    """The batches of an Arrow file, or of a stream, which `datasets` writes."""
    import pyarrow

    try:
        file = pyarrow.ipc.open_file(source)
    except pyarrow.ArrowInvalid:
        source.seek(0)
        yield from pyarrow.ipc.open_stream(source)
        return
    for number in range(file.num_record_batches):
        yield file.get_batch(number)


def zstd_blocks(path: Path, size: int) -> Iterator[bytes]:
    """The blocks of a file that was compressed with Zstandard."""
    with extra("data", f".zst ({path})"):
        import zstandard
    try:
        with open(path, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as file:
            while block := file.read(size):
                yield block
    except zstandard.ZstdError as error:
        raise DamagedFile(f"{path} is not a whole .zst file: {error}. Copy or download it again.") from None


def is_decoded(path: Path) -> bool:
    """Whether the text of a file is not in it as it is."""
    return path.suffix in (*COMPRESSED, *BINARY_TABLES)


def saved_dataset(files: list[Path]) -> list[Path]:
    """Of the files in a folder that `datasets` saved, those with rows; else all."""
    if {"state.json", "dataset_info.json"} <= {file.name for file in files}:
        return [file for file in files if file.suffix == ".arrow"]
    return files
