"""config.json of Hugging Face: a reader that refuses unsupported settings by name, and the families of models."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.errors import DamagedFile, InputError
from regard.layers.attention import SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import NormedInput, PostNorm, TwinNorm
from regard.layers.lsh.attention import LSHAttention
from regard.layers.positions import Axial, Learned
from regard.layers.reversible import Reversible
from regard.models.model import AnyReadout, Model, Stack
from regard.models.readouts import NEXT_SENTENCE, First, Label, MultiLabel, Number, Pool, Tags, Vector, Vocabulary
from regard.schema import from_dict
from regard.store.huggingface.weights import Row, Shapes

_MAX_INTEGER = 1 << 40
_MAX_LABELS = 100_000

ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu", "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "silu": "silu", "swish": "silu", "tanh": "tanh",
}  # fmt: skip
ACTIVATION_NAMES: dict[Activation, str] = {
    "relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu", "tanh": "tanh",
}  # fmt: skip

# Settings of generation_config.json, which older folders have in config.json.
GENERATION_SETTINGS = {
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "min_p",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id",
    "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id",
}  # fmt: skip

# Settings that do not change what a model computes.
_HARMLESS = GENERATION_SETTINGS | {
    "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "use_cache", "output_attentions",
    "output_hidden_states", "output_past", "return_dict", "torchscript", "use_bfloat16", "tf_legacy_loss",
    "chunk_size_feed_forward", "is_encoder_decoder", "id2label", "label2id", "finetuning_task", "task_specific_params",
    "tokenizer_class", "prefix", "sep_token_id", "unk_token_id", "mask_token_id", "name_or_path", "_name_or_path",
    "_commit_hash", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation",
    "gradient_checkpointing", "initializer_range", "initializer_factor", "init_std", "_num_labels", "num_labels",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
    "pooler_size_per_head", "pooler_type", "model_max_length", "language", "n_ctx", "sinusoidal_pos_embds",
    "predict_special_tokens", "n_special", "vocab_size",
    "tie_weights_", "force_bos_token_to_be_generated", "n_positions", "classif_dropout", "extra_pos_embeddings",
    "max_input_length", "adapters", "license", "source_lang", "target_lang", "sentence_transformers",
    "sbert_ce_default_activation_function", "name", "total_flos", "vocab_size_or_config_json_file", "max_seq_length",
    "do_lower_case", "eos_token_ids", "xla_device",
}  # fmt: skip
# Settings that no family supports, with the values that have no effect.
_ASSUMED: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False,), "add_cross_attention": (False,), "cross_attention_hidden_size": (),
    "tie_encoder_decoder": (False,), "pruned_heads": ({},), "quantization_config": (),
}  # fmt: skip
_HEADS = Label | MultiLabel | Number | Tags
SPAN = ("start", "end")  # the tags of extractive question answering


class ConfigReader:
    """The settings of config.json; it remembers which were read, so that all others can be refused.

    "n_head|num_attention_heads" reads one setting that has two names.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where
        self._read = set(_HARMLESS)
        self._refused: list[str] = []

    def integer(self, name: str, default: int | None = None, *, least: int = 1, most: int = _MAX_INTEGER) -> int:
        """An integer between two bounds."""
        value = self._value(int, name, default)
        if not least <= value <= most:
            first = name.partition("|")[0]
            raise DamagedFile(f"{first} must be {least:,} to {most:,}, got {value:,} ({self.where}). Copy it again.")
        return int(value)

    def optional_integer(self, name: str) -> int | None:
        self.ignore(name)
        return None if self.values.get(name) is None else self.integer(name, least=-_MAX_INTEGER)

    def integers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Several positive integers, or one not in a list."""
        value = self._value(int | tuple[int, ...], name, default)
        numbers = (value,) if isinstance(value, int) else value
        if not all(0 < number <= _MAX_INTEGER for number in numbers):
            bounds = f"1 to {_MAX_INTEGER:,}"
            raise DamagedFile(f"{name} must be {bounds}, got {list(numbers)} ({self.where}). Copy it again.")
        return tuple(numbers)

    def integer_pair(self, name: str, default: tuple[int, int]) -> tuple[int, int]:
        found = self.integers(name, default)
        if len(found) != 2:
            raise DamagedFile(f"{name} must be two numbers, got {list(found)} ({self.where}). Copy it again.")
        return found[0], found[1]

    def strings(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self._value(tuple[str, ...], name, default))

    def depth(self, name: str, default: int | None = None) -> int:
        """The number of layers; absurd numbers are refused before any layer is described."""
        return self.integer(name, default, most=10_000)

    def number(self, name: str, default: float | None = None) -> float:
        return float(self._value(float, name, default))

    def epsilon(self, name: str, default: float) -> float:
        """The epsilon of a normalization layer."""
        value = self.number(name, default)
        if not 0 < value < 1:
            raise DamagedFile(f"{name} must be above 0 and below 1, got {value} ({self.where}). Copy it again.")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        return bool(self._value(bool, name, default))

    def string(self, name: str, default: str) -> str:
        return str(self._value(str, name, default))

    def activation(self, name: str, default: str) -> Activation:
        """An activation function, by our name."""
        found = self.string(name, default)
        if found not in ACTIVATIONS:
            self.refuse(name, found)
        return ACTIVATIONS.get(found, "gelu")

    def assume(self, name: str, *values: Any) -> None:
        """Refuse a setting unless it is missing or has one of these values."""
        self._read.add(name)
        found = self.values.get(name)
        if found is not None and found not in values:
            self.refuse(name, found)

    def ignore(self, *names: str) -> None:
        """Accept settings that change nothing here, such as dropout in training."""
        self._read.update(names)

    def refuse(self, name: str, value: Any) -> None:
        """Note a setting that is not supported; `finish` raises the error."""
        self._refused.append(f"{name} = {json.dumps(value)[:60]}")

    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their ids."""
        names = self.values.get("id2label")
        if names is None:
            count = self.integer("num_labels|_num_labels", 2, most=_MAX_LABELS)
            names = {str(number): f"LABEL_{number}" for number in range(count)}
        valid = (
            isinstance(names, dict) and len(names) <= _MAX_LABELS and all(isinstance(n, str) for n in names.values())
        )
        if not valid or {str(number) for number in names} != {str(number) for number in range(len(names))}:
            raise DamagedFile(f"id2label does not number its names 0, 1, 2, ... ({self.where}). Copy it again.")
        return tuple(names[str(number)] for number in range(len(names)))

    def classification_readout(
        self, head: str, *, pool: Pool, inner: Activation | None, dropout: float, biased: bool = True
    ) -> AnyReadout | None:
        """The readout of an architecture's classification head; None for all other heads."""
        if head == "ForSequenceClassification":
            names = self.labels()
            several = self.values.get("problem_type") == "multi_label_classification"
            if several:
                self.ignore("problem_type")
                return MultiLabel(names, pool, inner, dropout, biased)
            self.assume("problem_type", "regression" if len(names) == 1 else "single_label_classification")
            if len(names) == 1:
                return Number(pool, inner, dropout, biased)
            return Label(names, pool, inner, dropout, biased)
        self.ignore("problem_type")
        if head == "ForTokenClassification":
            return Tags(self.labels(), dropout)
        if head == "ForQuestionAnswering":
            return Tags(SPAN, dropout)
        if head == "ForNextSentencePrediction":
            return Label(NEXT_SENTENCE, First(), "tanh", dropout)
        return None

    def finish(self) -> None:
        """Raise an error that lists all settings that are not supported or were never read."""
        for name, values in _ASSUMED.items():
            if name not in self._read:
                self.assume(name, *values)
        for name in sorted(self.values.keys() - self._read):
            if self.values[name] is not None:
                self.refuse(name, self.values[name])
        if self._refused:
            raise InputError(f"config.json has settings that regard does not support: {', '.join(self._refused)} "
                             f"({self.where}). Remove those that change nothing.")  # fmt: skip

    def _value(self, annotation: Any, name: str, default: Any) -> Any:
        names = name.split("|")
        self._read.update(names)
        found = [name for name in names if self.values.get(name) is not None]
        if not found:
            if default is None:
                raise DamagedFile(f"{names[0]} is missing ({self.where}). Copy or download it again.")
            return default
        name, value = found[0], self.values[found[0]]
        for other in found[1:]:
            if self.values[other] != value:
                raise DamagedFile(f"{name} and {other} are one setting, and differ ({self.where}). Copy it again.")
        try:
            return from_dict(annotation, value, where=self.where)
        except InputError as error:
            raise DamagedFile(f"{name}: {error} Copy or download it again.") from None


