"""Decoding options: beam search, length penalty, sampling, constraints; read without torch, which starts slowly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from regard.errors import InputError
from regard.store.generation_config import LIMITS

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T", float, "Tensor")

LengthNormalization = Literal["wu", "length"]
"""The length that scores are normalized by: (5 + tokens) / 6 (Wu 2016, equation 14), or tokens (Hugging Face)."""

EarlyStopping = bool | Literal["soon", "never"]
"""When beam search stops. "soon": when no unfinished hypothesis can beat the finished ones within `SOON` more tokens.

The others are Hugging Face's. "never": when none can beat them up to the length limit; False: when none would if it
finished now; True: as soon as there are as many finished hypotheses as beams."""

SOON = 5  # more tokens; looking as far as the limit took 1.25 to 1.6 times as many steps and found the same texts


@dataclass(frozen=True)
class Options:
    """Decoding options. A temperature above 0 samples; otherwise beam 1 is greedy search, and more is beam search."""

    beam: int = 1  # hypotheses that the search keeps; 1 is greedy
    n_best: int = 1  # results per text
    length_penalty: float = 0.6  # scores are divided by the length to this power (Wu 2016)
    normalization: LengthNormalization = "wu"  # how length_penalty divides: by Wu's formula, or by the length
    early_stopping: EarlyStopping = "soon"  # when a beam search ends
    coverage_penalty: float = 0.0  # Wu 2016: lowers the score when source tokens get little attention
    temperature: float = 0.0  # divides the logits before sampling; 0 does not sample
    top_k: int = 0  # samples among so many tokens; 0: all
    top_p: float = 1.0  # nucleus sampling (Holtzman 2020)
    min_p: float = 0.0  # samples among tokens at least this share as probable as the best
    typical: float = 1.0  # locally typical sampling (Meister 2022): this probability, of tokens of usual surprise
    epsilon: float = 0.0  # epsilon sampling (Hewitt 2022): tokens at least so probable
    seed: int = 0  # of sampling
    no_repeat_ngram: int = 0  # no sequence of so many tokens occurs twice; 0: any may
    repetition_penalty: float = 1.0  # divides the logits of tokens that occurred before (Keskar 2019)
    min_tokens: int = 0  # the end token is not allowed before
    max_tokens: int | None = None  # by default as many as the model and the source allow
    stop: tuple[str, ...] = ()  # strings that end a text
    suppress_tokens: tuple[int, ...] = ()  # never generated
    begin_suppress_tokens: tuple[int, ...] = ()  # not generated first
    forced_bos: int | None = None  # generated first, whatever the model predicts
    forced_eos: tuple[int, ...] = ()  # the only tokens allowed at the length limit
    renormalize_logits: bool = False  # Hugging Face's beam search: renormalize after all constraints
    extra_eos: tuple[int, ...] = ()  # end a text, in addition to the end token
    presence_penalty: float = 0.0  # OpenAI: subtracted from the logits of tokens that were generated before
    frequency_penalty: float = 0.0  # OpenAI: the same, once per time that they were generated
    logit_bias: tuple[tuple[int, float], ...] = ()  # OpenAI: (token, number added to its logit)
    beam_groups: int = 1  # diverse beam search (Vijayakumar 2016): groups that the beams are shared among
    diversity: float = 0.5  # subtracted per beam of an earlier group that takes the same token

    def __post_init__(self) -> None:
        bounds: dict[str, tuple[float, float]] = {
            "n_best": (1, 1024), "temperature": (0, 100), "top_k": (0, 1 << 31), "top_p": (0, 1), "min_p": (0, 1),
            "min_tokens": (0, 1 << 31), "max_tokens": (0, 1 << 31), "coverage_penalty": (0, 100),
            "presence_penalty": (-100, 100), "frequency_penalty": (-100, 100), "typical": (0, 1), "epsilon": (0, 1),
            "beam_groups": (1, 1024), "diversity": (0, 100),
            **{_HUGGING_FACE[name]: limits for name, limits in LIMITS.items()},
        }  # fmt: skip
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            is_number = value is None or isinstance(value, Real)
            if not is_number:
                raise InputError(f"{name} must be a number, got {value!r}.")
            if value is not None and not least <= value <= most:
                raise InputError(f"{name} must be {least} to {most}, got {value}.")
        if self.n_best > self.beam and self.temperature == 0:
            raise InputError(f"n_best {self.n_best} needs a beam of at least {self.n_best}, got beam {self.beam}.")

        if self.beam_groups > 1 and self.temperature > 0:
            raise InputError(
                "beam_groups shares the beams of a search, and a temperature above 0 samples. Leave it out."
            )
        if self.beam % self.beam_groups:
            raise InputError(f"beam_groups must divide the beam, got {self.beam_groups} groups of {self.beam} beams.")

    @property
    def constrains_logits(self) -> bool:
        """Whether any option changes logits before candidates are taken from them."""
        tokens = self.suppress_tokens, self.begin_suppress_tokens, self.forced_eos, self.logit_bias
        numbers = self.min_tokens, self.no_repeat_ngram, self.presence_penalty, self.frequency_penalty
        return any(tokens) or any(numbers) or self.forced_bos is not None or self.repetition_penalty != 1.0

    def penalty(self, length: T) -> T:
        """The length penalty (Wu 2016): a sum of log-probabilities of this many tokens is divided by it."""
        counted: T = (5 + length) / 6 if self.normalization == "wu" else length
        divisor: T = counted**self.length_penalty
        return divisor

    def best_length(self, tokens: T, limit: T) -> T:
        """The most favourable length that a hypothesis may reach by the rule of early stopping, if its limit allows."""
        if isinstance(self.early_stopping, bool):
            return tokens
        if self.length_penalty <= 0:
            return tokens + 1
        if self.early_stopping == "never":
            return limit
        return tokens + SOON

    def with_tokens_of(self, own: Options) -> Options:
        """These options with the suppressed, forced and end tokens of a model's own, and what else they leave open."""
        return replace(
            self, max_tokens=own.max_tokens if self.max_tokens is None else self.max_tokens, extra_eos=own.extra_eos,
            suppress_tokens=own.suppress_tokens, begin_suppress_tokens=own.begin_suppress_tokens,
            forced_eos=own.forced_eos, min_tokens=self.min_tokens or own.min_tokens,
            no_repeat_ngram=self.no_repeat_ngram or own.no_repeat_ngram,
            repetition_penalty=own.repetition_penalty if self.repetition_penalty == 1.0 else self.repetition_penalty,
        )  # fmt: skip


