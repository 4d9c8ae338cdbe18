"""Adapter folders in PEFT's layout, adapter_config.json and adapter_model.safetensors: read, folded in, and written.

The tensors have the names of the model that the adapter was trained on: those of Hugging Face for a published model, so
that PEFT loads them onto it, else ours. An adapter is folded into the weights when it is loaded: W_0 + (alpha / r) B A.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import DamagedFile, InputError
from regard.layers.lora import Adapter, LoRA, adapted_maps, adapter_parts, changing_parameters, whole_parts
from regard.models.model import Network
from regard.store.files import ignore_write_point, json_bytes, read_json, read_tensors, tensors_to_bytes
from regard.store.huggingface.folder import Names, published_names
from regard.store.huggingface.weights import TRANSPOSED, Match, Row, row
from regard.store.loading import Loaded, require_finite
from regard.store.manifest import write_model_files

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE_DIGEST = "base_sha256"  # key of config.json: the weights that an adapter of ours was trained on

_PREFIX = "base_model.model."
_PART = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<which>[AB])(\.default)?(\.weight)?")
_MOST_NAME = 1000  # characters of a tensor's name
# What matches modules that have a rank or an alpha of their own: names, classes, a few groups of names, and little that
# repeats, so that no name keeps it busy.
_MOST_PATTERNS, _MOST_GROUPS, _MOST_REPEATED = 10_000, 3, 3
_SAFE_PATTERN = re.compile(r"\^?(?:[\w-]|\.[*+]?|\\\.|\\d\+?|\[[\w-]+\]\+?|\((?:\?:)?[\w.|-]+\))*\$?")
# Settings that change no answer, or that the tensors themselves tell.
_UNUSED = {
    "auto_mapping", "base_model_name_or_path", "bias", "exclude_modules", "fan_in_fan_out", "inference_mode",
    "layers_pattern", "layers_to_transform", "lora_dropout", "megatron_core", "modules_to_save", "peft_version",
    "qalora_group_size", "revision", "target_modules", "task_type", "ensure_weight_tying", "runtime_config",
}  # fmt: skip
_USED = {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "init_lora_weights"}
_PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")  # the others change the base model's weights


@lru_cache(_MOST_PATTERNS)
def _matcher(pattern: str) -> re.Pattern[str]:
    """What PEFT matches the names of modules with."""
    return re.compile(rf"(.*\.)?({pattern})$")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter instead of a model."""
    return (folder / CONFIG).is_file()


@dataclass(frozen=True)
class Factors:
    """The two factors that an adapter has for a module; their product is computed once it is known to fit."""

    module: str
    A: Tensor
    B: Tensor
    flipped: bool  # of an embedding, whose product is transposed

    def shape(self, *, transposed: bool) -> tuple[int, ...]:
        """The shape of the product."""
        shape = len(self.B), self.A.shape[1]
        return shape[::-1] if transposed != self.flipped else shape


