"""Hugging Face's folders, read and written: config.json, weights, tokenizer files, and how the model speaks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import messages
from regard.errors import DamagedFile, InputError
from regard.layers.embedding import Embed
from regard.layers.positions import Axial
from regard.models.model import Model, Network
from regard.schema import to_dict, toml_value
from regard.store.files import json_bytes, read_json, read_shapes, read_tensors, tensors_to_bytes, write_file
from regard.store.generation_config import published_generation, read_generation
from regard.store.huggingface.bert import BERT, DISTILBERT, ROBERTA
from regard.store.huggingface.config import GENERATION, Family, Published, Settings, Weights
from regard.store.huggingface.gpt2 import GPT2
from regard.store.huggingface.marian import MARIAN
from regard.store.huggingface.reformer import REFORMER
from regard.store.huggingface.sentence_transformers import (
    is_sentence_folder,
    read_longest_text,
    read_sentence_readout,
    write_sentence_files,
)
from regard.store.huggingface.t5 import T5
from regard.store.huggingface.tokenizers import (
    Frame,
    Tokenizers,
    has_tokenizer,
    numbered,
    read_published,
    write_published,
)
from regard.store.huggingface.weights import Claim, claims, compare, require_same
from regard.store.loading import INDEX, LONGEST_TEXT, WEIGHTS, Loaded, fill, is_inside, refuse_pickles, require_finite
from regard.version import __version__

FAMILIES = (GPT2, BERT, T5, MARIAN, ROBERTA, DISTILBERT, REFORMER)
_ONLY_BERT = {"hidden_size", "intermediate_size", "type_vocab_size"}
_KNOWN = {"self_attention", "lsh_attention", "cross_attention", "feed_forward"}
_FREE = {"dropout", "spread", "weight", "temperature", "slice_length"}  # what no answer depends on


@dataclass(frozen=True)
class _Files:
    """Where each tensor is: its file, by its name there."""

    places: Mapping[str, Path]
    shapes: Mapping[str, tuple[int, ...]]


def read_hub(folder: Path, device: torch.device) -> Loaded:
    """A published folder; never runs code, never unpickles, and allocates nothing before all is known to fit."""
    config = read_json(folder / "config.json")
    if "auto_map" in config:
        raise messages.REMOTE_CODE(folder=folder)
    family = _family(config, folder)
    sentences = is_sentence_folder(folder)
    refuse_pickles(folder)
    files = _files(folder)
    names = {family.stripped(name): name for name in files.shapes}
    if len(names) < len(files.shapes):
        raise DamagedFile(f"two tensors of {folder} have the same name but for {family.prefix!r}. Copy them again.")
    shapes = {short: files.shapes[name] for short, name in names.items()}

    @cache
    def tensors_of(path: Path) -> dict[str, Tensor]:
        return read_tensors(path)

    def read(short: str) -> Tensor:
        found = tensors_of(files.places[names[short]])[names[short]]
        if not found.is_floating_point():
            raise InputError(f"{names[short]} holds {found.dtype}, not numbers of a plain kind ({folder}). "
                             "Save the model without quantization.")  # fmt: skip
        require_finite(names[short], found, folder)
        return found.float()

    where = f"{folder}/config.json"
    published = _described(family, config, Weights(shapes, read), where)
    if sentences:
        vector = read_sentence_readout(folder)
        published = replace(published, model=replace(published.model, readout=vector, auxiliary=None))
    claimed = _matched(family, published, shapes, folder, sentences)
    tensors = {claim.ours: claim.made(read, shapes) for claim in claimed}
    wanted = {name for claim in claimed for name in claim.theirs if not claim.row.parts}
    require_same(claimed, {name: read(name) for name in wanted if name in shapes}, folder)
    network = published.model.build(published.vocabulary, published.source_vocabulary)
    fill(network, tensors)
    generation = read_generation(folder, {key: config[key] for key in GENERATION & config.keys()}, network)
    if sentences:
        limits = read_longest_text(folder), network.max_positions
        config[LONGEST_TEXT] = min((limit for limit in limits if limit is not None), default=None)
    return Loaded(network.to(device).eval(), _words(folder, network, generation), config, generation)


def write_hub(folder: Path, loaded: Loaded) -> Path:
    """A published folder of a model that has an equivalent there, whoever trained it."""
    network = loaded.network
    published = Published(network.description, network.vocabulary, network.source_vocabulary)
    if published.source_vocabulary is not None:
        published = replace(published, model=replace(published.model, shared=False))
    made = loaded.tokenizers
    # RoBERTa counts its positions from the tokens that are not number 1, which must be the padding.
    others = FAMILIES if _or_none(made[0], "pad") == 1 else tuple(one for one in FAMILIES if one is not ROBERTA)
    was = loaded.config.get("model_type")
    family, config, tensors = _equivalent(published, network, sorted(others, key=lambda one: one.name != was))
    config |= {key: loaded.config[key] for key in family.kept if was == family.name and key in loaded.config}
    says = made[1] or made[0]
    pad = loaded.generation.get("pad_token_id")  # the two sides may pad with tokens of their own
    pad = pad if pad in range(network.vocabulary) else says.pad
    config |= {"bos_token_id": _or_none(says, "begin"), "eos_token_id": says.end, "pad_token_id": pad}
    if network.encoder is not None and network.decoder is not None:
        config |= {"decoder_start_token_id": says.begin, "bos_token_id": None}
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "config.json", json_bytes({
        "model_type": family.name, "dtype": "float32", **config, "regard_version": __version__}))  # fmt: skip
    speaks = network.decoder is not None
    if speaks:
        ids = {key: config[key] for key in GENERATION & config.keys() if config[key] is not None}
        write_file(folder / "generation_config.json", json_bytes(published_generation(loaded.generation, ids)))
    frame: Frame = "both" if not speaks else "opening" if network.encoder is None else "end"
    frame = "end" if family is T5 else frame
    write_published(folder, made, longest=network.max_positions, frame=frame, segments=_segments(published.model))
    write_sentence_files(folder, network.description, loaded.config.get(LONGEST_TEXT))
    write_file(folder / WEIGHTS, tensors_to_bytes(tensors))
    return folder


def _segments(model: Model) -> int:
    match model.embed:
        case Embed(segments=segments):
            return segments
    return 0


def _or_none(tokenizer: Any, part: str) -> int | None:
    try:
        return int(getattr(tokenizer, part))
    except InputError:
        return None


def _family(config: Mapping[str, Any], folder: Path) -> Family:
    """Whose form it is; older folders do not say it, but name their class or have settings that only BERT has."""
    kind, said = config.get("model_type"), config.get("architectures")
    first = said[0] if isinstance(said, list) and said else None
    for family in FAMILIES:
        if family.name == kind or (kind is None and first in family.architectures):
            return family
    if kind is None and first is None and config.keys() >= _ONLY_BERT:
        return BERT
    raise messages.UNKNOWN_ARCHITECTURE(found=kind, folder=folder)


def _architecture(family: Family, config: Mapping[str, Any], weights: Weights, where: str) -> str:
    """The class that config.json names, or the bare model where the weights hold nothing that says words."""
    said = config.get("architectures") or [family.architectures[0]]
    if not isinstance(said, list) or said[0] not in family.architectures:
        raise InputError(f"architecture {said!r} is not supported ({where}). "
                         f"regard reads: {', '.join(family.architectures)}.")  # fmt: skip
    bare = re.sub(r"For(MaskedLM|PreTraining)$", "Model", said[0])
    if bare in family.architectures and not any(re.search(family.outside, name) for name in weights.shapes):
        return bare
    return str(said[0])


def _described(family: Family, config: Mapping[str, Any], weights: Weights, where: str) -> Published:
    """What config.json says, with every setting honoured or refused."""
    settings = Settings(config, where)
    settings.leave("regard_version")
    architecture = _architecture(family, config, weights, where)
    try:
        published = family.describe(settings, weights, architecture)
    except InputError as error:
        raise DamagedFile(f"{where} cannot be used: {error}") from error
    settings.settle()
    return published


def _matched(
    family: Family, published: Published, shapes: Mapping[str, tuple[int, ...]], folder: Path, sentences: bool
) -> list[Claim]:
    """Which tensors fill which parameters, once names and shapes are known to fit."""
    model = published.model
    depth = sum(len(stack.layers) for stack in (model.encoder, model.decoder) if stack is not None)
    if depth > len(shapes):
        what = f"config.json says {depth:,} layers, the weights hold {len(shapes):,} tensors"
        raise messages.CONFIG_AND_WEIGHTS(what=what, folder=folder)
    wanted = _shapes(published, f"{folder}/config.json")
    claimed = claims(family.rows(model), list(wanted))
    # What makes one vector of a text needs no words, though its file may still hold what says them.
    ignored = (*family.ignored, r"^pooler\.", family.outside) if sentences else family.ignored
    compare(claimed, wanted, shapes, ignored, folder)
    return claimed


def _shapes(published: Published, where: str) -> dict[str, tuple[int, ...]]:
    """The parameters of a model, without a byte of them."""
    try:
        with torch.device("meta"):
            network = published.model.build(published.vocabulary, published.source_vocabulary)
    except (InputError, RuntimeError, ValueError, ArithmeticError, TypeError) as error:
        raise DamagedFile(f"{where} cannot be used: {str(error).splitlines()[0]}") from error
    return {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}


def _files(folder: Path) -> _Files:
    """The tensors of a folder: one file, or several that an index names."""
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        shapes = read_shapes(folder / WEIGHTS)
        return _Files(dict.fromkeys(shapes, folder / WEIGHTS), shapes)
    said = read_json(folder / INDEX).get("weight_map")
    if not isinstance(said, dict) or not all(isinstance(name, str) for name in said.values()):
        raise DamagedFile(f"{folder / INDEX} has no weight_map. Copy or download it again.")
    held = {name: read_shapes(_inside(folder, name)) for name in sorted(set(said.values()))}
    lost = [tensor for tensor, name in said.items() if tensor not in held[name]]
    if lost:
        raise DamagedFile(f"{said[lost[0]]} lacks {lost[0]}, which {folder / INDEX} says it holds. Download it again.")
    places = {tensor: folder / name for name, shapes in held.items() for tensor in shapes}
    return _Files(places, {tensor: shape for shapes in held.values() for tensor, shape in shapes.items()})


def _inside(folder: Path, name: str) -> Path:
    """A file of the folder, and nothing outside it."""
    if not name.endswith(".safetensors") or not is_inside(folder, name):
        raise messages.OUTSIDE(index=folder / INDEX, name=name[:100])
    return folder / name


def _words(folder: Path, network: Network, generation: Mapping[str, Any]) -> Tokenizers:
    """The tokenizers, with the parts that the model gives to tokens."""
    speaks = network.decoder is not None
    both = speaks and network.encoder is not None
    start = generation.get("decoder_start_token_id", generation.get("pad_token_id")) if both else None
    ends = generation.get("eos_token_id") if speaks else None
    end = ends[0] if isinstance(ends, list) else ends
    known = network.source_vocabulary or network.vocabulary, network.vocabulary
    if not has_tokenizer(folder):
        first, second = (numbered(folder, size, generation, start=start, end=end) for size in known)
        return first, None if network.source_vocabulary is None else second
    made = read_published(folder, start=start, end=end)
    for tokenizer, size in zip((made[0], made[1] or made[0]), known):
        if tokenizer.vocabulary > size:
            raise messages.FOREIGN_TOKENIZER(path=folder, found=tokenizer.vocabulary, known=size)
    # A folder of ours says both wherever the two sides have tables of their own.
    return made if network.source_vocabulary is None else (made[0], made[1] or made[0])


def _equivalent(
    published: Published, network: Network, families: Sequence[Family]
) -> tuple[Family, dict[str, Any], dict[str, Tensor]]:
    """The family whose form holds all of this model: config.json and tensors; else what has no equivalent."""
    faults: list[tuple[int, str]] = []
    for family in families:
        try:
            config = family.configure(published)
            tensors = _tensors(family, published, network, config["architectures"][0])
            names = {family.stripped(name): name for name in tensors}
            shapes = {short: tuple(tensors[name].shape) for short, name in names.items()}
            found = Weights(shapes, lambda name, names=names, tensors=tensors: tensors[names[name]])  # type: ignore[misc]
            back = _described(family, {"model_type": family.name, **config}, found, "config.json")
        except (AttributeError, TypeError, ValueError, KeyError, IndexError, DamagedFile):
            continue
        different = _differences(_plain(published.model), _plain(back.model))
        if not different:
            _require_all(family, published, network)
            return family, config, tensors
        faults.append((len(different), f"{family.name} has no {' and no '.join(different[:3])}"))
    nearest = min(faults, default=(0, f"no family that others know has {_strange(published.model)}"))[1]
    raise InputError(f"this model has no published form: {nearest}. It can only be saved as regard's own folder.")


def _strange(model: Model) -> str:
    """The parts of a model's layers that no published family has, or that none has in this order."""
    plain = to_dict(model)
    stacks = {side: plain[side]["layers"] for side in ("encoder", "decoder") if plain[side] is not None}
    kinds = {side: {part["kind"]: "" for layer in layers for part in layer} for side, layers in stacks.items()}
    parts = [f"{side} = {kind}" for side, found in kinds.items() for kind in found if kind not in _KNOWN]
    return " and no ".join(parts) or "layers like these"