@dataclass(frozen=True)
class PublishedWeights:
    """Published tensors by the names of the family's table: their shapes, and values on demand."""

    shapes: Shapes
    read: Callable[[str], Tensor]

    def equal_or_missing(self, name: str, other: str) -> bool:
        """Whether a tensor equals another, or is missing: then the two are tied."""
        if name not in self.shapes or other not in self.shapes:
            return name not in self.shapes
        return self.shapes[name] == self.shapes[other] and torch.equal(self.read(name), self.read(other))

    def zero_or_missing(self, name: str) -> bool:
        """Whether a tensor is all zeros, or missing."""
        return name not in self.shapes or not self.read(name).any()


@dataclass(frozen=True)
class StackParts:
    """A stack of attention and feed-forward, with the parts of its first layer."""

    stack: Stack
    attention: SelfAttention | LSHAttention
    feedforward: FeedForward

    @classmethod
    def of(cls, stack: Stack | None) -> StackParts:
        """The parts of a stack; a TypeError if it has others."""
        match stack:
            case Stack(layers=((SelfAttention() | LSHAttention() as attention, *_, FeedForward() as feedforward), *_)):
                return cls(stack, attention, feedforward)
        raise TypeError("not a stack of attention and feed-forward")

    @property
    def depth(self) -> int:
        return len(self.stack.layers)

    @property
    def activation(self) -> str:
        """Hugging Face's name of the activation function."""
        return ACTIVATION_NAMES[self.feedforward.activation]

    @property
    def epsilon(self) -> float:
        """The epsilon of its norms; a TypeError if it has none."""
        match self.stack.join:
            case NormedInput(norm=norm) | PostNorm(norm=norm) | TwinNorm(norm=norm) | Reversible(norm=norm):
                return norm.epsilon
        raise TypeError("not a stack with norms")