@dataclass(frozen=True)
class AdapterFile:
    """The contents of an adapter folder."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]  # without the prefix that all of PEFT's names have

    @property
    def base(self) -> str:
        """The model that the adapter was trained on: a folder or a name on the hub; empty if the adapter names none."""
        return str(self.config.get("base_model_name_or_path") or "")

    def scale(self, module: str) -> float:
        """The factor of a module's adapter: alpha / r, or with rsLoRA alpha / sqrt(r) (Kalajdzievski 2023)."""
        rank, alpha = (
            float(self._for_module(f"{name}_pattern", module, self.config.get(key, 8)))
            for name, key in (("rank", "r"), ("alpha", "lora_alpha"))
        )
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    def _for_module(self, key: str, module: str, otherwise: Any) -> Any:
        """A setting that some modules have of their own, under a regular expression of their names."""
        for pattern, value in (self.config.get(key) or {}).items():
            if pattern == module or module.endswith(f".{pattern}") or _matcher(pattern).match(module):
                return value
        return otherwise

    def changes(self) -> tuple[dict[str, Factors], dict[str, Tensor]]:
        """What is added to weights, and what replaces tensors, by name."""
        added, replaced, halves = dict[str, Factors](), dict[str, Tensor](), dict[str, dict[str, Tensor]]()
        for name, tensor in self.tensors.items():
            part = _PART.fullmatch(name)
            if part is None:
                plain = re.sub(r"\.(base_layer|modules_to_save(\.default)?)(?=\.)", "", name)
                replaced[plain] = tensor
                continue
            halves.setdefault(part["module"], {})[part["which"]] = tensor
            if part["embedding"] and part["which"] == "B":
                halves[part["module"]]["embedding"] = tensor
        for module, own in halves.items():
            matrices = own.keys() >= {"A", "B"} and own["A"].dim() == own["B"].dim() == 2
            if not matrices or own["A"].shape[0] != own["B"].shape[1]:
                raise DamagedFile(f"{module} has no matching lora_A and lora_B ({self.folder / WEIGHTS}). "
                                  "Copy or download the adapter again.")  # fmt: skip
            added[f"{module}.weight"] = Factors(module, own["A"], own["B"], "embedding" in own)
        return added, replaced

    def matrix(self, factors: Factors, *, transposed: bool) -> Tensor:
        """What is added to a weight: scale * B A, in torch's orientation or transposed."""
        rank = self._for_module("rank_pattern", factors.module, self.config.get("r", 8))
        if rank != len(factors.A):
            raise DamagedFile(f"{factors.module} has factors of rank {len(factors.A)}, {CONFIG} says {rank} "
                              f"({self.folder}). Copy or download the adapter again.")  # fmt: skip
        product = factors.B @ factors.A * self.scale(factors.module)
        require_finite(f"the adapter of {factors.module}", product, self.folder)
        return product.T if transposed != factors.flipped else product

    def summary(self, modules: Sequence[str]) -> Adapter:
        """The adapter as models list it."""
        rank, alpha = int(self.config.get("r", 8)), float(self.config.get("lora_alpha", 8))
        return Adapter(str(self.folder), self.base, rank, alpha, tuple(modules))


def read_adapter(folder: Path) -> AdapterFile:
    """Read an adapter; whatever is not LoRA, or would change its answers in ways we do not know, is refused by name."""
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(f"{folder} holds no adapter: there is no {CONFIG}. Name a folder that PEFT or regard wrote.")
    config = read_json(path)
    if config.get("peft_type") != "LORA":
        raise InputError(f"peft_type is {config.get('peft_type')!r} ({path}). regard reads adapters of the type LORA.")
    start = config.get("init_lora_weights", True)
    if start not in _PLAIN_STARTS:
        raise InputError(
            f"init_lora_weights = {start!r} has changed the base model's weights ({path}). Save the adapter for the "
            "unchanged model: save_pretrained(path_initial_model_for_weight_conversion=...)."
        )
    for key, value in config.items():
        if key not in _UNUSED | _USED and value not in (None, False, {}, [], "", 0):
            raise InputError(f"the setting {key} = {value!r} is not supported ({path}). Merge the adapter with PEFT.")
    _check_numbers(config, path)
    if not (folder / WEIGHTS).is_file() and (folder / "adapter_model.bin").is_file():
        raise InputError(f"{folder / 'adapter_model.bin'} is a pickle, which can run code; refused. Save the adapter "
                         "with safe_serialization=True.")  # fmt: skip
    tensors = read_tensors(folder / WEIGHTS)
    for name, tensor in tensors.items():
        require_finite(name, tensor, folder)
        if not name.startswith(_PREFIX) or len(name) > _MOST_NAME:
            raise DamagedFile(
                f"{name[:_MOST_NAME]} does not begin with {_PREFIX} ({folder / WEIGHTS}). Is it an adapter's file?"
            )
    return AdapterFile(folder, config, {name.removeprefix(_PREFIX): one.float() for name, one in tensors.items()})


