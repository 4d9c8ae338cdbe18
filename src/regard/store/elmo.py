"""Arrays in an HDF5 file, which is held against what is expected of it before any of them is read."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

from regard import messages
from regard.data.tokenize.tokenizer import SPECIALS, UNKNOWN, Tokenizer
from regard.errors import DamagedFile, InputError
from regard.layers.bidirectional import Apart, Projected
from regard.layers.character_cnn import Spelled
from regard.layers.join import Replace
from regard.models.model import Model, Stack
from regard.models.readouts import Mix, Vector
from regard.schema import from_dict
from regard.store.files import json_bytes, read_json, require_file, write_file
from regard.store.loading import Loaded, fill

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
                raise messages.DAMAGED_WEIGHTS(path=path, why=f"{needed:,} bytes of numbers in a file of {there:,}")
            return {name: np.asarray(file[name][...], dtype=np.float32) for name in expected}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise messages.DAMAGED_WEIGHTS(path=path, why=why) from error


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


OPTIONS, WEIGHTS = "options.json", "weights.hdf5"


_MANY = 100  # layers that nobody ever published
# What options.json says of how the model was trained.
_PAST = {
    "all_clip_norm_val", "batch_size", "bidirectional", "dropout", "learning_rate", "n_epochs",
    "n_negative_samples_batch", "n_tokens_vocab", "n_train_tokens", "sample_softmax", "share_embedding_softmax",
    "unroll_steps",
}  # fmt: skip


@dataclass(frozen=True)
class CharacterOptions:
    """The width of a character."""

    dim: int


@dataclass(frozen=True)
class SpellingOptions:
    """How options.json says how words are spelled."""

    activation: Literal["relu", "tanh"]
    embedding: CharacterOptions
    filters: tuple[tuple[int, int], ...]
    max_characters_per_token: int
    n_characters: int
    n_highway: int | None = None


@dataclass(frozen=True)
class ReaderOptions:
    """How options.json says how text is read."""

    dim: int
    projection_dim: int
    use_skip_connections: bool = False
    n_layers: int = 1
    cell_clip: float | None = None
    proj_clip: float | None = None


@dataclass(frozen=True)
class Options:
    """What options.json says of the model."""

    char_cnn: SpellingOptions
    lstm: ReaderOptions

    def __post_init__(self) -> None:
        for name, count in (("n_layers", self.lstm.n_layers), ("n_highway", self.char_cnn.n_highway or 1)):
            if not 1 <= count <= _MANY:
                raise InputError(f"{name} is {count}, expected 1 to {_MANY}")

    def model(self) -> Model:
        """What they describe; the words it once said were not published, so what it says is a vector."""
        cnn, lstm = self.char_cnn, self.lstm
        embed = Spelled(
            # A file has no vector for padding, and of those two numbers one counts it.
            characters=262 if cnn.n_characters == 261 else cnn.n_characters,
            inner=cnn.embedding.dim, filters=cnn.filters, highways=cnn.n_highway or 0,
            activation=cnn.activation, letters=cnn.max_characters_per_token,
        )  # fmt: skip
        cell = Projected(lstm.dim, lstm.cell_clip, lstm.proj_clip)
        above = (Apart(cell, skip=lstm.use_skip_connections),)
        layers = ((Apart(cell),), *(lstm.n_layers - 1) * (above,))
        encoder, readout = Stack(layers, Replace()), Vector(normalised=False)
        return Model(2 * lstm.projection_dim, embed, encoder=encoder, readout=readout, mix=Mix())


def options_of(model: Model) -> Options:
    """The opposite of `Options.model`; what the published layout cannot say is refused."""
    embed, encoder = model.embed, model.encoder
    if not isinstance(embed, Spelled) or embed.copies != 2:
        raise _foreign("the embedding is not spelled with two copies")
    if encoder is None or model.decoder is not None or encoder.join != Replace():
        raise _foreign("it is not one encoder joined by replace")
    parts = [part for layer in encoder.layers for part in layer]
    first, last = parts[0], parts[-1]
    if not isinstance(first, Apart) or not isinstance(last, Apart):
        raise _foreign("its layers are not readers apart")
    if encoder.layers != ((Apart(first.cell),), *(len(parts) - 1) * ((Apart(first.cell, last.skip),),)):
        raise _foreign("its layers are not alike, or the first has a skip")
    cell = first.cell
    return Options(
        SpellingOptions(
            embed.activation, CharacterOptions(embed.inner), embed.filters, embed.letters, embed.characters,
            embed.highways,
        ),
        ReaderOptions(cell.inner, model.width // 2, last.skip, len(parts), cell.clip_held, cell.clip_shown),
    )  # fmt: skip


def _foreign(why: str) -> InputError:
    return InputError(f"ELMo's published layout cannot hold this model: {why}. Train one with model.name=elmo.")


def read_elmo(folder: Path) -> tuple[Model, dict[str, Tensor]]:
    """The model of a folder in the published layout, and its parameters by name; never runs code."""
    options, weights = (_found(folder, name) for name in (OPTIONS, WEIGHTS))
    model = _read_options(options)
    arrays = read_arrays(weights, shapes_of(model))
    return model, {name: torch.from_numpy(array) for name, array in _to_ours(arrays, model).items()}


def is_elmo(folder: Path) -> bool:
    """Whether a folder is in the published layout."""
    names = [path.name for path in folder.iterdir()] if not (folder / "config.json").exists() else []
    return any(name.endswith(OPTIONS) for name in names) and any(name.endswith(WEIGHTS) for name in names)


def load_elmo(folder: Path, device: torch.device) -> Loaded:
    """The model of a folder in the published layout, with a tokenizer that cuts texts at spaces and knows no words."""
    model, tensors = read_elmo(folder)
    words = tokenizers.Tokenizer(WordLevel({name: n for n, name in enumerate(SPECIALS)}, unk_token=SPECIALS[UNKNOWN]))
    words.pre_tokenizer = WhitespaceSplit()
    words.add_special_tokens(list(SPECIALS))
    tokenizer = Tokenizer(words)
    network = model.build(tokenizer.vocabulary)
    fill(network, tensors)
    return Loaded(network.to(device).eval(), (tokenizer, None), {"model_type": "elmo", "task": "embed"}, {})


def write_elmo(folder: Path, model: Model, tensors: Mapping[str, Tensor]) -> None:
    """Write a model in the published layout, which has no place for the words it says nor for a mix of its layers."""
    options = options_of(model)
    ours = {name: tensor.detach().cpu().float().numpy() for name, tensor in tensors.items()}
    arrays = _to_theirs(ours, model)
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise InputError(f"{name} holds a value that is not finite, so it is not saved. Train it again.")
    write_file(folder / WEIGHTS, arrays_to_bytes(arrays))
    write_file(folder / OPTIONS, json_bytes(asdict(options)))


def shapes_of(model: Model) -> Shapes:
    """The tensors that the published layout has for a model."""
    options = options_of(model)
    cnn, lstm = options.char_cnn, options.lstm
    half, total = lstm.projection_dim, sum(count for _, count in cnn.filters)
    shapes: Shapes = {"char_embed": (cnn.n_characters - 1, cnn.embedding.dim)}
    for number, (over, count) in enumerate(cnn.filters):
        shapes |= {f"CNN/W_cnn_{number}": (1, over, cnn.embedding.dim, count), f"CNN/b_cnn_{number}": (count,)}
    for number in range(cnn.n_highway or 0):
        for name in ("carry", "transform"):
            shapes[f"CNN_high_{number}/W_{name}"] = total, total
            shapes[f"CNN_high_{number}/b_{name}"] = (total,)
    if total != half:
        shapes |= {"CNN_proj/W_proj": (total, half), "CNN_proj/b_proj": (half,)}
    for theirs, _ in _cells(model):
        shapes |= {f"{theirs}/W_0": (2 * half, 4 * lstm.dim), f"{theirs}/B": (4 * lstm.dim,)}
        if lstm.dim > half:
            shapes[f"{theirs}/W_P_0"] = lstm.dim, half
    return shapes


def _cells(model: Model) -> Iterator[tuple[str, str]]:
    """Their name and ours of each direction's cell in each layer."""
    assert model.encoder is not None
    for layer in range(len(model.encoder.layers)):
        for way in range(2):
            yield (
                f"RNN_{way}/RNN/MultiRNNCell/Cell{layer}/LSTMCell",
                f"encoder.wiring.layers.{layer}.apart.sublayer.readers.{way}.cell",
            )


