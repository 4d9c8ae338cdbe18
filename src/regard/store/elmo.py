"""ELMo in its published format: options.json and weights.hdf5 (Peters 2018), read and written."""

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
from regard.data.tokenize.tokenizer import SPECIALS, UNK, Tokenizer
from regard.errors import DamagedFile, InputError
from regard.extras import extra
from regard.layers.bidirectional import BidirectionalLSTM, ProjectedLSTM
from regard.layers.embedding import CharacterCNN
from regard.layers.join import Replace
from regard.models.model import Model, Stack
from regard.models.readouts import LayerMix, Vector
from regard.schema import from_dict
from regard.store.files import first_line, json_bytes, read_json, require_file
from regard.store.loading import Loaded, load_parameters, require_finite
from regard.store.manifest import write_model_files

Arrays = dict[str, NDArray[np.float32]]
Shapes = dict[str, tuple[int, ...]]

OPTIONS, WEIGHTS = "options.json", "weights.hdf5"

_MAX_LAYERS = 100
# Keys of options.json about the training.
_TRAINING_OPTIONS = {
    "all_clip_norm_val", "batch_size", "bidirectional", "dropout", "learning_rate", "n_epochs",
    "n_negative_samples_batch", "n_tokens_vocab", "n_train_tokens", "sample_softmax", "share_embedding_softmax",
    "unroll_steps",
}  # fmt: skip


@dataclass(frozen=True)
class CharacterEmbeddingOptions:
    """`char_cnn.embedding` of options.json."""

    dim: int


@dataclass(frozen=True)
class CharacterCNNOptions:
    """`char_cnn` of options.json."""

    activation: Literal["relu", "tanh"]
    embedding: CharacterEmbeddingOptions
    filters: tuple[tuple[int, int], ...]
    max_characters_per_token: int
    n_characters: int
    n_highway: int | None = None


@dataclass(frozen=True)
class LSTMOptions:
    """`lstm` of options.json."""

    dim: int
    projection_dim: int
    use_skip_connections: bool = False
    n_layers: int = 1
    cell_clip: float | None = None
    proj_clip: float | None = None


@dataclass(frozen=True)
class Options:
    """options.json, without the options of training."""

    char_cnn: CharacterCNNOptions
    lstm: LSTMOptions

    def __post_init__(self) -> None:
        for name, count in (("n_layers", self.lstm.n_layers), ("n_highway", self.char_cnn.n_highway or 1)):
            if not 1 <= count <= _MAX_LAYERS:
                raise InputError(f"{name} is {count}, expected 1 to {_MAX_LAYERS}")

    def model(self) -> Model:
        """The model they describe; its softmax was never published, so its output is a vector."""
        cnn, lstm = self.char_cnn, self.lstm
        embed = CharacterCNN(
            # The file has no vector for padding, and only one of these two numbers counts it.
            character_vocabulary=262 if cnn.n_characters == 261 else cnn.n_characters,
            character_width=cnn.embedding.dim, filters=cnn.filters, highways=cnn.n_highway or 0,
            activation=cnn.activation, characters=cnn.max_characters_per_token,
        )  # fmt: skip
        cell = ProjectedLSTM(lstm.dim, lstm.cell_clip, lstm.proj_clip)
        layers = _layers(cell, lstm.n_layers, lstm.use_skip_connections)
        encoder, readout = Stack(layers, Replace()), Vector(normalised=False)
        return Model(2 * lstm.projection_dim, embed, encoder=encoder, readout=readout, mix=LayerMix())


def _layers(cell: ProjectedLSTM, depth: int, skip: bool) -> tuple[tuple[BidirectionalLSTM], ...]:
    """The layers of the biLM; the first has no skip connection."""
    return (BidirectionalLSTM(cell),), *(depth - 1) * ((BidirectionalLSTM(cell, skip),),)


