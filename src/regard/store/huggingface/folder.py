"""Hugging Face model folders, read and written: config.json, weights, tokenizer files and generation_config.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from regard.models.readouts import Vocabulary
from regard.schema import to_dict, toml_value
from regard.store.files import json_bytes, read_json, read_shapes, read_tensors, tensors_to_bytes, write_file
from regard.store.generation_config import START, read_generation_config, to_huggingface
from regard.store.huggingface.albert import ALBERT, ELECTRA
from regard.store.huggingface.bart import BART, M2M100, MBART
from regard.store.huggingface.bert import BERT, DISTILBERT, ROBERTA
from regard.store.huggingface.config import GENERATION_SETTINGS, ConfigReader, Family, PublishedModel, PublishedWeights
from regard.store.huggingface.gpt2 import GPT2
from regard.store.huggingface.languages import with_target_language
from regard.store.huggingface.llama import LLAMA, MISTRAL, QWEN2
from regard.store.huggingface.marian import MARIAN, add_start_row, without_start_row
from regard.store.huggingface.modernbert import MODERNBERT
from regard.store.huggingface.reformer import REFORMER
from regard.store.huggingface.sentence_transformers import (
    SentenceModules,
    dense_name,
    is_sentence_folder,
    read_max_text_length,
    read_sentence_modules,
    write_sentence_files,
)
from regard.store.huggingface.special_tokens import id_or_none
from regard.store.huggingface.t5 import T5
from regard.store.huggingface.tokenizers import (
    Tokenizers,
    has_tokenizer,
    id_tokenizer,
    read_huggingface_tokenizers,
    write_huggingface_tokenizers,
)
from regard.store.huggingface.weights import Match, Shapes, check_names_and_shapes, match_rows, require_equal, row
from regard.store.loading import (
    INDEX,
    MAX_TEXT_LENGTH,
    WEIGHTS,
    Loaded,
    is_inside,
    load_parameters,
    parameter_shapes,
    refuse_pickles,
    require_depth,
    require_finite,
    require_memory,
)
from regard.store.manifest import write_manifest
from regard.version import __version__

FAMILIES = (
    GPT2, BERT, T5, MARIAN, ROBERTA, DISTILBERT, REFORMER, ELECTRA, ALBERT, BART, MBART, M2M100, LLAMA, MISTRAL, QWEN2,
    MODERNBERT,
)  # fmt: skip
Names = Callable[[str], str]
"""From the name of a tensor in a weight table to that in a file."""

_ONLY_BERT = {"hidden_size", "intermediate_size", "type_vocab_size"}
_PUBLISHED_KINDS = {"self_attention", "lsh_attention", "cross_attention", "feed_forward"}
_TRAINING_ONLY = {"dropout", "init_std", "weight", "temperature", "slice_length"}  # fields that change no output


def read_huggingface(folder: Path, device: torch.device) -> Loaded:
    """Load a Hugging Face folder; never runs code or unpickles; allocates nothing before config and weights match."""
    config = read_json(folder / "config.json")
    if "auto_map" in config:
        raise messages.REMOTE_CODE(folder=folder)
    family = _family(config, folder)
    sentence = read_sentence_modules(folder) if is_sentence_folder(folder) else None
    refuse_pickles(folder)
    paths, stored = _files(folder)
    names = {family.without_prefix(name): name for name in stored}
    if len(names) < len(stored):
        raise DamagedFile(f"two tensors of {folder} have the same name but for {family.prefix!r}. Copy them again.")
    shapes = {short: stored[name] for short, name in names.items()}
    for number, path in enumerate(sentence.files if sentence else ()):
        own = {f"{dense_name(number)}.{name}": shape for name, shape in read_shapes(path).items()}
        shapes, stored, paths = {**shapes, **own}, {**stored, **own}, paths | dict.fromkeys(own, path)
        names |= {name: name for name in own}
    tensors_of = cache(read_tensors)

    def read(short: str) -> Tensor:
        path = paths[names[short]]
        inside = names[short] if path.parent == folder else names[short].split(".", 2)[2]
        tensor = tensors_of(path)[inside]
        if not tensor.is_floating_point():
            raise InputError(f"{names[short]} holds {tensor.dtype}, not floating-point numbers ({folder}). "
                             "Save the model without quantization.")  # fmt: skip
        require_finite(names[short], tensor, folder)
        return tensor.float()

    weights = PublishedWeights(shapes, read)
    if family is MARIAN and START in config:
        config, weights = without_start_row(config, weights)
    published = _from_config(family, config, weights, f"{folder}/config.json")
    if sentence:
        published = replace(published, model=replace(published.model, readout=sentence.readout, auxiliary=None))
    matches = _match(family, published, weights.shapes, folder, sentence)
    require_memory(stored.values(), set(paths.values()), device, folder)
    tensors = {match.ours: match.to_ours(weights.read, weights.shapes) for match in matches}
    repeated = {name for match in matches for name in match.theirs if not match.row.concatenated}
    require_equal(matches, {name: weights.read(name) for name in repeated if name in weights.shapes}, folder)
    network = published.model.build(published.vocabulary, published.source_vocabulary)
    load_parameters(network, tensors)
    older = {key: config[key] for key in GENERATION_SETTINGS & config.keys()}
    generation_config = read_generation_config(folder, older, network)
    if sentence:
        limits = read_max_text_length(folder), network.max_positions
        config[MAX_TEXT_LENGTH] = min((limit for limit in limits if limit is not None), default=None)
    tokenizers = _read_tokenizers(folder, network, generation_config)
    if network.shape == "encoder-decoder":
        generation_config = with_target_language(folder, generation_config, tokenizers[1] or tokenizers[0])
    return Loaded(network.to(device).eval(), tokenizers, config, generation_config)


def published_names(network: Network, config: Mapping[str, Any], folder: Path) -> tuple[list[Match], Names]:
    """How the parameters of a network are stored in its family's files, and the full names of those tensors.

    The network may have another readout than `config`, that of its pretrained model; a readout that the family does not
    have keeps our names.
    """
    family = _family(config, folder)
    published = PublishedModel(network.description, network.vocabulary, network.source_vocabulary)
    try:
        architecture = str(family.to_config(published)["architectures"][0])
    except (TypeError, ValueError, KeyError, IndexError):
        architecture = str(family.own_name((config.get("architectures") or [family.architectures[0]])[0]))
    ours = [name for name, _ in network.named_parameters()]
    matches = match_rows(family.rows(published), ours)
    known = {name for match in matches for name in match.theirs}
    own = [Match(row(name, name), name, (name,)) for name in ours if name not in {match.ours for match in matches}]
    return [*matches, *own], lambda name: family.with_prefix(name, architecture) if name in known else name


def write_huggingface(folder: Path, loaded: Loaded) -> Path:
    """Write a model in Hugging Face's format, if one of its families can hold it."""
    network, tokenizers = loaded.network, loaded.tokenizers
    family, config, tensors = _published_form(loaded)
    model_type = loaded.config.get("model_type")
    kept = family.kept_settings if model_type == family.name else ()
    config |= {key: loaded.config[key] for key in kept if key in loaded.config}
    ids = _special_token_ids(loaded)
    if config.get("pad_token_id", ids["pad_token_id"]) != ids["pad_token_id"]:
        raise InputError(
            f"{family.name} counts positions from its padding token {config['pad_token_id']} on, the "
            f"tokenizer's is {ids['pad_token_id']}. It can only be saved as regard's own folder."
        )
    config |= ids
    if family is MARIAN and _needs_start_row(loaded, config):
        add_start_row(config, tensors)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "config.json", json_bytes({
        "model_type": family.name, "dtype": "float32", **config, "regard_version": __version__}))  # fmt: skip
    if network.shape != "encoder":
        settings = {key: config[key] for key in GENERATION_SETTINGS & config.keys() if config[key] is not None}
        if START in config:
            bad_words = loaded.generation_config.get("bad_words_ids") or []
            settings |= {START: config[START], "bad_words_ids": [*bad_words, [config["decoder_start_token_id"]]]}
        write_file(folder / "generation_config.json", json_bytes(to_huggingface(loaded.generation_config, settings)))
    segments = network.description.embed.segments if isinstance(network.description.embed, Embed) else 0
    write_huggingface_tokenizers(
        folder, tokenizers, max_length=network.max_positions, reads=network.description.reads, segments=segments
    )
    parameters = {name: tensor.detach() for name, tensor in network.named_parameters()}
    write_sentence_files(folder, network.description, loaded.config.get(MAX_TEXT_LENGTH), parameters)
    write_file(folder / WEIGHTS, tensors_to_bytes(tensors))
    write_manifest(folder)
    return folder


