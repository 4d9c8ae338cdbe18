"""Many requests to one model: sorted by length, searched in batches, answered in the order they came."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard import messages
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.options import Options
from regard.decode.search import Hypothesis, Watch, search
from regard.errors import InputError
from regard.layers.contract import Ablation, Context, Source
from regard.models.model import Network

_ROWS = 128
_TOKENS = 16_384
_APART = 1_000_003


@dataclass(frozen=True)
class Request:
    """What is said already, what is to be translated if anything, how much may be said, and the seed of the draw."""

    prompt: tuple[int, ...]
    source: tuple[int, ...] | None
    limit: int
    seed: int = 0
    opening: int = 1  # how many tokens of the prompt stand before its text

    @property
    def length(self) -> int:
        """What it costs to read."""
        return len(self.prompt) + len(self.source or ())


@dataclass(frozen=True)
class Answer:
    """Something a model said, as text."""

    text: str
    score: float
    log_probability: float
    tokens: tuple[int, ...]
    ended: bool
    alignment: tuple[tuple[int, int], ...] | None = None  # (source word, target word), when asked for


Progress = Callable[[float], None]
"""Is told how many more are done."""


def translate(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer],
    texts: Sequence[str],
    options: Options,
    *,
    prefixes: Sequence[str] | None = None,
    progress: Progress = lambda done: None,
    first: int = 1,
) -> list[list[Answer]]:
    """The best translations of each text, best first; each begins with its prefix, if there is one.

    `first` is the number of the first line, by which a text that cannot be read is named.
    """
    requests = to_translate(network, tokenizers, texts, options, prefixes=prefixes, first=first)
    return speak(network, tokenizers[1], requests, options, progress)


def to_translate(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer],
    texts: Sequence[str],
    options: Options,
    *,
    prefixes: Sequence[str] | None = None,
    first: int = 1,
) -> list[Request]:
    """What is asked of a network that is to translate these texts."""
    source, target = tokenizers
    prefixes = [""] * len(texts) if prefixes is None else prefixes
    if len(prefixes) != len(texts):
        raise InputError(f"{len(texts):,} texts and {len(prefixes):,} prefixes: give one prefix a text.")
    begun = target.encode_batch(prefixes)
    requests = []
    for place, (ids, prefix) in enumerate(zip(source.encode_batch(texts), begun)):
        read = (*ids, source.end)
        require_room(network, len(read), f"line {first + place:,}")
        requests.append(translation(network, target, read, options, prefix=prefix, place=place))
    return requests


def translation(
    network: Network,
    target: Tokenizer,
    read: tuple[int, ...],
    options: Options,
    *,
    prefix: Sequence[int] = (),
    place: int = 0,
) -> Request:
    """What is asked of a network that is to translate a source, which ends with its end token."""
    limit = options.max_tokens if options.max_tokens is not None else 2 * len(read) + 50
    # Nothing is what an empty line means in any language.
    limit = room(network, limit, len(prefix) + 1) if len(read) > 1 else 0
    return Request((target.begin, *prefix), read, limit, options.seed + place)


def extend(
    network: Network,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    options: Options,
    *,
    progress: Progress = lambda done: None,
) -> list[list[Answer]]:
    """The best continuations of each text, best first, the text itself included."""
    return speak(network, tokenizer, to_extend(network, tokenizer, prompts, options), options, progress)


def to_extend(network: Network, tokenizer: Tokenizer, prompts: Sequence[str], options: Options) -> list[Request]:
    """What is asked of a network that is to go on with these texts."""
    requests = []
    for place, ids in enumerate(tokenizer.encode_batch(prompts)):
        prompt = opened(tokenizer, ids)
        require_room(network, len(prompt), f"prompt {place + 1:,}")
        limit = room(network, 200 if options.max_tokens is None else options.max_tokens, len(prompt))
        requests.append(Request(prompt, None, limit, options.seed + place, len(prompt) - len(ids)))
    return requests


def speak(
    network: Network,
    tokenizer: Tokenizer,
    requests: Sequence[Request],
    options: Options,
    progress: Progress = lambda done: None,
    *,
    watch: Watch | None = None,
    ablation: Ablation | None = None,
) -> list[list[Answer]]:
    """Search, and turn tokens into text; what opens a prompt is not part of it."""
    stopped = None
    if options.stop:

        def stopped(said: list[int]) -> bool:
            text = tokenizer.decode(said)
            return any(stop in text for stop in options.stop)

    # A search finds its n best at once; a draw is made n times, each from a seed of its own.
    draws = options.n_best if options.temperature > 0 else 1
    drawn = [replace(request, seed=request.seed + draw * _APART) for draw in range(draws) for request in requests]
    found = answer(
        network, drawn, options, end=tokenizer.end, stopped=stopped, progress=progress, watch=watch, ablation=ablation
    )
    answers = []
    for place, request in enumerate(requests):
        hypotheses = [said for row in found[place :: len(requests)] for said in row]
        hypotheses.sort(key=lambda said: -said.score)
        prompt = request.prompt[request.opening :]
        start = len(tokenizer.decode(prompt))
        answers.append(
            [
                Answer(
                    before_stop(tokenizer.decode([*prompt, *said.tokens]), start, options.stop),
                    said.score,
                    said.log_probability,
                    said.tokens,
                    said.ended,
                )
                for said in hypotheses
            ]
        )
    return answers


def opened(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[int, ...]:
    """A language model's prompt with what opens it; an empty one is at least begun."""
    return (*tokenizer.opening, *ids) or (tokenizer.begin,)