def options_of(model: Model) -> Options:
    """The inverse of `Options.model`; an error if the format cannot hold the model."""
    embed, encoder = model.embed, model.encoder
    if not isinstance(embed, CharacterCNN) or embed.copies != 2:
        raise _not_elmo("the embedding is not a character CNN with two copies")
    if encoder is None or model.decoder is not None or encoder.join != Replace():
        raise _not_elmo("it is not one encoder joined by replace")
    parts = [part for layer in encoder.layers for part in layer]
    first, last = parts[0], parts[-1]
    if not isinstance(first, BidirectionalLSTM) or not isinstance(last, BidirectionalLSTM):
        raise _not_elmo("its layers are not bidirectional LSTMs")
    if encoder.layers != _layers(first.cell, len(parts), last.skip):
        raise _not_elmo("its layers differ, or the first has a skip connection")
    cell = first.cell
    return Options(
        CharacterCNNOptions(
            embed.activation, CharacterEmbeddingOptions(embed.character_width), embed.filters, embed.characters,
            embed.character_vocabulary, embed.highways
        ),
        LSTMOptions(cell.inner, model.width // 2, last.skip, len(parts), cell.cell_clip, cell.projection_clip),
    )  # fmt: skip


def _not_elmo(why: str) -> InputError:
    return InputError(f"ELMo's published format cannot hold this model: {why}. Train one with model.name=elmo.")


def is_elmo(folder: Path) -> bool:
    """Whether a folder is in the published format."""
    names = [path.name for path in folder.iterdir()] if not (folder / "config.json").exists() else []
    return any(name.endswith(OPTIONS) for name in names) and any(name.endswith(WEIGHTS) for name in names)


def read_elmo(folder: Path) -> tuple[Model, dict[str, Tensor]]:
    """Read the model of a folder in the published format, and its parameters by name; never runs code."""
    options, weights = (_find(folder, name) for name in (OPTIONS, WEIGHTS))
    model = _read_options(options)
    arrays = read_arrays(weights, shapes_of(model))
    for name, array in arrays.items():
        require_finite(name, torch.from_numpy(array), folder)
    return model, {name: torch.from_numpy(array) for name, array in _to_ours(arrays, model).items()}


def load_elmo(folder: Path, device: torch.device) -> Loaded:
    """Load a folder in the published format, with a tokenizer that splits at spaces and has no vocabulary."""
    model, tensors = read_elmo(folder)
    specials = {name: number for number, name in enumerate(SPECIALS)}
    library = tokenizers.Tokenizer(WordLevel(specials, unk_token=SPECIALS[UNK]))
    library.pre_tokenizer = WhitespaceSplit()
    library.add_special_tokens(list(SPECIALS))
    tokenizer = Tokenizer(library)
    network = model.build(tokenizer.vocabulary)
    load_parameters(network, tensors)
    return Loaded(network.to(device).eval(), (tokenizer, None), {"model_type": "elmo", "task": "embed"}, {})


def write_elmo(folder: Path, model: Model, tensors: Mapping[str, Tensor]) -> None:
    """Write a model in the published format, which has neither the softmax nor the layer mix."""
    with extra("elmo", "the published format of ELMo"):
        import h5py

    options = options_of(model)
    ours = {name: tensor.detach().cpu().float().numpy() for name, tensor in tensors.items()}
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for name, array in _to_theirs(ours, model).items():
            if not np.isfinite(array).all():
                raise InputError(f"{name} holds a value that is not finite, so it is not saved. Train it again.")
            file.create_dataset(name, data=np.ascontiguousarray(array, dtype=np.float32))
    write_model_files(folder, {WEIGHTS: content.getvalue(), OPTIONS: json_bytes(asdict(options))})


def _find(folder: Path, name: str) -> Path:
    """The file of this name, or the only one with this suffix: elmo_2x1024_128_2048cnn_1xhighway_options.json."""
    if not folder.is_dir():
        raise InputError(f"no such model folder: {folder}. Name one that holds {OPTIONS} and {WEIGHTS}.")
    found = [] if (folder / name).exists() else sorted(folder.glob(f"*_{name}"))
    if len(found) > 1:
        raise InputError(f"{folder} holds {len(found)} files called *_{name}. Keep one model in a folder.")
    path = found[0] if found else folder / name
    require_file(path)
    return path


def _read_options(path: Path) -> Model:
    found = {name: value for name, value in read_json(path).items() if name not in _TRAINING_OPTIONS}
    try:
        options: Options = from_dict(Options, found, where=path.name)
        model = options.model()
        if options.lstm.dim < options.lstm.projection_dim or options.lstm.projection_dim < 1:
            raise InputError(f"lstm.dim {options.lstm.dim} is below projection_dim {options.lstm.projection_dim}")
    except InputError as error:
        raise DamagedFile(f"{path} cannot be used: {str(error).rstrip('.')}. Copy or download it again.") from None
    return model


def shapes_of(model: Model) -> Shapes:
    """The shapes of a model's arrays in weights.hdf5."""
    options = options_of(model)
    cnn, lstm = options.char_cnn, options.lstm
    half, total = lstm.projection_dim, sum(count for _, count in cnn.filters)
    shapes: Shapes = {"char_embed": (cnn.n_characters - 1, cnn.embedding.dim)}
    for index, (filter_width, count) in enumerate(cnn.filters):
        shapes[f"CNN/W_cnn_{index}"] = 1, filter_width, cnn.embedding.dim, count
        shapes[f"CNN/b_cnn_{index}"] = (count,)
    for index in range(cnn.n_highway or 0):
        for name in ("carry", "transform"):
            shapes[f"CNN_high_{index}/W_{name}"] = total, total
            shapes[f"CNN_high_{index}/b_{name}"] = (total,)
    if total != half:
        shapes |= {"CNN_proj/W_proj": (total, half), "CNN_proj/b_proj": (half,)}
    for theirs, _ in _cells(model):
        shapes |= {f"{theirs}/W_0": (2 * half, 4 * lstm.dim), f"{theirs}/B": (4 * lstm.dim,)}
        if lstm.dim > half:
            shapes[f"{theirs}/W_P_0"] = lstm.dim, half
    return shapes


def _cells(model: Model) -> Iterator[tuple[str, str]]:
    """Their name and ours of the LSTM of each layer and direction."""
    assert model.encoder is not None
    for layer in range(len(model.encoder.layers)):
        for direction in range(2):
            yield (
                f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell",
                f"encoder.layers.{layer}.bidirectional_lstm.sublayer.directions.{direction}.rnn",
            )


def _to_ours(arrays: Arrays, model: Model) -> Arrays:
    """Our parameters from their arrays; the layer mix starts as the mean."""
    characters = arrays["char_embed"]
    ours: Arrays = {"embed.table.weight": np.concatenate([np.zeros_like(characters[:1]), characters])}
    for theirs, name, axes in _transposed(model):
        ours[name] = np.ascontiguousarray(arrays[theirs].reshape(arrays[theirs].shape[-len(axes) :]).transpose(axes))
    for theirs, name in _cells(model):
        inputs, hidden = np.split(_reorder_gates(arrays[f"{theirs}/W_0"]), 2)
        ours[f"{name}.weight_ih_l0"], ours[f"{name}.weight_hh_l0"] = inputs.T.copy(), hidden.T.copy()
        bias = _reorder_gates(arrays[f"{theirs}/B"])
        # The LSTM adds two biases: one is theirs, the other the constant that their code adds to the forget gate.
        ours[f"{name}.bias_ih_l0"], ours[f"{name}.bias_hh_l0"] = bias, _forget_bias(len(bias))
    assert model.encoder is not None
    states = len(model.encoder.layers) + 1
    return ours | {"mix.weights": np.zeros(states, np.float32), "mix.scale": np.ones(1, np.float32)}


def _to_theirs(ours: Arrays, model: Model) -> Arrays:
    """Their arrays from our parameters."""
    arrays: Arrays = {"char_embed": ours["embed.table.weight"][1:]}
    shapes = shapes_of(model)
    for theirs, name, axes in _transposed(model):
        arrays[theirs] = ours[name].transpose(axes).reshape(shapes[theirs])
    for theirs, name in _cells(model):
        both = np.concatenate([ours[f"{name}.weight_ih_l0"].T, ours[f"{name}.weight_hh_l0"].T])
        arrays[f"{theirs}/W_0"] = _reorder_gates(both)
        bias, added = ours[f"{name}.bias_ih_l0"], ours[f"{name}.bias_hh_l0"]
        arrays[f"{theirs}/B"] = _reorder_gates(bias + (added - _forget_bias(len(bias))))
    return arrays


def _transposed(model: Model) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Their name, our name, and the order of axes (its own inverse) of arrays that are only transposed."""
    shapes, cnn = shapes_of(model), options_of(model).char_cnn
    for index in range(len(cnn.filters)):
        yield f"CNN/W_cnn_{index}", f"embed.filters.{index}.weight", (2, 1, 0)
        yield f"CNN/b_cnn_{index}", f"embed.filters.{index}.bias", (0,)
    for index in range(cnn.n_highway or 0):
        # What they call carry is the transform gate.
        for theirs, name in (("carry", "transform_gate"), ("transform", "transform")):
            yield f"CNN_high_{index}/W_{theirs}", f"embed.highways.{index}.{name}.weight", (1, 0)
            yield f"CNN_high_{index}/b_{theirs}", f"embed.highways.{index}.{name}.bias", (0,)
    if "CNN_proj/W_proj" in shapes:
        yield "CNN_proj/W_proj", "embed.projection.weight", (1, 0)
        yield "CNN_proj/b_proj", "embed.projection.bias", (0,)
    for theirs, name in _cells(model):
        if f"{theirs}/W_P_0" in shapes:
            yield f"{theirs}/W_P_0", f"{name}.weight_hr_l0", (1, 0)


def _reorder_gates(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """Swap forget gate and candidate along the last axis: their order is i g f o, ours i f g o."""
    i, g, f, o = np.split(array, 4, axis=-1)
    return np.concatenate([i, f, g, o], axis=-1)


def _forget_bias(length: int) -> NDArray[np.float32]:
    """The constant 1 that their code adds to the forget gate's bias, which is not in the file."""
    return np.repeat(np.array([0, 1, 0, 0], dtype=np.float32), length // 4)


def read_arrays(path: Path, expected: Shapes) -> Arrays:
    """Read arrays of these names and shapes from an HDF5 file; an error if the file differs from them."""
    with extra("elmo", "the published format of ELMo"):
        import h5py

    require_file(path)
    try:
        with h5py.File(path, "r", locking=False) as file:
            _check_names(path, file, set(expected))
            for name, shape in expected.items():
                _check_dataset(path, name, file[name], shape)
            needed, found = sum(file[name].nbytes for name in expected), path.stat().st_size
            if needed > found:
                raise messages.DAMAGED_WEIGHTS(path=path, why=f"{needed:,} bytes of numbers in a file of {found:,}")
            return {name: np.asarray(file[name][...], dtype=np.float32) for name in expected}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise messages.DAMAGED_WEIGHTS(path=path, why=first_line(error)) from error


def _check_names(path: Path, group: Any, names: set[str], prefix: str = "") -> None:
    """Raise an error for a missing name, an unknown name, and a link to elsewhere."""
    from h5py import Dataset, Group, h5l

    children = sorted({name.partition("/")[0] for name in names})
    links = group.id.links  # the group itself would follow a link out of the file
    for name in children:
        if not links.exists(name.encode()):
            raise _mismatch(path, f"lacks {prefix}{name}")
    if len(group) > len(children):
        raise _mismatch(path, f"holds {prefix}{next(name for name in group if name not in children)}")
    for name in children:
        if links.get_info(name.encode()).type != h5l.TYPE_HARD:
            raise _mismatch(path, f"only links to elsewhere at {prefix}{name}")
        inside = {rest for full in names for first, _, rest in [full.partition("/")] if first == name and rest}
        if group.get(name, getclass=True) is not (Group if inside else Dataset):
            raise _mismatch(path, f"holds {'no group' if inside else 'no array'} at {prefix}{name}")
        if inside:
            _check_names(path, group[name], inside, f"{prefix}{name}/")


def _check_dataset(path: Path, name: str, dataset: Any, shape: tuple[int, ...]) -> None:
    """Raise an error unless an array has this shape, holds floats, and is stored in the file uncompressed."""
    if dataset.shape != shape:
        raise _mismatch(path, f"has {name} of {dataset.shape}, not {shape}")
    if dataset.dtype.kind != "f" or dataset.dtype.itemsize > 8:
        raise _mismatch(path, f"has {name} of {dataset.dtype}, not of floats")
    plain = dataset.chunks is None and not dataset.external and not dataset.is_virtual
    if not plain or dataset.id.get_storage_size() != dataset.nbytes:
        raise _mismatch(path, f"does not hold {name} itself: it is compressed, empty or elsewhere")


def _mismatch(path: Path, what: str) -> DamagedFile:
    """An error: the weights are not those of the model in options.json."""
    return DamagedFile(f"{path.name} {what} ({path.parent}). Copy it again, with its {OPTIONS}.")