def _check_numbers(config: Mapping[str, Any], path: Path) -> None:
    """Refuse ranks and alphas that are not numbers above 0, and patterns that some name would keep busy for hours."""
    patterns = [config.get(key) or {} for key in ("rank_pattern", "alpha_pattern")]
    try:
        if sum(map(len, patterns)) > _MOST_PATTERNS:
            raise ValueError(f"it has more than {_MOST_PATTERNS:,} patterns")
        numbers = [config.get("r", 8), config.get("lora_alpha", 8), *(n for one in patterns for n in one.values())]
        for pattern in [pattern for one in patterns for pattern in one]:
            repeated = pattern.count("*") + pattern.count("+")
            simple = pattern.count("(") <= _MOST_GROUPS and repeated <= _MOST_REPEATED
            if len(pattern) > _MOST_NAME or not simple or not _SAFE_PATTERN.fullmatch(pattern):
                raise ValueError(f"the pattern {pattern[:60]!r} could hang on some name, and is not run")
        if not all(0 < float(number) < math.inf for number in numbers):
            raise ValueError(f"r and lora_alpha must be numbers above 0, got {numbers}")
    except (AttributeError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path} cannot be used: {error}. Copy or download it again.") from error


def file_names(network: Network, base: Mapping[str, Any], folder: Path) -> tuple[list[Match], Names]:
    """How an adapter's file stores and names parameters, for a base model with this config.json."""
    if base.get("model_type") in ("regard", None):
        names = [name for name, _ in network.named_parameters()]
        return [Match(row(name, name), name, (name,)) for name in names], lambda name: name
    return published_names(network, base, folder)


def fold(network: Network, adapter: AdapterFile, base: Mapping[str, Any], *, fresh: Sequence[str] = ()) -> None:
    """Add an adapter to the weights of a network; `fresh` are parameters that only the adapter holds."""
    (matches, name_of), (added, replaced) = file_names(network, base, adapter.folder), adapter.changes()
    parameters, modules, unused = dict(network.named_parameters()), list(added), {*added, *replaced}
    changed: dict[str, Tensor] = {}
    for match in matches:
        full = {name: name_of(name) for name in match.theirs}
        used = unused & set(full.values())
        if not used:
            continue
        unused -= used
        if match.row.is_half:
            raise InputError(f"{sorted(used)[0]} holds two maps of the model, which the adapter changes together "
                             f"({adapter.folder}). Merge it with PEFT.")  # fmt: skip
        theirs = {name: one.clone() for name, one in match.to_theirs(parameters[match.ours].detach()).items()}
        for name in [name for name in match.theirs if full[name] in used]:
            stored = name if name in theirs else next(iter(theirs))
            if full[name] in added and (stored != name or (len(match.theirs) > 1 and not match.row.concatenated)):
                raise InputError(f"{full[name]} shares its weights with {full[match.theirs[0]]}, the adapter changes "
                                 f"one of them only ({adapter.folder}). Merge it with PEFT.")  # fmt: skip
            factors, given, shape = added.get(full[name]), replaced.get(full[name]), tuple(theirs[stored].shape)
            transposed = TRANSPOSED in match.row.operations
            found = [tuple(given.shape)] if given is not None else []
            found += [factors.shape(transposed=transposed)] if factors is not None else []
            if wrong := [one for one in found if one != shape]:
                raise InputError(f"{full[name]} is {wrong[0]} in the adapter, {shape} in the model "
                                 f"({adapter.folder}). Is it an adapter of this model?")  # fmt: skip
            whole = theirs[stored] if given is None else given.to(theirs[stored])
            own = None if factors is None else adapter.matrix(factors, transposed=transposed).to(whole)
            theirs[stored] = whole if own is None else whole + own
        changed[match.ours] = match.to_ours(
            theirs.__getitem__, {name: tuple(one.shape) for name, one in theirs.items()}
        )
    if unused:
        known = [name_of(name) for match in matches for name in match.theirs]
        some = sorted(unused)[0]
        near = get_close_matches(some, known, n=1, cutoff=0.0)
        raise InputError(f"the model has no {some}, which the adapter changes ({adapter.folder}). The nearest name is "
                         f"{near[0] if near else 'none'}. Is it an adapter of this model?")  # fmt: skip
    missing = [name for name in fresh if name not in changed]
    if missing:
        raise DamagedFile(f"{adapter.folder / WEIGHTS} lacks {missing[0]}, which config.json describes. Copy it again.")
    with torch.no_grad():
        for name, tensor in changed.items():
            parameters[name].copy_(tensor)
    network.adapters = (*network.adapters, adapter.summary([name.removesuffix(".weight") for name in modules]))