def _needs_start_row(loaded: Loaded, config: Mapping[str, Any]) -> bool:
    """Whether a model is ours, of one vocabulary, and does not start with the padding, as Marian's models do."""
    if START in loaded.config:
        return True
    ours = loaded.config.get("model_type") == "regard" and loaded.tokenizers[1] is None
    return ours and config["decoder_start_token_id"] != config["pad_token_id"]


def can_be_published(loaded: Loaded) -> bool:
    """Whether `write_huggingface` can write a model."""
    try:
        _published_form(loaded)
    except InputError:
        return False
    return True


def _published_form(loaded: Loaded) -> tuple[Family, dict[str, Any], dict[str, Tensor]]:
    """The family that can hold a model, with its config and tensors."""
    network, tokenizers = loaded.network, loaded.tokenizers
    published = PublishedModel(network.description, network.vocabulary, network.source_vocabulary)
    if published.source_vocabulary is not None:
        published = replace(published, model=replace(published.model, shared=False))
    # RoBERTa counts positions of the tokens other than 1, which must be the padding.
    pads_with_one = id_or_none(lambda: tokenizers[0].pad) == 1
    families = [family for family in FAMILIES if pads_with_one or family is not ROBERTA]
    model_type = loaded.config.get("model_type")
    return _equivalent(published, network, sorted(families, key=lambda f: f.name != model_type))