@dataclass(frozen=True)
class PublishedModel:
    """A model description with its vocabulary sizes (the source's where it differs), as config.json describes it."""

    model: Model
    vocabulary: int
    source_vocabulary: int | None = None

    @property
    def encoder(self) -> StackParts:
        return StackParts.of(self.model.encoder)

    @property
    def decoder(self) -> StackParts:
        return StackParts.of(self.model.decoder)

    @property
    def embed(self) -> Embed:
        """The embedding of tokens; a TypeError for a character CNN."""
        if not isinstance(self.model.embed, Embed):
            raise TypeError("not an embedding of tokens")
        return self.model.embed

    @property
    def tied(self) -> bool:
        """`tie_word_embeddings`: false only for a readout over the vocabulary with a matrix of its own."""
        return self.model.readout.tied or not isinstance(self.model.readout, Vocabulary)

    def max_positions(self, default: int = 512) -> int:
        """The number of trained position embeddings; the default if there are none."""
        position = self.embed.position
        return position.max_positions if isinstance(position, Learned | Axial) else default

    def head_dropout(self, default: float) -> float:
        """The dropout of a classification head; the default for other readouts."""
        heads = [head for head in (self.model.readout, self.model.auxiliary) if isinstance(head, _HEADS)]
        return heads[0].dropout if heads else default

    def head(self, vocabulary_head: str = "") -> tuple[str, dict[str, Any]]:
        """The last part of the architecture's name, and the settings of its classes in config.json."""
        match self.model.readout:
            case Label(labels=names) if names == NEXT_SENTENCE:
                return "ForNextSentencePrediction", {}
            case Label(labels=names):
                return "ForSequenceClassification", {"problem_type": "single_label_classification", **_labels(names)}
            case MultiLabel(labels=names):
                return "ForSequenceClassification", {"problem_type": "multi_label_classification", **_labels(names)}
            case Number():
                return "ForSequenceClassification", {"problem_type": "regression", **_labels(("LABEL_0",))}
            case Tags(labels=names) if names == SPAN:
                return "ForQuestionAnswering", {}
            case Tags(labels=names):
                return "ForTokenClassification", _labels(names)
            case Vector():
                return "Model", {}
            case Vocabulary() if self.model.auxiliary is not None:
                return "ForPreTraining", {}
            case _:
                return vocabulary_head, {}


def _labels(names: tuple[str, ...]) -> dict[str, Any]:
    return {"id2label": {str(number): name for number, name in enumerate(names)},
            "label2id": {name: number for number, name in enumerate(names)}}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A `model_type` of Hugging Face: its architectures (the default first), weight table, and config both ways."""

    name: str
    architectures: tuple[str, ...]
    rows: Callable[[PublishedModel], tuple[Row, ...]]
    from_config: Callable[[ConfigReader, PublishedWeights, str], PublishedModel]
    to_config: Callable[[PublishedModel], dict[str, Any]]
    prefix: str = ""
    unprefixed: str = "^$"  # names that never have the prefix
    ignored: tuple[str, ...] = ()
    kept_settings: tuple[str, ...] = ()  # settings that our model does not need, but others read
    # Other model types with the same network: how the names of their architectures start, and how the family's own do.
    aliases: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    # The bias that others expect of a language model head, for a vocabulary size, where our model has none.
    zero_bias: Callable[[int], Mapping[str, Tensor]] = lambda vocabulary: {}

    def own_name(self, architecture: Any) -> Any:
        """The family's own name of an architecture: RobertaModel for XLMRobertaModel."""
        for theirs, ours in self.aliases.values():
            if isinstance(architecture, str) and architecture.startswith(theirs):
                return ours + architecture.removeprefix(theirs)
        return architecture

    def without_prefix(self, name: str) -> str:
        """A tensor's name in the weight table: without the prefix, in its modern spelling."""
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
        return name.removeprefix(self.prefix)

    def with_prefix(self, name: str, architecture: str) -> str:
        """A tensor's name in a file of this architecture."""
        bare = architecture.endswith("Model") and not architecture.endswith(("LMHeadModel", "MTModel"))
        return name if bare or re.search(self.unprefixed, name) else self.prefix + name