def fold_trained(network: Network, tensors: Mapping[str, Tensor], scale: float) -> None:
    """Add adapters as a checkpoint holds them, under our own names."""
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for name, A, B in adapter_parts(tensors):
            weight = parameters[f"{name}.weight"]
            weight.add_(scale * (B @ A).to(weight))
        for name, tensor in whole_parts(tensors).items():
            parameters[name].copy_(tensor)


def digest_of(network: nn.Module) -> str:
    """The SHA-256 of a network's parameters."""
    digest = hashlib.sha256()
    for name, parameter in network.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def adapter_writer(
    network: Network, description: LoRA, base: Loaded, base_name: str
) -> tuple[dict[str, Any], Callable[..., None]]:
    """The adapter_config.json of a network with adapters, and the function that writes its tensors to a folder."""
    matches, name_of = file_names(_without_adapters(network), base.config, Path(base_name))
    by_name, trained = {match.ours: match for match in matches}, changing_parameters(network)
    halves = [name for name in adapted_maps(network) if by_name[f"{name}.weight"].row.is_half]
    if halves:
        raise InputError(f"{halves[0]} is half of a matrix in the files of {base_name}, which no adapter of PEFT "
                         "changes (train.lora.match). Leave it out.")  # fmt: skip
    modules = [name_of(name).removesuffix(".weight") for one in adapted_maps(network)
               for name in _stored(by_name[f"{one}.weight"])]  # fmt: skip
    whole = {name_of(name).rpartition(".")[0] for one in whole_parts(trained) for name in _stored(by_name[one])}
    outputs = network.description.readout.outputs
    tokens = {"decoder": "CAUSAL_LM", "encoder-decoder": "SEQ_2_SEQ_LM"}.get(network.shape)
    config = {
        "peft_type": "LORA", "task_type": tokens if outputs == "tokens" else None,
        "base_model_name_or_path": base_name, "r": description.rank,
        "lora_alpha": description.rank if description.alpha is None else description.alpha,
        "lora_dropout": description.dropout, "bias": "none", "inference_mode": True, "use_rslora": False,
        "fan_in_fan_out": any(TRANSPOSED in by_name[f"{name}.weight"].row.operations for name in adapted_maps(network)),
        "target_modules": modules, "modules_to_save": sorted(whole) or None,
    }  # fmt: skip

    def write(
        folder: Path, tensors: Mapping[str, Tensor], on_write_point: Callable[[str], None] = ignore_write_point
    ) -> None:
        stored: dict[str, Tensor] = {}
        for name, A, B in adapter_parts(tensors):
            match = by_name[f"{name}.weight"]
            for theirs, part in zip(_stored(match), _rows_of(match, B)):
                stem = f"{_PREFIX}{name_of(theirs).removesuffix('.weight')}"
                stored |= {f"{stem}.lora_A.weight": A.detach().clone(), f"{stem}.lora_B.weight": part}
        for name, tensor in whole_parts(tensors).items():
            own = by_name[name].to_theirs(tensor.detach())
            stored |= {f"{_PREFIX}{name_of(theirs)}": one.clone() for theirs, one in own.items()}
        write_model_files(folder, {WEIGHTS: tensors_to_bytes(stored)}, on_write_point)

    return config, write


def write_adapter_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write adapter_config.json."""
    write_model_files(folder, {CONFIG: json_bytes(dict(config))})


def _stored(match: Match) -> tuple[str, ...]:
    """The names under which a parameter is written."""
    return match.theirs if match.row.concatenated or match.row.write_all_names else match.theirs[:1]


def _rows_of(match: Match, columns: Tensor) -> list[Tensor]:
    """The rows of B, `columns`, for each published matrix that a fused one of ours consists of; all have the same A."""
    plain = Match(_without_transposition(match), match.ours, match.theirs)
    return [part.contiguous().clone() for part in plain.to_theirs(columns.detach()).values()]


def _without_transposition(match: Match) -> Row:
    return replace(match.row, operations=tuple(one for one in match.row.operations if one is not TRANSPOSED))


def _without_adapters(network: Network) -> Network:
    """The same description without adapters, for its names only."""
    with torch.device("meta"):
        return network.description.build(network.vocabulary, network.source_vocabulary)