def _special_token_ids(loaded: Loaded) -> dict[str, int | None]:
    """The ids of special tokens in config.json."""
    network, target = loaded.network, loaded.tokenizers[1] or loaded.tokenizers[0]
    pad = loaded.generation_config.get("pad_token_id")  # source and target may have different padding tokens
    pad = pad if pad in range(network.vocabulary) else target.pad
    if network.shape == "encoder-decoder":
        start = {"decoder_start_token_id": target.bos, "bos_token_id": None}
    else:
        start = {"bos_token_id": id_or_none(lambda: target.bos)}
    return {**start, "eos_token_id": target.eos, "pad_token_id": pad}


def _family(config: Mapping[str, Any], folder: Path) -> Family:
    """The family of a config.json; older ones lack `model_type`, but name an architecture or have settings of BERT."""
    model_type, architectures = config.get("model_type"), config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    for family in FAMILIES:
        named = model_type == family.name or model_type in family.aliases
        if named or (model_type is None and family.own_name(first) in family.architectures):
            return family
    if model_type is None and first is None and config.keys() >= _ONLY_BERT:
        return BERT
    raise messages.UNKNOWN_ARCHITECTURE(found=model_type, folder=folder)


def _architecture(family: Family, config: Mapping[str, Any], weights: PublishedWeights, where: str) -> str:
    """The architecture that config.json names, or the bare model where the weights hold no head."""
    names = config.get("architectures") or [family.architectures[0]]
    name = family.own_name(names[0]) if isinstance(names, list) else None
    if name not in family.architectures:
        raise InputError(f"architecture {names!r} is not supported ({where}). "
                         f"regard reads: {', '.join(family.architectures)}.")  # fmt: skip
    bare = re.sub(r"For(MaskedLM|PreTraining)$", "Model", name)
    if bare in family.architectures and not any(re.search(family.unprefixed, name) for name in weights.shapes):
        return bare
    return str(name)