MOST_BEAMS = int(LIMITS["num_beams"][1])

_HUGGING_FACE = {
    "num_beams": "beam", "length_penalty": "length_penalty", "normalization": "normalization",
    "no_repeat_ngram_size": "no_repeat_ngram", "repetition_penalty": "repetition_penalty",
    "min_new_tokens": "min_tokens", "max_new_tokens": "max_tokens", "renormalize_logits": "renormalize_logits",
}  # fmt: skip


def default_options(generation_config: Mapping[str, Any], *, ours: bool, translates: bool) -> Options:
    """The options of a generation_config.json; a folder that is not ours keeps Hugging Face's defaults."""
    found: dict[str, Any] = {} if ours else {"length_penalty": 1.0, "normalization": "length", "early_stopping": False}
    if translates:  # Hugging Face's lengths count the decoder's start token, and a language model's prompt
        for theirs, name in (("min_length", "min_tokens"), ("max_length", "max_tokens")):
            if generation_config.get(theirs) is not None:
                found[name] = max(0, generation_config[theirs] - 1)
        found["forced_bos"] = generation_config.get("forced_bos_token_id")
    for theirs, name in _HUGGING_FACE.items():
        if generation_config.get(theirs) is not None:
            found[name] = generation_config[theirs]
    early_stopping = generation_config.get("early_stopping")
    if isinstance(early_stopping, bool) or early_stopping == "never":
        found["early_stopping"] = early_stopping
    bad_words = [word[0] for word in generation_config.get("bad_words_ids") or () if len(word) == 1]
    found["suppress_tokens"] = tuple(sorted({*bad_words, *(generation_config.get("suppress_tokens") or ())}))
    found["begin_suppress_tokens"] = tuple(sorted(set(generation_config.get("begin_suppress_tokens") or ())))
    found["extra_eos"] = _unique_tokens(generation_config.get("eos_token_id"))[1:]
    found["forced_eos"] = _unique_tokens(generation_config.get("forced_eos_token_id"))
    return Options(**found)


def _unique_tokens(tokens: int | list[int] | None) -> tuple[int, ...]:
    """One token or several, each once."""
    return tuple(dict.fromkeys(tokens)) if isinstance(tokens, list) else () if tokens is None else (tokens,)
