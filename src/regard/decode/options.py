"""What a search may say next: constraints on the logits, and the draw of a sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from regard.errors import InputError

T = TypeVar("T", float, Tensor)

Normalization = Literal["wu", "length"]
"""What counts as length: (5 + tokens) / 6 (Wu 2016, equation 14), or the tokens, as Hugging Face has it."""

Ending = Literal["exact", "likely", "full"]
"""When a beam search ends: when nothing alive can end better than what is there; when it would not if it ended now; or
as soon as there are as many answers as beams. Hugging Face's early_stopping "never", false and true."""


@dataclass(frozen=True)
class Options:
    """How to search. A temperature above 0 draws samples; otherwise beam 1 is greedy and more is beam search."""

    beam: int = 1
    n_best: int = 1
    length_penalty: float = 0.6  # scores are divided by the length to this power
    normalization: Normalization = "wu"
    ending: Ending = "exact"
    coverage_penalty: float = 0.0  # Wu 2016: punishes source words that nobody attended to
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    never: tuple[int, ...] = ()  # tokens that are never said
    not_first: tuple[int, ...] = ()  # tokens that are not said first
    first: int | None = None  # what is said first, if it is not for the model to say
    last: tuple[int, ...] = ()  # what alone may be said where no more than one token may follow
    renormalised: bool = False  # Hugging Face's beams: probabilities add up to 1 again after all rules
    also_end: tuple[int, ...] = ()  # tokens that end a text, beside the end token

    def __post_init__(self) -> None:
        bounds: list[tuple[str, float, float, float]] = [
            ("beam", self.beam, 1, 1024),
            ("n_best", self.n_best, 1, 1024),
            ("temperature", self.temperature, 0, 100),
            ("top_k", self.top_k, 0, 1 << 31),
            ("top_p", self.top_p, 0, 1),
            ("min_p", self.min_p, 0, 1),
            ("no_repeat_ngram", self.no_repeat_ngram, 0, 1 << 20),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100),
            ("min_tokens", self.min_tokens, 0, 1 << 31),
            ("max_tokens", 1 if self.max_tokens is None else self.max_tokens, 0, 1 << 31),
            ("coverage_penalty", self.coverage_penalty, 0, 100),
            ("length_penalty", self.length_penalty, -10, 10),
        ]
        for name, value, least, most in bounds:
            if not least <= value <= most:
                raise InputError(f"{name} must be {least} to {most}, got {value}.")
        if self.n_best > self.beam and self.temperature == 0:
            raise InputError(f"n_best {self.n_best} needs a beam of at least {self.n_best}, got beam {self.beam}.")

    def penalty(self, length: T) -> T:
        """What the sum of log-probabilities of so many tokens is divided by."""
        counted: T = (5 + length) / 6 if self.normalization == "wu" else length
        divisor: T = counted**self.length_penalty
        return divisor


Propose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""(log-probabilities A k N of the next token, A k of the past) -> candidates A c: their sums, parents and tokens."""


def competing(beam: int, ends: int = 1) -> Propose:
    """Beam search: the best 2k continuations of a sentence's k beams, so that k remain even if k of them end.

    Where several tokens end a text, each of k beams may end in as many ways.
    """
    count = (1 + ends) * beam

    def propose(following: Tensor, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # The best of all beams are among the best of each.
        best, words = following.topk(min(count, following.shape[-1]), dim=-1)
        sums = (past[..., None] + best).flatten(1)
        short = max(0, count - sums.shape[1])
        sums = torch.nn.functional.pad(sums, (0, short), value=-torch.inf)
        values, flat = sums.topk(count, dim=1)
        parents = (flat // best.shape[-1]).clamp_max(past.shape[1] - 1)
        return values, parents, torch.nn.functional.pad(words.flatten(1), (0, short)).gather(1, flat)

    return propose


def greedy(following: Tensor, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuation of the one row a sentence has."""
    best, tokens = following[:, 0].max(dim=-1, keepdim=True)
    return past + best, torch.zeros_like(tokens), tokens


