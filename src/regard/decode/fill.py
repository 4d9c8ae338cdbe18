"""Mask filling: tokens for [MASK] by a masked language model, spans for sentinels by a span-corruption model (T5)."""

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
from regard.decode.generate import QUIET, Progress, Request, generate_tokens, translation_request
from regard.decode.inputs import add_special_tokens, batched_inputs, check_length
from regard.decode.options import Options
from regard.decode.score import forced_log_probabilities
from regard.decode.workers import Workers
from regard.errors import InputError
from regard.models.model import Network

_MASKS = ("[MASK]", "<mask>")


@dataclass(frozen=True)
class Fill:
    """A prediction for one mask: its tokens, their text and their probability."""

    tokens: tuple[int, ...]
    text: str
    probability: float


@dataclass(frozen=True)
class FilledText:
    """A text with the best prediction in place of each mask, and the predictions for each mask, best first."""

    text: str
    masks: list[list[Fill]]


@dataclass(frozen=True, eq=False)
class Masks:
    """Finds mask tokens or sentinels in a text; other special tokens, such as "</s>", remain plain text."""

    tokenizer: Tokenizer
    names: tuple[str, ...]  # the texts of the mask tokens

    @classmethod
    def of(cls, tokenizer: Tokenizer, ids: Sequence[int]) -> Masks:
        """The masks with these token ids."""
        return cls(tokenizer, tuple(tokenizer.token_texts(ids)))

    def split(self, text: str) -> tuple[list[str], list[str]]:
        """The parts of a text around its masks, and the name of each; [MASK] becomes the next unused sentinel."""
        names = sorted({*self.names, *_MASKS}, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text)
        used = set(parts[1::2])
        unused = iter([name for name in self.names if name not in used] if len(self.names) > 1 else ())
        masks = [name if name in self.names else next(unused, self.names[0]) for name in parts[1::2]]
        if len(self.names) > 1 and len(set(masks)) < len(masks):
            raise InputError(f"a mask occurs twice, or there are more than {len(self.names)}. Use each once.")
        return parts[::2], masks

    def encode(self, parts: Sequence[str], masks: Sequence[str]) -> list[int]:
        """The tokens of a text with masks, as split."""
        text = "".join(part for pair in zip(parts, [*masks, ""]) for part in pair)
        return self._mask_tokenizer.encode(text)

    def append(self, before: str, tokens: Sequence[int]) -> str:
        """Append tokens to a text, with a space between if the first token starts a word."""
        bare = before.rstrip(" ")
        if not tokens:
            return bare if self._words_include_space else before
        text, first = self.tokenizer.decode(tokens), self.tokenizer.token_texts(tokens[:1])[0]
        if self._continuation and first.startswith(self._continuation):
            return bare + text.removeprefix(self._continuation)
        if self._continuation or not self._words_include_space:
            return before + text
        return f"{bare} {text.lstrip(' ')}" if bare and first.startswith("▁") else bare + text.lstrip(" ")

    @cached_property
    def _continuation(self) -> str:
        """WordPiece's prefix of tokens that continue a word, ##; empty in other tokenizers."""
        return str(json.loads(self.tokenizer.to_json())["model"].get("continuing_subword_prefix") or "")

    @cached_property
    def _words_include_space(self) -> bool:
        """Whether a word is encoded with the space before it; its mask then replaces the space too."""
        return len(self.tokenizer.words("a b")) > 1

    @cached_property
    def _mask_tokenizer(self) -> Tokenizer:
        """The tokenizer with masks as ordinary added tokens, so that it finds them in a text."""
        plain = json.loads(self.tokenizer.to_json())
        takes_space = self._words_include_space if len(self.names) > 1 else self.tokenizer.mask_takes_space
        for token in plain["added_tokens"]:
            if token["content"] in self.names:
                lstrip = token["lstrip"] or takes_space
                token |= {"special": False, "normalized": False, "lstrip": lstrip}
        return Tokenizer.from_json(json.dumps(plain), self.tokenizer.special_tokens)