def _to_ours(arrays: Arrays, model: Model) -> Arrays:
    """Their tensors by our names; the mix begins as the mean."""
    characters = arrays["char_embed"]
    ours: Arrays = {"embed.table.weight": np.concatenate([np.zeros_like(characters[:1]), characters])}
    for theirs, name, axes in _matrices(model):
        ours[name] = np.ascontiguousarray(arrays[theirs].reshape(arrays[theirs].shape[-len(axes) :]).transpose(axes))
    for theirs, name in _cells(model):
        inputs, state = np.split(_gates(arrays[f"{theirs}/W_0"]), 2)
        ours[f"{name}.weight_ih_l0"], ours[f"{name}.weight_hh_l0"] = inputs.T.copy(), state.T.copy()
        bias = _gates(arrays[f"{theirs}/B"])
        # Two biases are added up, so that what is added to theirs while reading has a place of its own.
        ours[f"{name}.bias_ih_l0"], ours[f"{name}.bias_hh_l0"] = bias, _forget(len(bias))
    assert model.encoder is not None
    states = len(model.encoder.layers) + 1
    return ours | {"mix.weights": np.zeros(states, np.float32), "mix.scale": np.ones(1, np.float32)}


def _to_theirs(ours: Arrays, model: Model) -> Arrays:
    """Our tensors by their names."""
    arrays: Arrays = {"char_embed": ours["embed.table.weight"][1:]}
    shapes = shapes_of(model)
    for theirs, name, axes in _matrices(model):
        arrays[theirs] = ours[name].transpose(axes).reshape(shapes[theirs])
    for theirs, name in _cells(model):
        both = np.concatenate([ours[f"{name}.weight_ih_l0"].T, ours[f"{name}.weight_hh_l0"].T])
        arrays[f"{theirs}/W_0"] = _gates(both)
        bias, added = ours[f"{name}.bias_ih_l0"], ours[f"{name}.bias_hh_l0"]
        arrays[f"{theirs}/B"] = _gates(bias + (added - _forget(len(bias))))
    return arrays