def drawing(options: Options, numbers: Callable[[], Tensor]) -> Propose:
    """One draw a row; `numbers` gives each row its own next random number, so neighbours do not matter."""

    def propose(following: Tensor, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        following = following[:, 0]
        probabilities, order = (following / options.temperature).softmax(dim=-1).sort(dim=-1, descending=True)
        ranks = torch.arange(order.shape[-1], device=order.device)
        keep = probabilities >= options.min_p * probabilities[:, :1]
        keep &= probabilities.cumsum(-1) - probabilities < options.top_p
        if options.top_k:
            keep &= ranks < options.top_k
        keep |= ranks == 0
        heights = (probabilities * keep).double().cumsum(dim=-1)
        drawn = numbers().to(heights) * heights[:, -1]
        chosen = (heights <= drawn[:, None]).sum(dim=-1, keepdim=True)
        # A draw at the very top must not fall on a word that was ruled out.
        chosen = torch.minimum(chosen, keep.sum(dim=-1, keepdim=True) - 1)
        tokens = order.gather(1, chosen)
        return past + following.gather(1, tokens), torch.zeros_like(tokens), tokens

    return propose


class RandomNumbers:
    """A stream of numbers in [0, 1) for each row, from its own seed; drawn in blocks as they are needed."""

    block = 64

    def __init__(self, seeds: Sequence[int]) -> None:
        self.generators = [torch.Generator().manual_seed(seed % (1 << 63)) for seed in seeds]
        self.drawn = torch.zeros(len(seeds), 0)

    def at(self, step: int) -> Tensor:
        """-> R: every row's number of this step."""
        while step >= self.drawn.shape[1]:
            more = [torch.rand(self.block, generator=generator) for generator in self.generators]
            self.drawn = torch.cat([self.drawn, torch.stack(more)], dim=1)
        return self.drawn[:, step]


def constrain(
    logits: Tensor, history: Tensor, options: Options, *, made: int, end: int, over: Tensor | None = None
) -> Tensor:
    """RN logits under the options' rules; `history` RL is all that was said (-1 where a row has no token).

    `over` R says which rows may say one more token only.
    """
    unwanted = list(options.never)
    if made < options.min_tokens:
        unwanted += [end, *options.also_end]
    if made == (options.first is not None):
        unwanted += options.not_first
    if unwanted:
        logits = logits.index_fill(1, torch.tensor(unwanted, device=logits.device), -torch.inf)
    if options.repetition_penalty != 1.0:
        seen = torch.zeros_like(logits, dtype=torch.bool)
        seen.scatter_(1, history.clamp_min(0), history >= 0)
        # Two writes to token 0 (a real one and a clamped one) must end as the real one.
        seen[:, 0] = (history == 0).any(dim=1)
        punished = torch.where(logits > 0, logits / options.repetition_penalty, logits * options.repetition_penalty)
        logits = torch.where(seen, punished, logits)
    if options.no_repeat_ngram:
        logits = logits.clone()
        for row, said in enumerate(history.tolist()):
            banned = _completing([token for token in said if token >= 0], options.no_repeat_ngram)
            logits[row, banned] = -torch.inf
    if options.first is not None and made == 0:
        logits = _only(logits, (options.first,), (history >= 0).sum(dim=1) == 1)
    if options.last and over is not None:
        logits = _only(logits, options.last, over)
    return logits


def _only(logits: Tensor, tokens: tuple[int, ...], rows: Tensor) -> Tensor:
    """Nothing but these tokens in some rows, and they for certain."""
    certain = torch.full_like(logits[:1], -torch.inf)
    certain[:, list(tokens)] = 0.0
    return torch.where(rows[:, None], certain, logits)


def _completing(said: list[int], length: int) -> list[int]:
    """The tokens that would say again a run of `length` tokens that was said before."""
    if len(said) < length:
        return []
    tail = said[len(said) - length + 1 :]
    return [said[i + length - 1] for i in range(len(said) - length + 1) if said[i : i + length - 1] == tail]


_ENDINGS: tuple[tuple[object, Ending], ...] = ((False, "likely"), (True, "full"), ("never", "exact"))
_KNOWN = {
    "num_beams": "beam",
    "length_penalty": "length_penalty",
    "normalization": "normalization",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "repetition_penalty": "repetition_penalty",
    "min_new_tokens": "min_tokens",
    "max_new_tokens": "max_tokens",
    "renormalize_logits": "renormalised",
}


def default_options(generation: Mapping[str, Any], *, ours: bool, translates: bool) -> Options:
    """The options; a folder that is not ours counts length and ends as Hugging Face does."""
    said: dict[str, Any] = {} if ours else {"length_penalty": 1.0, "normalization": "length", "ending": "likely"}
    if translates:  # their lengths count the token that begins, and a language model's prompt
        for theirs, name in (("min_length", "min_tokens"), ("max_length", "max_tokens")):
            if generation.get(theirs) is not None:
                said[name] = max(0, generation[theirs] - 1)
    said |= {name: generation[theirs] for theirs, name in _KNOWN.items() if generation.get(theirs) is not None}
    stopping = generation.get("early_stopping")
    for value, ending in _ENDINGS:
        if type(value) is type(stopping) and value == stopping:
            said["ending"] = ending
    words = [word[0] for word in generation.get("bad_words_ids") or () if len(word) == 1]
    said["never"] = tuple(sorted({*words, *(generation.get("suppress_tokens") or ())}))
    said["not_first"] = tuple(sorted(set(generation.get("begin_suppress_tokens") or ())))
    if translates:  # a language model begins with its prompt
        said["first"] = generation.get("forced_bos_token_id")
    said["also_end"] = _several(generation.get("eos_token_id"))[1:]
    said["last"] = _several(generation.get("forced_eos_token_id"))
    return Options(**said)


def _several(said: int | list[int] | None) -> tuple[int, ...]:
    """One token or several, each once."""
    return tuple(dict.fromkeys(said)) if isinstance(said, list) else () if said is None else (said,)