def _from_config(family: Family, values: Mapping[str, Any], weights: PublishedWeights, where: str) -> PublishedModel:
    """The model that config.json describes; every setting is used or refused."""
    config = ConfigReader(values, where)
    config.ignore("regard_version", START)
    architecture = _architecture(family, values, weights, where)
    try:
        published = family.from_config(config, weights, architecture)
    except InputError as error:
        raise DamagedFile(f"{where} cannot be used: {error}") from error
    config.finish()
    return published


def _match(
    family: Family, published: PublishedModel, shapes: Shapes, folder: Path, sentence: SentenceModules | None
) -> list[Match]:
    """Match published tensors to our parameters and check their names and shapes."""
    model = published.model
    stacks = [stack for stack in (model.encoder, model.decoder) if stack is not None]
    require_depth(sum(len(stack.layers) for stack in stacks), len(shapes), folder)
    ours = parameter_shapes(model, (published.vocabulary, published.source_vocabulary), f"{folder}/config.json")
    matches = match_rows((*family.rows(published), *(sentence.rows() if sentence else ())), list(ours))
    for match in matches:
        found = shapes.get(match.theirs[0], ())[:1]
        named = match.ours == "readout.out.weight" and not match.row.operations
        if named and found and found != ours[match.ours][:1]:
            raise messages.OTHER_LABELS(named=ours[match.ours][0], found=found[0], folder=folder)
    # Files of sentence encoders may still hold the heads of pretraining.
    ignored = (*family.ignored, r"^pooler\.", family.unprefixed) if sentence else family.ignored
    check_names_and_shapes(matches, ours, shapes, ignored, folder)
    return matches


def _files(folder: Path) -> tuple[dict[str, Path], Shapes]:
    """The file and the shape of each tensor, by name: from one file, or from the shards that an index names."""
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        shapes = read_shapes(folder / WEIGHTS)
        return dict.fromkeys(shapes, folder / WEIGHTS), shapes
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise DamagedFile(f"{folder / INDEX} has no weight_map. Copy or download it again.")
    shards = {name: read_shapes(_shard(folder, name)) for name in sorted(set(weight_map.values()))}
    missing = [tensor for tensor, name in weight_map.items() if tensor not in shards[name]]
    if missing:
        shard = weight_map[missing[0]]
        raise DamagedFile(f"{shard} lacks {missing[0]}, which {folder / INDEX} says it holds. Download it again.")
    paths = {tensor: folder / name for name, shapes in shards.items() for tensor in shapes}
    return paths, {tensor: shape for shapes in shards.values() for tensor, shape in shapes.items()}


def _shard(folder: Path, name: str) -> Path:
    """The path of a shard, which must be inside the folder."""
    if not name.endswith(".safetensors") or not is_inside(folder, name):
        raise messages.OUTSIDE(index=folder / INDEX, name=name[:100])
    return folder / name


def _read_tokenizers(folder: Path, network: Network, generation_config: Mapping[str, Any]) -> Tokenizers:
    """Read the tokenizers, with the start and end tokens of the generation config."""
    both = network.shape == "encoder-decoder"
    pad = generation_config.get("pad_token_id")
    start = generation_config.get("decoder_start_token_id", pad) if both else None
    ends = generation_config.get("eos_token_id") if network.shape != "encoder" else None
    end = ends[0] if isinstance(ends, list) else ends
    sizes = network.source_vocabulary or network.vocabulary, network.vocabulary
    if not has_tokenizer(folder):
        first, second = (id_tokenizer(folder, size, generation_config, start=start, end=end) for size in sizes)
        return first, None if network.source_vocabulary is None else second
    tokenizers = read_huggingface_tokenizers(folder, start=start, end=end)
    for tokenizer, size in zip((tokenizers[0], tokenizers[1] or tokenizers[0]), sizes):
        if tokenizer.vocabulary > size:
            raise messages.FOREIGN_TOKENIZER(path=folder, found=tokenizer.vocabulary, known=size)
    # A folder of ours has two tokenizers wherever the two embeddings are separate.
    return tokenizers if network.source_vocabulary is None else (tokenizers[0], tokenizers[1] or tokenizers[0])


