"""Model folders: config.json, model.safetensors, tokenizer.json, generation_config.json; downloads of hf:org/model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import messages
from regard.data.tokenize.tokenizer import FIRST_TEXT, SECOND_TEXT, SpecialTokens, Tokenizer
from regard.errors import DamagedFile, InputError
from regard.extras import extra
from regard.layers.lora import adapter_parts, changing_parameters
from regard.models.model import Model, Network
from regard.schema import UnknownKind, from_dict, to_dict
from regard.store.adapters import BASE_DIGEST, AdapterFile, digest_of, fold, fold_trained, is_adapter, read_adapter
from regard.store.adapters import CONFIG as ADAPTER_CONFIG
from regard.store.elmo import is_elmo, load_elmo
from regard.store.files import (
    ignore_write_point,
    json_bytes,
    read_json,
    read_shapes,
    read_tensors,
    require_file,
    tensors_to_bytes,
)
from regard.store.generation_config import read_own_generation_config
from regard.store.huggingface.folder import read_huggingface
from regard.store.loading import (
    MAX_TEXT_LENGTH,
    TRAINED_LENGTH,
    WEIGHTS,
    Loaded,
    Vocabularies,
    build_network,
    load_parameters,
    parameter_shapes,
    refuse_orphan,
    refuse_pickles,
    require_depth,
    require_finite,
    require_memory,
)
from regard.store.manifest import require_unchanged, write_model_files
from regard.store.tokenizers import read_tokenizers as read_tokenizers
from regard.version import __version__

_HUB_PREFIX = "hf:"
_HUB_NAME = re.compile(r"(?P<repository>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?")
_DOWNLOADED = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.spm"]
_DOWNLOADED_PICKLES = ["pytorch_model*.bin"]


def local_folder(folder: Path, *, pickles: bool = False) -> Path:
    """The folder itself, or the download of hf:org/model (or hf:org/model@revision) from the Hugging Face hub."""
    name = str(folder)
    if not name.startswith(_HUB_PREFIX):
        return folder
    match = _HUB_NAME.fullmatch(name.removeprefix(_HUB_PREFIX))
    if match is None or ".." in name:
        raise InputError(f"{name} is not a name on the hub. Write hf:org/model or hf:org/model@revision.")
    with extra("hub", "a download (hf:...)"):
        from huggingface_hub import snapshot_download

    patterns = [*_DOWNLOADED, *(_DOWNLOADED_PICKLES if pickles else [])]
    try:
        snapshot = snapshot_download(match["repository"], revision=match["revision"], allow_patterns=patterns)
    except Exception as error:  # the library raises many classes for a failed connection
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"cannot download {name}: {why.rstrip('.')}. Check the name and the connection.") from error
    return Path(str(snapshot))


def unique_parameters(network: Network) -> dict[str, Tensor]:
    """The parameters that a file holds, by name: all, or with adapters what is trained; tied ones under one name."""
    return dict(changing_parameters(network))


def write_description(
    folder: Path,
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer | None],
    *,
    task: str,
    generation_config: Mapping[str, Any],
    extra_config: Mapping[str, Any] | None = None,
) -> None:
    """Write everything of a model folder but the weights; `extra_config` adds keys to config.json."""
    config = {
        "model_type": "regard",
        "architectures": ["Network"],
        "dtype": "float32",
        "tie_word_embeddings": network.description.readout.tied,
        "task": task,
        "vocabulary": network.vocabulary,
        "source_vocabulary": network.source_vocabulary,
        "regard_version": __version__,
        "model": to_dict(network.description),
    }
    if any(tokenizer is not None and tokenizer.special_tokens is not None for tokenizer in tokenizers):
        config["special_tokens"] = [
            to_dict(tokenizer.special_tokens) if tokenizer else None for tokenizer in tokenizers
        ]
    contents = {
        "config.json": json_bytes({**config, **(extra_config or {})}),
        "generation_config.json": json_bytes(dict(generation_config)),
        "tokenizer.json": tokenizers[0].to_json().encode(),
    }
    if tokenizers[1] is not None:
        contents["target_tokenizer.json"] = tokenizers[1].to_json().encode()
    write_model_files(folder, contents)


def write_generation_config(folder: Path, generation_config: Mapping[str, Any]) -> None:
    """Write generation_config.json: the default options of decoding."""
    write_model_files(folder, {"generation_config.json": json_bytes(dict(generation_config))})


def write_weights(
    folder: Path, tensors: Mapping[str, Tensor], on_write_point: Callable[[str], None] = ignore_write_point
) -> None:
    """Write model.safetensors atomically."""
    write_model_files(folder, {WEIGHTS: tensors_to_bytes(tensors)}, on_write_point)


def read_folder(
    folder: Path, device: torch.device, *, parts: Sequence[type] = (), adapters: Sequence[Path] = (),
    trained: Mapping[str, Tensor] | None = None,
) -> Loaded:  # fmt: skip
    """Load a model folder, ours or a published one, or an adapter with its base; never runs code, never unpickles.

    `parts` are description classes of the caller's own that the model may consist of: a folder never names code.
    `adapters` are folded into the weights; `trained` are tensors of a checkpoint, in place of the folder's own.
    """
    folder = local_folder(folder)
    if is_adapter(folder):
        require_unchanged(folder)
        own = read_adapter(folder)
        loaded = _with_adapters(_read_base(own, parts), [own], parts, trained)
    else:
        loaded = _read_model(folder, torch.device("cpu") if adapters else device, parts)
        if trained is not None:
            load_parameters(loaded.network, trained)
    if adapters:
        loaded = _with_adapters(loaded, [read_adapter(adapter) for adapter in adapters], parts)
    loaded.network.to(device)
    return loaded


def _read_base(adapter: AdapterFile, parts: Sequence[type]) -> Loaded:
    """Load the model that an adapter names as its base."""
    path = f"{adapter.folder}/{ADAPTER_CONFIG}"
    if not adapter.base:
        raise InputError(f'{path} names no base model. Name it: regard.load(BASE, adapters=["{adapter.folder}"]).')
    found = next((place for place in (Path(adapter.base), adapter.folder / adapter.base) if place.is_dir()), None)
    found = found or _downloaded(adapter.base)
    if found is None:
        raise InputError(
            f"the base model of this adapter is {adapter.base}, and there is no such folder ({path}, "
            f'base_model_name_or_path). Name it: regard.load(BASE, adapters=["{adapter.folder}"]).'
        )
    if is_adapter(found):
        raise InputError(
            f"{found} is an adapter itself ({path}). Merge it first: regard convert {found} MERGED --to regard."
        )
    return _read_model(found, torch.device("cpu"), parts)


def _downloaded(name: str) -> Path | None:
    """The folder of a model of the hub that was downloaded before; nothing is downloaded."""
    if _HUB_NAME.fullmatch(name) is None or "/" not in name:
        return None
    try:
        from huggingface_hub import snapshot_download

        return Path(str(snapshot_download(name, local_files_only=True)))
    except Exception:  # it is not installed, or the model is not there
        return None


def _with_adapters(
    loaded: Loaded, adapters: Sequence[AdapterFile], parts: Sequence[type], trained: Mapping[str, Tensor] | None = None
) -> Loaded:
    """The model with adapters folded into its weights; one of ours may bring a readout of its own."""
    base, digest, replaced = loaded.config, "", dict[str, Path]()
    for adapter in adapters:
        for name in adapter.changes()[1]:
            if name in replaced:
                raise InputError(f"{replaced[name]} and {adapter.folder} both replace {name}. Load one of them.")
            replaced[name] = adapter.folder
        path = adapter.folder / "config.json"
        config = read_json(path) if path.is_file() else {}
        fresh: list[str] = []
        if config.get("model_type") == "regard":
            digest = digest or digest_of(loaded.network)
            if config.get(BASE_DIGEST, digest) != digest:
                raise DamagedFile(f"the base model is not the one that {adapter.folder} was trained on. Restore it: "
                                  f"{adapter.base}.")  # fmt: skip
            loaded, fresh = _with_description_of(adapter.folder, config, loaded, parts)
        if trained is not None:
            fold_trained(loaded.network, trained, adapter.scale(""))
            loaded.network.adapters = (adapter.summary([name for name, *_ in adapter_parts(trained)]),)
        else:
            fold(loaded.network, adapter, base, fresh=fresh)
    return loaded


def _with_description_of(
    folder: Path, config: dict[str, Any], base: Loaded, parts: Sequence[type]
) -> tuple[Loaded, list[str]]:
    """The network that an adapter's own config.json describes, with the base's weights; and the names that it lacks."""
    description, vocabularies = _description_of(folder, config, parts)
    network = build_network(description, vocabularies, f"{folder}/config.json")
    network.adapters = base.network.adapters
    known = dict(base.network.named_parameters())
    fresh = []
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name in known and known[name].shape == parameter.shape:
                parameter.copy_(known[name])
            else:
                fresh.append(name)
    if fresh and any(not name.startswith(("readout.", "auxiliary.", "mix.")) for name in fresh):
        raise messages.CONFIG_AND_WEIGHTS(what=f"the base model lacks {fresh[0]}", folder=folder)
    generation_config = read_own_generation_config(folder, network)
    return Loaded(network.eval(), _checked_tokenizers(folder, vocabularies), config, generation_config), fresh


def _read_model(folder: Path, device: torch.device, parts: Sequence[type]) -> Loaded:
    """Load a folder with a whole model."""
    refuse_orphan(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a model folder. Name the folder with its config.json and weights.")
    if not folder.is_dir():
        raise InputError(f"no such model folder: {folder}. Train one with: regard train dates --out {folder}.")
    compared = require_unchanged(folder)
    if is_elmo(folder):
        return load_elmo(folder, device)
    config = read_json(folder / "config.json")
    if config.get("model_type") != "regard":
        return read_huggingface(folder, device)
    refuse_pickles(folder)
    shapes = read_shapes(folder / WEIGHTS)
    require_depth(_layers(config.get("model")), len(shapes), folder)
    description, vocabularies = _description_of(folder, config, parts)
    _check_shapes(folder, description, vocabularies, shapes)
    require_memory(shapes.values(), [folder / WEIGHTS], device, folder)
    network = build_network(description, vocabularies, f"{folder}/config.json")
    tensors = read_tensors(folder / WEIGHTS, unchanged=WEIGHTS in compared)
    for name, tensor in tensors.items():
        require_finite(name, tensor, folder)
    load_parameters(network, tensors)
    tokenizers = _checked_tokenizers(folder, vocabularies)
    generation_config = read_own_generation_config(folder, network)
    return Loaded(network.to(device).eval(), tokenizers, config, generation_config)


def read_description(folder: Path, *, parts: Sequence[type] = ()) -> tuple[Model, Vocabularies]:
    """Read the description of a model of ours and its vocabulary sizes; the folder needs no weights yet."""
    return _description_of(folder, read_json(folder / "config.json"), parts)


def _description_of(folder: Path, config: dict[str, Any], parts: Sequence[type]) -> tuple[Model, Vocabularies]:
    path = f"{folder}/config.json"
    try:
        description: Model = from_dict(Model, config.get("model"), where=f"{path}: model", also=parts)
        vocabulary = from_dict(int, config.get("vocabulary"), where=f"{path}: vocabulary")
        source_vocabulary = from_dict(int | None, config.get("source_vocabulary"), where=path)
        for key in (MAX_TEXT_LENGTH, TRAINED_LENGTH):
            length = from_dict(int | None, config.get(key), where=f"{path}: {key}")
            if length is not None and length < 1:
                raise ValueError(f"{key} is {length}")
    except UnknownKind:  # perhaps a class of the caller's own that was not passed as a part; the message tells how
        raise
    except (InputError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path} cannot be used: {error}") from error
    return description, (vocabulary, source_vocabulary)


def _layers(model: Any) -> int:
    """The number of layers in the plain description of a model."""
    stacks = [model.get(side) for side in ("encoder", "decoder")] if isinstance(model, dict) else []
    layers = [stack.get("layers") for stack in stacks if isinstance(stack, dict)]
    return sum(len(found) for found in layers if isinstance(found, list))


def _check_shapes(
    folder: Path, description: Model, vocabularies: Vocabularies, found: Mapping[str, tuple[int, ...]]
) -> None:
    """Compare the parameters of the description with those of the weights before anything is allocated."""
    expected = parameter_shapes(description, vocabularies, f"{folder}/config.json")
    faults = [
        f"{name} is {found[name]} in {WEIGHTS}, {shape} in config.json"
        if name in found
        else f"{WEIGHTS} lacks {name}, which config.json describes"
        for name, shape in expected.items()
        if found.get(name) != shape
    ]
    unknown = sorted(found.keys() - expected.keys())
    faults += [f"{WEIGHTS} holds {name}, which config.json does not describe" for name in unknown]
    if faults:
        raise messages.CONFIG_AND_WEIGHTS(what=faults[0], folder=folder)


def _checked_tokenizers(folder: Path, vocabularies: Vocabularies) -> tuple[Tokenizer, Tokenizer | None]:
    """Read the tokenizers and check that the model's vocabulary holds all their tokens."""
    if vocabularies[1] is not None:
        require_file(folder / "target_tokenizer.json")
    tokenizers = read_tokenizers(folder)
    sizes = vocabularies[1] or vocabularies[0], vocabularies[0]
    for tokenizer, size, name in zip(tokenizers, sizes, ("tokenizer.json", "target_tokenizer.json")):
        if tokenizer is not None and tokenizer.vocabulary > size:
            raise messages.FOREIGN_TOKENIZER(path=folder / name, found=tokenizer.vocabulary, known=size)
        if tokenizer is not None and tokenizer.special_tokens is not None:
            _check_special_tokens(tokenizer.special_tokens, size, vocabularies[0], folder)
    return tokenizers


def _check_special_tokens(special: SpecialTokens, size: int, target_size: int, folder: Path) -> None:
    """Raise an error if a special token is not in the vocabulary; the begin token belongs to the target's."""
    pieces = [*(special.single or ()), *(special.pair or ())]
    around = [token for token, _ in pieces if token not in (FIRST_TEXT, SECOND_TEXT)]
    tokens = special.eos, special.pad, special.unk, special.mask, *around
    known = all(token is None or token in range(size) for token in tokens)
    known = known and (special.bos is None or special.bos in range(target_size))
    texts = [sorted(token for token, _ in template or () if token < 0) for template in (special.single, special.pair)]
    complete = texts in ([[], []], [[FIRST_TEXT], [SECOND_TEXT, FIRST_TEXT]])
    if not known or not complete or not all(segment in (0, 1) for _, segment in pieces):
        raise DamagedFile(f"{folder}/config.json cannot be used: special_tokens names tokens that the model does not "
                          "have. Restore it from a copy.")  # fmt: skip
