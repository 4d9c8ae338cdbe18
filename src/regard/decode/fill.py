"""Words that are missing from a text, said by a model that has learnt to: single tokens, or spans."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from regard.data.tasks.masked_lm import ordinary_tokens
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.generate import Progress, Request, answer, require_room, room
from regard.decode.inputs import readings
from regard.decode.options import Options
from regard.decode.score import forced
from regard.decode.search import Hypothesis
from regard.errors import InputError
from regard.models.model import Network

_MASKS = ("[MASK]", "<mask>")


@dataclass(frozen=True)
class Choice:
    """What may stand in a gap: its tokens, how they read, and how likely they are."""

    tokens: tuple[int, ...]
    text: str
    probability: float


@dataclass(frozen=True)
class Filled:
    """A text with the best choice in each gap, and the choices for each gap, best first."""

    text: str
    masks: list[list[Choice]]


@dataclass(frozen=True, eq=False)
class Gaps:
    """A tokenizer that finds gaps in a text; whatever else a text holds, even "</s>", stays text."""

    tokenizer: Tokenizer
    names: tuple[str, ...]  # how gaps are written, as the tokenizer has it

    @classmethod
    def of(cls, tokenizer: Tokenizer, ids: Sequence[int]) -> Gaps:
        """Gaps that these tokens stand for."""
        return cls(tokenizer, tuple(tokenizer.token_texts(ids)))

    def cut(self, text: str) -> tuple[list[str], list[str]]:
        """What stands around the gaps of a text, and how each is written; a mask is the next name not yet used."""
        spelled = sorted({*self.names, *_MASKS}, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, spelled))})", text)
        used = set(parts[1::2])
        rest = iter([name for name in self.names if name not in used] if len(self.names) > 1 else ())
        written = [name if name in self.names else next(rest, self.names[0]) for name in parts[1::2]]
        if len(self.names) > 1 and len(set(written)) < len(written):
            raise InputError(f"a gap is named twice, or there are more than {len(self.names)}. Name each once.")
        return parts[::2], written

    def encode(self, around: Sequence[str], gaps: Sequence[str]) -> list[int]:
        """A text with gaps as tokens."""
        text = "".join(part for pair in zip(around, [*gaps, ""]) for part in pair)
        return self._finder.encode(text)

    def put(self, before: str, tokens: Sequence[int]) -> str:
        """A text with some tokens behind it, which know themselves whether a space stands before them."""
        bare = before.rstrip(" ")
        if not tokens:
            return bare if self._spaced else before
        said, shown = self.tokenizer.decode(tokens), self.tokenizer.token_texts(tokens[:1])[0]
        if self._marked and shown.startswith(self._marked):
            return bare + said.removeprefix(self._marked)
        if self._marked or not self._spaced:
            return before + said
        return f"{bare} {said.lstrip(' ')}" if bare and shown.startswith("▁") else bare + said.lstrip(" ")

    @cached_property
    def _marked(self) -> str:
        """What stands before a token that goes on with a word, where there is such a mark: ##."""
        return str(json.loads(self.tokenizer.to_json())["model"].get("continuing_subword_prefix") or "")

    @cached_property
    def _spaced(self) -> bool:
        """Whether a word is encoded with the space before it, which its gap then stands for too."""
        return len(self.tokenizer.words("a b")) > 1

    @cached_property
    def _finder(self) -> Tokenizer:
        """The tokenizer, to which the names of gaps are no more special, so that it finds them in a text."""
        plain = json.loads(self.tokenizer.to_json())
        for token in plain["added_tokens"]:
            if token["content"] in self.names:
                token |= {"special": False, "normalized": False, "lstrip": token["lstrip"] or self._spaced}
        return Tokenizer.from_json(json.dumps(plain), self.tokenizer.roles)


def encode_masked(tokenizer: Tokenizer, text: str) -> list[int]:
    """A text as tokens, its masks among them."""
    if not any(mask in text for mask in _MASKS):
        return tokenizer.encode(text)
    gaps = Gaps.of(tokenizer, [tokenizer.mask])
    return gaps.encode(*gaps.cut(text))


def encode_spans(tokenizer: Tokenizer, text: str) -> list[int]:
    """A text as tokens, its sentinels among them."""
    gaps = Gaps.of(tokenizer, tokenizer.sentinels)
    if not any(name in text for name in gaps.names):
        return tokenizer.encode(text)
    return gaps.encode(*gaps.cut(text))