def _matrices(model: Model) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Their name, ours, and the order of the axes, the same both ways, of what is only turned."""
    shapes = shapes_of(model)
    for number in range(len(options_of(model).char_cnn.filters)):
        yield f"CNN/W_cnn_{number}", f"embed.filters.{number}.weight", (2, 1, 0)
        yield f"CNN/b_cnn_{number}", f"embed.filters.{number}.bias", (0,)
    for number in range(options_of(model).char_cnn.n_highway or 0):
        # What they call carry is how much goes through, not how much goes by.
        for theirs, name in (("carry", "gate"), ("transform", "change")):
            yield f"CNN_high_{number}/W_{theirs}", f"embed.highways.{number}.{name}.weight", (1, 0)
            yield f"CNN_high_{number}/b_{theirs}", f"embed.highways.{number}.{name}.bias", (0,)
    if "CNN_proj/W_proj" in shapes:
        yield "CNN_proj/W_proj", "embed.projection.weight", (1, 0)
        yield "CNN_proj/b_proj", "embed.projection.bias", (0,)
    for theirs, name in _cells(model):
        if f"{theirs}/W_P_0" in shapes:
            yield f"{theirs}/W_P_0", f"{name}.weight_hr_l0", (1, 0)


def _gates(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """The gates, along the last axis, from their order to ours or back: write, new, keep, show; keep and new change."""
    write, one, other, show = np.split(array, 4, axis=-1)
    return np.concatenate([write, other, one, show], axis=-1)


def _forget(length: int) -> NDArray[np.float32]:
    """What is added to the bias of the gate that keeps, and is not in their file."""
    added = np.zeros((4, length // 4), dtype=np.float32)
    added[1] = 1.0
    return added.reshape(-1)


def _found(folder: Path, name: str) -> Path:
    """The file of this name, or the only one whose name ends so: elmo_2x1024_128_2048cnn_1xhighway_options.json."""
    if not folder.is_dir():
        raise InputError(f"no such model folder: {folder}. Name one that holds {OPTIONS} and {WEIGHTS}.")
    if (folder / name).exists():
        require_file(folder / name)
        return folder / name
    others = sorted(folder.glob(f"*_{name}"))
    if len(others) > 1:
        raise InputError(f"{folder} holds {len(others)} files called *_{name}. Keep one model in a folder.")
    require_file(others[0] if others else folder / name)
    return others[0]


def _read_options(path: Path) -> Model:
    found = {name: value for name, value in read_json(path).items() if name not in _PAST}
    try:
        options: Options = from_dict(Options, found, where=path.name)
        model = options.model()
        if options.lstm.dim < options.lstm.projection_dim or options.lstm.projection_dim < 1:
            raise InputError(f"lstm.dim {options.lstm.dim} is below projection_dim {options.lstm.projection_dim}")
    except InputError as error:
        raise DamagedFile(f"{path} cannot be used: {str(error).rstrip('.')}. Copy or download it again.") from None
    return model
