"""A published config.json, read with nothing passed over: what is not honoured is refused by name, all at once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import DamagedFile, InputError
from regard.layers.feedforward import Activation
from regard.models.model import Model, Readout
from regard.models.readouts import NEXT_SENTENCE, First, Label, Number, Pool, Tags, Vector, Vocabulary
from regard.schema import from_dict
from regard.store.huggingface.weights import Names, Row

_LARGEST = 1 << 40
_LABELS = 100_000

ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu", "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "silu": "silu", "swish": "silu", "tanh": "tanh",
}  # fmt: skip
PUBLISHED: dict[Activation, str] = {
    "relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu", "tanh": "tanh",
}  # fmt: skip

# How a model speaks: older folders say it in config.json.
GENERATION = {
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "min_p",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id",
    "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id",
}  # fmt: skip

# What changes nothing of what a model computes.
_HARMLESS = GENERATION | {
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
    "do_lower_case",
}  # fmt: skip
_ASSUMED: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False,), "add_cross_attention": (False,), "cross_attention_hidden_size": (),
    "tie_encoder_decoder": (False,), "pruned_heads": ({},), "quantization_config": (),
}  # fmt: skip


class Settings:
    """What config.json says; each question is remembered, so that what nobody asked for can be refused.

    "n_head|num_attention_heads" asks for one setting that has two names.
    """

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config, self.where = config, where
        self._asked = set(_HARMLESS)
        self._refused: list[str] = []

    def whole(self, name: str, default: int | None = None, *, least: int = 1, most: int = _LARGEST) -> int:
        """A whole number."""
        value = self._value(int, name, default)
        if not least <= value <= most:
            shown = name.partition("|")[0]
            raise DamagedFile(f"{shown} must be {least:,} to {most:,}, got {value:,} ({self.where}). Copy it again.")
        return int(value)

    def perhaps(self, name: str) -> int | None:
        """A whole number, or nothing."""
        self.leave(name)
        return None if self.config.get(name) is None else self.whole(name, least=-_LARGEST)

    def counts(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Several whole numbers, or one alone."""
        said = self._value(int | tuple[int, ...], name, default)
        numbers = (said,) if isinstance(said, int) else said
        if not all(0 < number <= _LARGEST for number in numbers):
            raise DamagedFile(f"{name} must be 1 to {_LARGEST:,}, got {list(numbers)} ({self.where}). Copy it again.")
        return tuple(numbers)

    def pair(self, name: str, default: tuple[int, int]) -> tuple[int, int]:
        """Two whole numbers."""
        found = self.counts(name, default)
        if len(found) != 2:
            raise DamagedFile(f"{name} must be two numbers, got {list(found)} ({self.where}). Copy it again.")
        return found[0], found[1]

    def words(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """Several words."""
        return tuple(self._value(tuple[str, ...], name, default))

    def depth(self, name: str, default: int | None = None) -> int:
        """How many layers; far more than anyone publishes are refused before they are described."""
        return self.whole(name, default, most=10_000)

    def number(self, name: str, default: float) -> float:
        """A number."""
        return float(self._value(float, name, default))

    def epsilon(self, name: str, default: float) -> float:
        """What keeps a norm from dividing by nothing."""
        value = self.number(name, default)
        if not 0 < value < 1:
            raise DamagedFile(f"{name} must be above 0 and below 1, got {value} ({self.where}). Copy it again.")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        return bool(self._value(bool, name, default))

    def word(self, name: str, default: str) -> str:
        """Text."""
        return str(self._value(str, name, default))

    def activation(self, name: str, default: str) -> Activation:
        """A nonlinearity, in our names."""
        found = self.word(name, default)
        if found not in ACTIVATIONS:
            self.refuse(name, found)
        return ACTIVATIONS.get(found, "gelu")

    def assume(self, name: str, *values: Any) -> None:
        """Only these values, or nothing said, are honoured."""
        self._asked.add(name)
        said = self.config.get(name)
        if said is not None and said not in values:
            self.refuse(name, said)

    def leave(self, *names: str) -> None:
        """Settings that change nothing here: how much was dropped while others trained."""
        self._asked.update(names)

    def refuse(self, name: str, value: Any) -> None:
        """Remember a setting that is not honoured."""
        self._refused.append(f"{name} = {json.dumps(value)[:60]}")

    def labels(self) -> tuple[str, ...]:
        """The names of classes, in the order of their numbers."""
        said = self.config.get("id2label")
        if said is None:
            count = self.whole("num_labels|_num_labels", 2, most=_LABELS)
            said = {str(number): f"LABEL_{number}" for number in range(count)}
        fits = isinstance(said, dict) and len(said) <= _LABELS and all(isinstance(name, str) for name in said.values())
        if not fits or {str(number) for number in said} != {str(number) for number in range(len(said))}:
            raise DamagedFile(f"id2label does not number its names 0, 1, 2, ... ({self.where}). Copy it again.")
        return tuple(said[str(number)] for number in range(len(said)))

    def settle(self) -> None:
        """Refuse, with the full list, what was not honoured and what nobody asked for."""
        for name, values in _ASSUMED.items():
            if name not in self._asked:
                self.assume(name, *values)
        for name in sorted(self.config.keys() - self._asked):
            if self.config[name] is not None:
                self.refuse(name, self.config[name])
        if self._refused:
            raise InputError(f"config.json asks for what regard does not do: {', '.join(self._refused)} "
                             f"({self.where}). What changes nothing can be taken out of it.")  # fmt: skip

    def _value(self, kind: Any, name: str, default: Any) -> Any:
        names = name.split("|")
        self._asked.update(names)
        found = [name for name in names if self.config.get(name) is not None]
        if not found:
            if default is None:
                raise DamagedFile(f"{names[0]} is missing ({self.where}). Copy or download it again.")
            return default
        name, said = found[0], self.config[found[0]]
        for other in found[1:]:
            if self.config[other] != said:
                raise DamagedFile(f"{name} and {other} are one setting, and differ ({self.where}). Copy it again.")
        try:
            return from_dict(kind, said, where=self.where)
        except InputError as error:
            raise DamagedFile(f"{name}: {error} Copy or download it again.") from None


SPAN = ("start", "end")  # where an answer begins and ends


@dataclass(frozen=True)
class Weights:
    """Published tensors under the names the family's table has: shapes first, values only where they decide."""

    shapes: Names
    read: Callable[[str], Tensor]

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors are one and the same, or the first is not there."""
        if one not in self.shapes or other not in self.shapes:
            return one not in self.shapes
        return self.shapes[one] == self.shapes[other] and torch.equal(self.read(one), self.read(other))

    def zero(self, name: str) -> bool:
        """Whether a tensor says nothing."""
        return name not in self.shapes or not self.read(name).any()


@dataclass(frozen=True)
class Published:
    """A model with its vocabularies, the source's second when it has its own."""

    model: Model
    vocabulary: int
    source_vocabulary: int | None = None


@dataclass(frozen=True)
class Family:
    """One kind of published model; `architectures` begins with what a folder holds that does not say."""

    name: str
    architectures: tuple[str, ...]
    rows: Callable[[Model], tuple[Row, ...]]
    describe: Callable[[Settings, Weights, str], Published]
    configure: Callable[[Published], dict[str, Any]]
    prefix: str = ""
    outside: str = "^$"  # names that never have the prefix
    ignored: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()  # settings that say nothing of our model, but something to others
    constant: Callable[[Published], Mapping[str, Tensor]] = lambda published: {}

    def stripped(self, name: str) -> str:
        """A tensor's name in the table: without the prefix, and as it is written today."""
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
        return name.removeprefix(self.prefix)

    def prefixed(self, name: str, architecture: str) -> str:
        """A tensor's name in a file of this architecture."""
        bare = architecture.endswith("Model") and not architecture.endswith(("LMHeadModel", "MTModel"))
        return name if bare or re.search(self.outside, name) else self.prefix + name


def pooled_readout(
    kind: str, settings: Settings, *, pool: Pool, inner: Activation | None, dropout: float, biased: bool = True
) -> Readout | None:  # fmt: skip
    """The readout of an architecture that says something other than words; None for those that say words."""
    if kind == "ForSequenceClassification":
        names = settings.labels()
        settings.assume("problem_type", "regression" if len(names) == 1 else "single_label_classification")
        if len(names) == 1:
            return Number(pool, inner, dropout, biased)
        return Label(names, pool, inner, dropout, biased)
    settings.leave("problem_type")
    if kind == "ForTokenClassification":
        return Tags(settings.labels(), dropout)
    if kind == "ForQuestionAnswering":
        return Tags(SPAN, dropout)
    if kind == "ForNextSentencePrediction":
        return Label(NEXT_SENTENCE, First(), "tanh", dropout)
    return None


def head(model: Model, words: str) -> tuple[str, dict[str, Any]]:
    """The last part of an architecture's name, and what config.json says of its classes."""
    match model.readout:
        case Label(names=names) if names == NEXT_SENTENCE:
            return "ForNextSentencePrediction", {}
        case Label(names=names):
            return "ForSequenceClassification", {"problem_type": "single_label_classification", **_named(names)}
        case Number():
            return "ForSequenceClassification", {"problem_type": "regression", **_named(("LABEL_0",))}
        case Tags(names=names) if names == SPAN:
            return "ForQuestionAnswering", {}
        case Tags(names=names):
            return "ForTokenClassification", _named(names)
        case Vector():
            return "Model", {}
        case Vocabulary() if model.auxiliary is not None:
            return "ForPreTraining", {}
        case _:
            return words, {}


def _named(names: tuple[str, ...]) -> dict[str, Any]:
    return {"id2label": {str(number): name for number, name in enumerate(names)},
            "label2id": {name: number for number, name in enumerate(names)}}  # fmt: skip