def encode_masked(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text, mask tokens included."""
    if not any(mask in text for mask in _MASKS):
        return tokenizer.encode(text)
    masks = Masks.of(tokenizer, [tokenizer.mask])
    return masks.encode(*masks.split(text))


def encode_sentinels(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text, sentinels included."""
    masks = Masks.of(tokenizer, tokenizer.sentinels)
    if not any(name in text for name in masks.names):
        return tokenizer.encode(text)
    return masks.encode(*masks.split(text))


@torch.inference_mode()
def fill_masks(
    network: Network, tokenizer: Tokenizer, texts: Sequence[str], *, top: int, progress: Progress = QUIET
) -> list[FilledText]:
    """The most likely tokens for each mask, by a masked language model; each mask is filled independently."""
    masks = Masks.of(tokenizer, [tokenizer.mask])
    split = [masks.split(text) for text in texts]
    _require_masks(split, tokenizer.token_texts([tokenizer.mask])[0])
    rows = [masks.encode(*parts) for parts in split]
    found: dict[int, list[list[Fill]]] = {}

    def fill(batch: tuple[list[int], dict[str, Tensor]]) -> list[tuple[int, list[list[Fill]]]]:
        states = network.hidden_states(**batch[1])  # type: ignore[arg-type]
        masked = (batch[1]["ids"] == tokenizer.mask).nonzero()
        fills = _top_tokens(network, tokenizer, states[masked[:, 0], masked[:, 1]], top)
        grouped = groupby(zip(masked[:, 0].tolist(), fills), key=lambda pair: pair[0])
        return [(row, [fills for _, fills in group]) for row, group in grouped]

    for (indices, _), filled in Workers(network).run(batched_inputs(network, tokenizer, [rows]), fill):
        found |= {indices[row]: fills for row, fills in filled}
        progress(len(indices))
    return [_fill_in(masks, parts, found[index]) for index, (parts, _) in enumerate(split)]


def fill_spans(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer],
    texts: Sequence[str],
    options: Options,
    *,
    top: int,
    progress: Progress = QUIET,
) -> list[FilledText]:
    """The most likely spans for each sentinel, by a model trained on span corruption (Raffel 2019)."""
    source, target = tokenizers
    masks = Masks.of(source, source.sentinels)
    split = [masks.split(text) for text in texts]
    _require_masks(split, masks.names[0])
    sentinels = dict(zip(masks.names, target.sentinels))
    requests = []
    for index, (parts, names) in enumerate(split):
        source_ids = add_special_tokens(network, source, masks.encode(parts, names))
        check_length(network, len(source_ids), f"text {index + 1:,}")
        # The target starts with the first mask's sentinel.
        requests.append(translation_request(network, target, source_ids, options, prefix=[sentinels[names[0]]]))
    options = replace(options, n_best=top, beam=max(top, options.beam), temperature=0.0)
    results = generate_tokens(network, requests, options, eos=target.eos, progress=progress)
    # Each hypothesis as a whole target from BOS to EOS.
    rows = [
        (index, (*requests[index].prompt, *hypothesis.tokens, *((target.eos,) if hypothesis.ended else ())))
        for index, found in enumerate(results)
        for hypothesis in found
    ]
    values = forced_log_probabilities(network, [Request(row, requests[index].source, 0) for index, row in rows])
    spans = [(index, _parse_spans(target, row[1:], of_row)) for (index, row), of_row in zip(rows, values)]
    filled, missing = [], Fill((), "", 0.0)
    for index, (parts, names) in enumerate(split):
        own = [found for owner, found in spans if owner == index]
        fills = [[found.get(sentinels[name], missing) for found in own] for name in names]
        distinct = [list({fill.tokens: fill for fill in reversed(some)}.values())[::-1] for some in fills]
        best = [[found.get(sentinels[name], missing)] for name in names for found in own[:1]]
        filled.append(replace(_fill_in(masks, parts, best), masks=distinct))
    return filled


def _top_tokens(network: Network, tokenizer: Tokenizer, states: Tensor, top: int) -> list[list[Fill]]:
    """PD -> the most likely tokens at each of P positions, without special tokens."""
    known = torch.from_numpy(np.flatnonzero(ordinary_tokens(tokenizer))).to(states.device)
    best = network.readout(states).float().softmax(-1)[:, known].topk(min(top, len(known)))
    return [
        [Fill((token,), tokenizer.decode([token]), probability) for token, probability in zip(*row)]
        for row in zip(known[best.indices].tolist(), best.values.tolist())
    ]


def _fill_in(masks: Masks, parts: Sequence[str], fills: list[list[Fill]]) -> FilledText:
    text = parts[0]
    for part, some in zip(parts[1:], fills):
        text = masks.append(text, some[0].tokens) + part
    return FilledText(text, fills)


def _parse_spans(tokenizer: Tokenizer, target: Sequence[int], values: Sequence[float]) -> dict[int, Fill]:
    """The span after each sentinel, with the probability of its tokens and of the sentinel or EOS that ends it."""
    delimiters = {*tokenizer.sentinels, tokenizer.eos}
    starts = [position for position, token in enumerate(target) if token in delimiters]
    found: dict[int, Fill] = {}
    for start, stop in zip(starts, [*starts[1:], len(target)]):
        tokens = tuple(target[start + 1 : stop])
        probability = math.exp(sum(values[start + 1 : stop + 1]))
        found.setdefault(target[start], Fill(tokens, tokenizer.decode(tokens).strip(), probability))
    return found


def _require_masks(split: Sequence[tuple[list[str], list[str]]], name: str) -> None:
    for index, (_, masks) in enumerate(split):
        if not masks:
            names = " or ".join(dict.fromkeys((name, "[MASK]")))
            raise InputError(f"text {index + 1:,} has no mask to fill. Write {names} where a word is missing.")