def _equivalent(
    published: PublishedModel, network: Network, families: Sequence[Family]
) -> tuple[Family, dict[str, Any], dict[str, Tensor]]:
    """The family that can hold this model, with its config and tensors; else an error that names the differences."""
    faults: list[tuple[bool, int, str]] = []
    for family in families:
        try:
            config = family.to_config(published)
            tensors = _to_theirs(family, published, network, config["architectures"][0])
            found = {family.without_prefix(name): tensor for name, tensor in tensors.items()}
            shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
            weights = PublishedWeights(shapes, found.__getitem__)
            again = _from_config(family, {"model_type": family.name, **config}, weights, "config.json")
        except (TypeError, ValueError, KeyError, IndexError, DamagedFile):
            continue
        different = _differences(_comparable(published.model), _comparable(again.model))
        if not different:
            ours = [name for name, _ in network.named_parameters()]
            ours = [name for name in ours if not name.startswith("readout.dense.")]  # which have files of their own
            lost = sorted(set(ours) - {match.ours for match in match_rows(family.rows(published), ours)})
            assert not lost, f"no row of {family.name}'s table holds {lost}"
            return family, config, tensors
        other_shape = again.model.shape != published.model.shape
        faults.append((other_shape, len(different), f"{family.name} has no {' and no '.join(different[:3])}"))
    none = True, 0, f"no family that others know has {_unpublished_parts(published.model)}"
    nearest = min(faults, default=none)[-1]
    raise InputError(f"this model has no published form: {nearest}. It can only be saved as regard's own folder.")


def _unpublished_parts(model: Model) -> str:
    """The sublayers of a model that no published family has."""
    plain = to_dict(model)
    stacks = {side: plain[side]["layers"] for side in ("encoder", "decoder") if plain[side] is not None}
    kinds = {side: {part["kind"]: "" for layer in layers for part in layer} for side, layers in stacks.items()}
    parts = [f"{side} = {kind}" for side, found in kinds.items() for kind in found if kind not in _PUBLISHED_KINDS]
    return " and no ".join(parts) or "layers like these"


def _to_theirs(family: Family, published: PublishedModel, network: Network, architecture: str) -> dict[str, Tensor]:
    """Our parameters as published tensors, by their names."""
    ours = dict(network.named_parameters())
    theirs: dict[str, Tensor] = {}
    for match in match_rows(family.rows(published), list(ours)):
        for name, tensor in match.to_theirs(ours[match.ours].detach()).items():
            theirs[name] = torch.cat([theirs[name], tensor]) if match.row.is_half and name in theirs else tensor
    match published.model.readout:
        case Vocabulary(biased=False):
            theirs |= family.zero_bias(published.vocabulary)
    return {family.with_prefix(name, architecture): tensor.clone().contiguous() for name, tensor in theirs.items()}


def _comparable(model: Model) -> Any:
    """A model as a dict with default widths filled in, and pooled vectors in one form."""
    plain = to_dict(model)
    for side in ("encoder", "decoder"):
        for part in [part for layer in (plain[side] or {"layers": []})["layers"] for part in layer]:
            if "key_width" in part:
                part["key_width"] = part["key_width"] or model.width // part["heads"]
    match model.embed:
        case Embed(position=Axial() as position):
            plain["embed"]["position"]["widths"] = list(position.split_width(model.width))
    if plain["readout"]["kind"] == "vector" and plain["readout"]["inner"] is None:
        plain["readout"] = {"kind": "vector"}
    if model.shape != "encoder-decoder":
        del plain["shared"]
    return plain


def _differences(ours: Any, theirs: Any, key: str = "") -> list[str]:
    """The keys in which two descriptions differ, of those that change the output; equal layers are named once."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.get("kind") == theirs.get("kind"):
        names = [name for name in ours if name not in _TRAINING_ONLY]
        return [
            fault for name in names for fault in _differences(ours[name], theirs.get(name), f"{key}.{name}".lstrip("."))
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return list(dict.fromkeys(fault for a, b in zip(ours, theirs) for fault in _differences(a, b, key)))
    if ours == theirs:
        return []
    value = ours.get("kind", ours) if isinstance(ours, dict) else ours
    return [f"{key} = {'none' if value is None else toml_value(value)}"]