def before_stop(text: str, start: int, stops: tuple[str, ...]) -> str:
    """The text up to the first stop string after the prompt."""
    ends = [place for stop in stops if (place := text.find(stop, start)) >= 0]
    return text[: min(ends)] if ends else text


def require_room(network: Network, tokens: int, what: str) -> None:
    """Refuse a text that the model cannot read at once."""
    if network.max_positions is not None and tokens > network.max_positions:
        raise messages.TOO_LONG(what=what, tokens=tokens, longest=network.max_positions)


def room(network: Network, limit: int, used: int) -> int:
    """How many of `limit` tokens fit behind those in use."""
    return limit if network.max_positions is None else max(0, min(limit, network.max_positions - used))


def answer(
    network: Network,
    requests: Sequence[Request],
    options: Options,
    *,
    end: int,
    stopped: Callable[[list[int]], bool] | None = None,
    progress: Progress = lambda done: None,
    watch: Watch | None = None,
    ablation: Ablation | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses for each request; `watch` is told of each step, `change` switches heads off."""
    answers: list[list[Hypothesis]] = [[] for _ in requests]
    with torch.inference_mode():
        for places in batches(requests, _TOKENS // options.beam):
            chosen = [requests[place] for place in places]
            found = search(
                network,
                [request.prompt for request in chosen],
                options,
                end=end,
                limits=[request.limit for request in chosen],
                source=read_sources(network, [request.source for request in chosen], ablation),
                seeds=[request.seed for request in chosen],
                stopped=stopped,
                watch=watch,
                ablation=ablation,
            )
            for place, hypotheses in zip(places, found):
                answers[place] = hypotheses
            progress(len(places))
    return answers


def read_sources(
    network: Network, sources: Sequence[Sequence[int] | None], ablation: Ablation | None = None
) -> Source | None:
    """What the encoder says of some sources of unequal length; None for a model without an encoder."""
    if network.encoder is None:
        return None
    ids, padding = padded([source or () for source in sources], next(network.parameters()).device)
    return network.encode_source(ids, context=Context(padding=padding, ablation=ablation))


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Rows of unequal length -> BT, and True where there is a token, or None when there is one everywhere."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    uneven = min(map(len, rows)) < longest
    return ids, torch.arange(longest, device=device) < lengths[:, None] if uneven else None


def batches(requests: Sequence[Request], tokens: int = _TOKENS) -> Iterator[list[int]]:
    """Places of requests, the longest first, in batches of so many tokens."""
    return by_length([request.length for request in requests], tokens)


def by_length(lengths: Sequence[int], tokens: int = _TOKENS) -> Iterator[list[int]]:
    """Places of rows of these lengths, the longest first, in batches of so many tokens."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        widest = lengths[batch[0]] if batch else 0
        if batch and (len(batch) >= _ROWS or (len(batch) + 1) * widest > tokens):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
