"""Which heads say best what belongs together: chosen on a few pairs, with known alignments or without."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import torch

from regard.decode.alignment import Links, links
from regard.decode.look import Head, attended, cross_heads
from regard.models.model import Network
from regard.text.tokenizer import Tokenizer
from regard.text.words import cut_words, word_numbers

_LONGEST = 128

Units = tuple[Sequence[Hashable], Sequence[Hashable]]
"""What links are between: the words of a source and of its target, or their tokens."""


def choose_heads(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer],
    sources: Sequence[str],
    targets: Sequence[str],
    gold: Sequence[Links] | None = None,
) -> list[Head]:
    """The one head, or the heads of one layer, or all of them, that align these pairs best; long pairs do not count.

    With known alignments the best has the lowest alignment error rate. Without, it is the one whose links tell most
    about the target's words and tokens. Of several that are as good, the first counts.
    """
    heads = cross_heads(network)
    choices = candidates(heads)
    cut = [tuple(map(Tokenizer.encode_in_place, tokenizers, pair)) for pair in zip(sources, targets)]
    longest = min(_LONGEST, network.longest or _LONGEST)
    places = [place for place, pair in enumerate(cut) if all(0 < len(side.ids) < longest for side in pair)]
    if len(choices) < 2 or not places:
        return heads
    pairs = [((*cut[place][0].ids, tokenizers[0].end), cut[place][1].ids) for place in places]
    mixed = torch.tensor([[float(head in choice) / len(choice) for head in heads] for choice in choices])
    by_word: list[dict[int, Links]] = [{} for _ in choices]
    by_token: list[dict[int, Links]] = [{} for _ in choices]
    for number, weights in attended(network, tokenizers[1].begin, pairs, heads):
        place = places[number]
        read, said = (
            word_numbers(text, side.spans) for text, side in zip((sources[place], targets[place]), cut[place])
        )
        for choice, shares in enumerate(torch.einsum("ch,hts->cts", mixed, weights)):
            by_word[choice][place] = links(shares, said, read)
            by_token[choice][place] = links(shares, _alone(said), _alone(read))
    if gold is not None:
        scores = [
            -error_rate([found[place] for place in places], [gold[place] for place in places]) for found in by_word
        ]
    else:
        words = {place: (_words(sources[place]), _words(targets[place])) for place in places}
        tokens = {place: (cut[place][0].ids, cut[place][1].ids) for place in places}
        scores = [telling(one, words) + telling(other, tokens) for one, other in zip(by_word, by_token)]
    return choices[scores.index(max(scores))]


def candidates(heads: Sequence[Head]) -> list[list[Head]]:
    """Each head, the heads of each layer, and all of them; none twice."""
    layers = [[head for head in heads if head[0] == layer] for layer in dict.fromkeys(layer for layer, _ in heads)]
    found = [*([head] for head in heads), *layers, list(heads)]
    return [some for place, some in enumerate(found) if some not in found[:place]]


def error_rate(found: Sequence[Links], gold: Sequence[Links]) -> float:
    """The alignment error rate (Och 2000) against links that are all sure: 0 is perfect, 1 is nothing right."""
    right = sum(len({*one} & {*other}) for one, other in zip(found, gold))
    return 1 - 2 * right / max(1, sum(map(len, found)) + sum(map(len, gold)))


def telling(found: Mapping[int, Links], units: Mapping[int, Units]) -> float:
    """How much a link tells about its target, in nats: the mutual information, learnt on one half, held to the other.

    What was never said in the half that is learnt from can be told by no link and does not count.
    """
    halves: tuple[list[tuple[Hashable, Hashable]], ...] = ([], [])
    for place, linked in found.items():
        sources, targets = units[place]
        halves[place % 2].extend((sources[source], targets[target]) for source, target in linked)
    gained = [_gained(*halves), _gained(*reversed(halves))]
    return sum(gained) / max(1, sum(map(len, halves)))


def _gained(learnt: Sequence[tuple[Hashable, Hashable]], held: Sequence[tuple[Hashable, Hashable]]) -> float:
    """The sum of log p(target | source) - log p(target); a source seen once counts as much as what targets are like."""
    joint, given, said = Counter(learnt), Counter(pair[0] for pair in learnt), Counter(pair[1] for pair in learnt)
    gained = 0.0
    for source, target in held:
        if target in said:
            chance = said[target] / len(learnt)
            gained += math.log((joint[source, target] + chance) / (given[source] + 1) / chance)
    return gained


def _words(text: str) -> list[str]:
    return [text[start:end] for start, end in cut_words(text)]


def _alone(words: Sequence[int]) -> list[int]:
    """Each token of a word numbered for itself."""
    return [place if word >= 0 else -1 for place, word in enumerate(words)]
