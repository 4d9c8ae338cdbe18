"""BPE-dropout (Provilkov 2020): a word is cut differently each time, by leaving out merges at random."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random

from regard.errors import InputError
from regard.text.tokenizer import Tokenizer


class Dropout:
    """Encodes as a BPE tokenizer does, but each merge that could be made is passed over with a probability."""

    def __init__(self, tokenizer: Tokenizer, rate: float) -> None:
        model = json.loads(tokenizer.to_json())["model"]
        if model.get("type") != "BPE" or not model.get("merges"):
            raise InputError('bpe_dropout needs a tokenizer that merges (text.tokenizer). Use kind = "bpe".')
        merges = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._numbers: dict[str, int] = model["vocab"]
        self._tokenizer, self._rate = tokenizer, rate

    def encode(self, text: str, seed: int) -> list[int]:
        """Text to tokens; the same seed cuts the same text alike."""
        random = Random(seed)
        return [number for word in self._tokenizer.words(text) for number in self._cut(list(word), random)]

    def _cut(self, parts: list[str], random: Random) -> list[int]:
        while len(parts) > 1:
            possible = [
                (rank, place)
                for place, pair in enumerate(pairwise(parts))
                if (rank := self._ranks.get(pair)) is not None and random.random() >= self._rate
            ]
            if not possible:
                break
            place = min(possible)[1]
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return [self._number(part) for part in parts]

    def _number(self, part: str) -> int:
        number = self._numbers.get(part)
        return self._tokenizer.unknown if number is None else number
