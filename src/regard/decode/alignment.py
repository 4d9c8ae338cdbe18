"""What a translation attends to in its source: one forced pass, which serves beams, draws and given texts alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Encoded, Tokenizer, cut_words, word_numbers
from regard.decode.generate import Answer, Request, batches, before_stop, padded, read_sources, require_room
from regard.errors import InputError
from regard.layers.contract import Context, Source
from regard.layers.record import Record
from regard.models.model import Network

Head = tuple[int, int]
"""A layer of the decoder and a head of its attention to the source, both counted from 0."""

_TOKENS = 4_096


def cross_heads(network: Network) -> list[Head]:
    """Every head that attends to the source, found by looking once; none in a model without such attention."""
    if network.encoder is None or network.decoder is None:
        return []
    found = _recorded(network, [Request((0,), (0,), 0)], Record(_crosses))
    return [(layer, head) for layer, weights in sorted(found.items()) for head in range(weights.shape[1])]


def attended(
    network: Network, begin: int, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], heads: Sequence[Head]
) -> Iterator[tuple[int, Tensor]]:
    """The place of each pair of source tokens and said tokens, and heads x said x source: what is attended to.

    A row is that of the query which says the token: the one that has read the token before. The source ends with its
    end token, which is read like the others and has no column.
    """
    requests = [Request((begin, *said[:-1]), tuple(source), 0) for source, said in pairs]
    layers = {layer for layer, _ in heads}
    for places in batches(requests, _TOKENS):
        chosen = [requests[place] for place in places]
        found = _recorded(network, chosen, Record(lambda name: _crosses(name) and _layer(name) in layers))
        weights = torch.stack([found[layer][:, head] for layer, head in heads], dim=1).float().cpu()
        for row, place in enumerate(places):
            source, said = pairs[place]
            yield place, weights[row, :, : len(said), : len(source) - 1]


@torch.inference_mode()
def _recorded(network: Network, requests: Sequence[Request], record: Record) -> dict[int, Tensor]:
    """BHTS of each layer that the record wants, from one pass over all requests."""
    source: Source | None = read_sources(network, [request.source for request in requests])
    ids, padding = padded([request.prompt for request in requests], next(network.parameters()).device)
    network.decode(ids, Context(source=source, padding=padding, record=record))
    return {_layer(name): record.matrix(name) for name in record.rows}


def _crosses(name: str) -> bool:
    return name.startswith("decoder.") and name.endswith("cross")


def _layer(name: str) -> int:
    return int(name.split(".")[1])


Links = list[tuple[int, int]]
"""(source word, target word), both counted from 0, in order."""


def links(weights: Tensor, said: Sequence[int], read: Sequence[int]) -> Links:
    """Link each target word to the source word it attends to most.

    `weights` is target tokens by source tokens; `said` and `read` are the word of each token, -1 for one in no word.
    What the tokens of a word attend to counts together, and so does what the tokens of a source word get.
    """
    shares = _summed(_summed(weights, said).T, read).T
    if not shares.numel():
        return []
    most, best = shares.max(dim=1)
    return sorted((source, target) for target, source in enumerate(best.tolist()) if most[target] > 0)


def _summed(rows: Tensor, groups: Sequence[int]) -> Tensor:
    """N x anything -> groups x anything: the sum of the rows of each group, without those of group -1."""
    numbers = torch.tensor(groups, dtype=torch.long)
    kept = numbers >= 0
    return rows.new_zeros(max(groups, default=-1) + 1, rows.shape[1]).index_add_(0, numbers[kept], rows[kept])


def moses(found: Sequence[tuple[int, int]]) -> str:
    """Links as Moses writes them: 0-0 1-2."""
    return " ".join(f"{source}-{target}" for source, target in found)


def read_moses(line: str) -> Links:
    """The opposite of `moses`."""
    try:
        return sorted((int(source), int(target)) for source, target in (pair.split("-") for pair in line.split()))
    except ValueError:
        raise InputError(f"{line.strip()!r} is no alignment. Write pairs of words, counted from 0: 0-0 1-2.") from None


@dataclass(frozen=True)
class Aligner:
    """A translator whose attention links words; of several heads the mean counts."""

    network: Network
    tokenizers: tuple[Tokenizer, Tokenizer]
    heads: Sequence[Head]

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[Links]:
        """The links of given pairs."""
        read, said = (
            [tokenizer.encode_in_place(text) for text in texts]
            for tokenizer, texts in zip(self.tokenizers, (sources, targets))
        )
        for place, (one, other) in enumerate(zip(read, said)):
            require_room(self.network, max(len(one.ids) + 1, len(other.ids)), f"pair {place + 1:,}")
        found: list[Links] = [[] for _ in sources]
        for place, weights in self.weights(read, [target.ids for target in said]):
            words = word_numbers(targets[place], said[place].spans), word_numbers(sources[place], read[place].spans)
            found[place] = links(weights, *words)
        return found

    def explain(
        self,
        texts: Sequence[str],
        found: Sequence[Sequence[Answer]],
        *,
        prefixes: Sequence[str] | None = None,
        stop: tuple[str, ...] = (),
        alignment: bool = True,
        replace_unknown: bool = False,
    ) -> list[list[Answer]]:
        """The answers to texts with their alignment, or with source words for unknown ones, or with both."""
        target = self.tokenizers[1]
        begun = target.encode_batch([""] * len(texts) if prefixes is None else prefixes)
        answers = [list(several) for several in found]
        said = [
            (place, rank, [*begun[place], *answer.tokens])
            for place, several in enumerate(answers)
            for rank, answer in enumerate(several)
            if alignment or target.unknowns(answer.tokens)
        ]
        read = {place: self.tokenizers[0].encode_in_place(texts[place]) for place, _, _ in said}
        for number, weights in self.weights([read[place] for place, _, _ in said], [ids for _, _, ids in said]):
            place, rank, ids = said[number]
            answer, source, start = answers[place][rank], texts[place], len(begun[place])
            instead = self.instead(source, read[place], ids, weights, start) if replace_unknown else {}
            text, spans = target.decode_in_place(ids, instead)
            if instead:
                text = before_stop(text, len(target.decode(ids[:start])), stop)
                answer = replace(answer, text=text)
            if alignment:
                words = word_numbers(answer.text, spans), word_numbers(source, read[place].spans)
                answer = replace(answer, alignment=tuple(links(weights, *words)))
            answers[place][rank] = answer
        return answers

    def instead(self, text: str, read: Encoded, ids: Sequence[int], weights: Tensor, start: int) -> dict[int, str]:
        """What to write for the unknown tokens from `start` on: what they attend to most (Jean 2015, Luong 2015)."""
        target, written = self.tokenizers[1], dict[int, str]()
        for place in target.unknowns(ids):
            shares = _summed(weights[place, :, None], read.units).flatten()
            if place < start or not shares.any():
                continue
            spans = [span for span, unit in zip(read.spans, read.units) if unit == int(shares.argmax())]
            first, last = spans[0][0], spans[-1][1]
            before = target.decode_in_place(ids[:place], written)[0][-1:]
            # Behind the sign that it stands behind in the source, as a bracket or a quotation mark, no space.
            held = first > 0 and text[first - 1] == before and not before.isalnum()
            written[place] = target.spell(text[first:last], apart=bool(before.strip()) and not held)
        return written

    def weights(self, read: Sequence[Encoded], said: Sequence[Sequence[int]]) -> Iterator[tuple[int, Tensor]]:
        """The place of each pair, and its said tokens by source tokens."""
        source, target = self.tokenizers
        pairs = [((*one.ids, source.end), other) for one, other in zip(read, said)]
        for place, heads in attended(self.network, target.begin, pairs, self.heads):
            yield place, heads.mean(dim=0)


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
    longest = min(_LONGEST, network.max_positions or _LONGEST)
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