@torch.inference_mode()
def fill_masks(
    network: Network, tokenizer: Tokenizer, texts: Sequence[str], *, top: int, progress: Progress = lambda done: None
) -> list[Filled]:
    """The likeliest tokens for each mask, by a model that sees all of the text; each mask is filled on its own."""
    gaps = Gaps.of(tokenizer, [tokenizer.mask])
    cuts = [gaps.cut(text) for text in texts]
    _require_gaps(cuts, tokenizer.token_texts([tokenizer.mask])[0])
    rows = [gaps.encode(*cut) for cut in cuts]
    found: dict[int, list[list[Choice]]] = {}
    for places, inputs in readings(network, tokenizer, [rows]):
        states = network.hidden_states(**inputs)  # type: ignore[arg-type]
        hidden = (inputs["ids"] == tokenizer.mask).nonzero()
        choices = _likeliest(network, tokenizer, states[hidden[:, 0], hidden[:, 1]], top)
        owners = hidden[:, 0].tolist()
        for row, of_row in groupby(zip(owners, choices), key=lambda pair: pair[0]):
            found[places[row]] = [chosen for _, chosen in of_row]
        progress(len(places))
    return [_filled(gaps, around, found[place]) for place, (around, _) in enumerate(cuts)]


def fill_spans(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer],
    texts: Sequence[str],
    options: Options,
    *,
    top: int,
    progress: Progress = lambda done: None,
) -> list[Filled]:
    """The likeliest spans for each gap, as a model has learnt to say them: each behind its sentinel (Raffel 2019)."""
    source, target = tokenizers
    gaps = Gaps.of(source, source.sentinels)
    cuts = [gaps.cut(text) for text in texts]
    _require_gaps(cuts, gaps.names[0])
    numbers = dict(zip(gaps.names, target.sentinels))
    requests = []
    for place, cut in enumerate(cuts):
        read = (*gaps.encode(*cut), source.end)
        require_room(network, len(read), f"text {place + 1:,}")
        limit = options.max_tokens if options.max_tokens is not None else 2 * len(read) + 50
        # What is to be said begins with the sentinel of the first gap.
        requests.append(Request((target.begin, numbers[cut[1][0]]), read, room(network, limit, 2)))
    wide = replace(options, n_best=top, beam=max(top, options.beam), temperature=0.0)
    answers = answer(network, requests, wide, end=target.end, progress=progress)
    asked = [(place, said) for place, found in enumerate(answers) for said in found]
    rows = [_whole(requests[place], said, target.end) for place, said in asked]
    values = forced(network, [Request(row, requests[place].source, 0) for row, (place, _) in zip(rows, asked)])
    spans = [_spans(target, row[1:], of_row) for row, of_row in zip(rows, values)]
    filled = []
    for place, (around, names) in enumerate(cuts):
        said = [found for found, (owner, _) in zip(spans, asked) if owner == place]
        missing = Choice((), "", 0.0)
        choices = [[found.get(numbers[name], missing) for found in said] for name in names]
        distinct = [list({choice.tokens: choice for choice in reversed(some)}.values())[::-1] for some in choices]
        best = [[found.get(numbers[name], missing)] for name in names for found in said[:1]]
        filled.append(replace(_filled(gaps, around, best), masks=distinct))
    return filled


def _likeliest(network: Network, tokenizer: Tokenizer, states: Tensor, top: int) -> list[list[Choice]]:
    """PD -> the best tokens for each of P, special ones left out."""
    known = torch.from_numpy(np.flatnonzero(ordinary_tokens(tokenizer))).to(states.device)
    best = network.readout(states).float().softmax(-1)[:, known].topk(min(top, len(known)))
    return [
        [Choice((token,), tokenizer.decode([token]), probability) for token, probability in zip(*row)]
        for row in zip(known[best.indices].tolist(), best.values.tolist())
    ]


def _filled(gaps: Gaps, around: Sequence[str], choices: list[list[Choice]]) -> Filled:
    text = around[0]
    for part, some in zip(around[1:], choices):
        text = gaps.put(text, some[0].tokens) + part
    return Filled(text, choices)


def _whole(request: Request, said: Hypothesis, end: int) -> tuple[int, ...]:
    """All that was said, from begin to end."""
    return (*request.prompt, *said.tokens, *((end,) if said.ended else ()))


def _spans(tokenizer: Tokenizer, said: Sequence[int], values: Sequence[float]) -> dict[int, Choice]:
    """What stands behind each sentinel, as likely as its tokens and what closes it; the first counts."""
    marks = {*tokenizer.sentinels, tokenizer.end}
    places = [place for place, token in enumerate(said) if token in marks]
    found: dict[int, Choice] = {}
    for start, stop in zip(places, [*places[1:], len(said)]):
        tokens = tuple(said[start + 1 : stop])
        likely = math.exp(sum(values[start + 1 : stop + 1]))
        found.setdefault(said[start], Choice(tokens, tokenizer.decode(tokens).strip(), likely))
    return found


def _require_gaps(cuts: Sequence[tuple[list[str], list[str]]], name: str) -> None:
    for place, (_, gaps) in enumerate(cuts):
        if not gaps:
            raise InputError(f"text {place + 1:,} has no gap to fill. Write {name} or [MASK] where a word is missing.")