def _tensors(family: Family, published: Published, network: Network, architecture: str) -> dict[str, Tensor]:
    """Ours under their names."""
    ours = dict(network.named_parameters())
    claimed = claims(family.rows(published.model), list(ours))
    theirs = {name: tensor for claim in claimed for name, tensor in claim.undone(ours[claim.ours].detach()).items()}
    theirs |= family.constant(published)
    return {family.prefixed(name, architecture): tensor.clone().contiguous() for name, tensor in theirs.items()}


def _require_all(family: Family, published: Published, network: Network) -> None:
    """Nothing of ours may be lost on the way; a table that knows a description knows all its parameters."""
    ours = [name for name, _ in network.named_parameters()]
    lost = sorted(set(ours) - {claim.ours for claim in claims(family.rows(published.model), ours)})
    assert not lost, f"no row of {family.name}'s table holds {lost}"


def _plain(model: Model) -> Any:
    """A model as data, with widths that are left to others said, and a sentence's vector in one form."""
    plain = to_dict(model)
    for side in ("encoder", "decoder"):
        for part in [part for layer in (plain[side] or {"layers": []})["layers"] for part in layer]:
            if "key_width" in part:
                part["key_width"] = part["key_width"] or model.width // part["heads"]
    match model.embed:
        case Embed(position=Axial() as position):
            plain["embed"]["position"]["widths"] = list(position.cut(model.width))
    if plain["readout"]["kind"] == "vector" and plain["readout"]["inner"] is None:
        plain["readout"] = {"kind": "vector"}
    if model.encoder is None or model.decoder is None:
        del plain["shared"]
    return plain


def _differences(ours: Any, theirs: Any, place: str = "") -> list[str]:
    """Where two plain descriptions differ, in what an answer depends on."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.get("kind") == theirs.get("kind"):
        keys = [key for key in ours if key not in _FREE]
        return [
            fault for key in keys for fault in _differences(ours[key], theirs.get(key), f"{place}.{key}".lstrip("."))
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs))
        return [fault for number, (a, b) in pairs for fault in _differences(a, b, f"{place}[{number}]")]
    if ours == theirs:
        return []
    shown = ours.get("kind", ours) if isinstance(ours, dict) else ours
    return [f"{place} = {'none' if shown is None else toml_value(shown)}"]
