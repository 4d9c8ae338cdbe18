"""Arrays in an HDF5 file, which is held against what is expected of it before any of them is read."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard import catalogue
from regard.errors import DamagedFile
from regard.store.files import require_file

Arrays = dict[str, NDArray[np.float32]]
Shapes = dict[str, tuple[int, ...]]


def read_arrays(path: Path, expected: Shapes) -> Arrays:
    """The arrays of these names and shapes; a file that lacks one or holds another thing is refused."""
    import h5py

    require_file(path)
    try:
        with h5py.File(path, "r", locking=False) as file:
            _require_tree(path, file, set(expected))
            for name, shape in expected.items():
                _require_plain(path, name, file[name], shape)
            needed, there = sum(file[name].nbytes for name in expected), path.stat().st_size
            if needed > there:
                raise catalogue.DAMAGED_WEIGHTS(path=path, why=f"{needed:,} bytes of numbers in a file of {there:,}")
            return {name: np.asarray(file[name][...], dtype=np.float32) for name in expected}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise catalogue.DAMAGED_WEIGHTS(path=path, why=why) from error


def arrays_to_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The HDF5 file that holds these arrays."""
    import h5py

    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=np.ascontiguousarray(array, dtype=np.float32))
    return content.getvalue()


def _require_tree(path: Path, group: Any, names: set[str], above: str = "") -> None:
    """Nothing is missing, nothing is there that nobody expects, and no link leads elsewhere."""
    from h5py import Dataset, Group, h5l

    children = sorted({name.partition("/")[0] for name in names})
    links = group.id.links  # asking the group itself would follow a link out of the file
    for name in children:
        if not links.exists(name.encode()):
            raise _unlike(path, f"lacks {above}{name}")
    if len(group) > len(children):
        raise _unlike(path, f"holds {above}{next(name for name in group if name not in children)}")
    for name in children:
        if links.get_info(name.encode()).type != h5l.TYPE_HARD:
            raise _unlike(path, f"only points elsewhere at {above}{name}")
        inside = {rest for whole in names for first, _, rest in [whole.partition("/")] if first == name and rest}
        if group.get(name, getclass=True) is not (Group if inside else Dataset):
            raise _unlike(path, f"holds another kind of thing at {above}{name}")
        if inside:
            _require_tree(path, group[name], inside, f"{above}{name}/")


def _require_plain(path: Path, name: str, dataset: Any, shape: tuple[int, ...]) -> None:
    """An array is of this shape, of real numbers, and wholly in the file as it will be in memory."""
    if dataset.shape != shape:
        raise _unlike(path, f"has {name} of {dataset.shape}, not {shape}")
    if dataset.dtype.kind != "f" or dataset.dtype.itemsize > 8:
        raise _unlike(path, f"has {name} of {dataset.dtype}, not of numbers")
    plain = dataset.chunks is None and not dataset.external and not dataset.is_virtual
    if not plain or dataset.id.get_storage_size() != dataset.nbytes:
        raise _unlike(path, f"does not hold {name} plainly: it is compressed, empty or elsewhere")


def _unlike(path: Path, what: str) -> DamagedFile:
    """The file is not of the model that is described beside it."""
    return DamagedFile(f"{path.name} {what} ({path.parent}). Copy it again, with the file that describes it.")
