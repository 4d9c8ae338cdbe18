"""Word alignment from cross-attention weights of one forced decoding pass, for generated and given targets."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.data.tokenize.encode import Template
from regard.data.tokenize.tokenizer import EncodedText, Offsets, Tokenizer, text_units, word_ids, word_offsets
from regard.decode.generate import QUIET, GeneratedText, Progress, Request, batch_requests, cut_at_stop, encode_sources
from regard.decode.inputs import Tokens, check_length, pad, text_template
from regard.errors import InputError
from regard.layers.contract import Context
from regard.layers.record import Record
from regard.models.model import Network

Head = tuple[int, int]
"""A cross-attention head: the index of its decoder layer and its index there."""

Links = list[tuple[int, int]]
"""An alignment: (source word, target word), both counted from 0, sorted."""

Units = tuple[Sequence[Hashable], Sequence[Hashable]]
"""What is linked: the words of a source and of its target, or their tokens."""

_BATCH_TOKENS = 4_096
_MAX_TOKENS = 128  # longer pairs do not count when heads are chosen


def cross_attention_heads(network: Network) -> list[Head]:
    """All cross-attention heads, found by one recorded call; none in a model without cross-attention."""
    if network.shape != "encoder-decoder":
        return []
    found = _record_layers(network, [Request((0,), (0,), 0)], Record(_is_cross))
    return [(layer, head) for layer, weights in sorted(found.items()) for head in range(weights.shape[1])]


def cross_attention_weights(
    network: Network,
    special: tuple[Template, int],
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    heads: Sequence[Head],
) -> Iterator[tuple[int, Tensor]]:
    """The index of each (source, target) pair and its cross-attention weights: heads x target x source tokens.

    Row t belongs to the query that predicts target token t: the one at the token before it. `special` are the source's
    template, whose tokens are attended to but have no column, and the target's BOS.
    """
    (template, bos), first = special, len(special[0].prefix)
    requests = [Request((bos, *target[:-1]), template.row(source), 0) for source, target in pairs]
    layers = {layer for layer, _ in heads}
    for indices in batch_requests(network, requests, _BATCH_TOKENS):
        record = Record(lambda name: _is_cross(name) and _layer_index(name) in layers)
        found = _record_layers(network, [requests[index] for index in indices], record)
        weights = torch.stack([found[layer][:, head] for layer, head in heads], dim=1).float().cpu()
        for row, index in enumerate(indices):
            source, target = pairs[index]
            yield index, weights[row, :, : len(target), first : first + len(source)]


@torch.inference_mode()
def _record_layers(network: Network, requests: Sequence[Request], record: Record) -> dict[int, Tensor]:
    """The weights BHTS of each layer that the record wants, from one pass over all requests."""
    source = encode_sources(network, [request.source for request in requests])
    ids, padding = pad([request.prompt for request in requests], next(network.parameters()).device)
    network.decode(ids, Context(source=source, padding=padding, record=record))
    return {_layer_index(name): record.matrix(name) for name in record.rows}


def _is_cross(name: str) -> bool:
    return name.startswith("decoder.") and name.endswith("cross")


def _layer_index(name: str) -> int:
    return int(name.split(".")[1])


def extract_links(weights: Tensor, target_words: Sequence[int], source_words: Sequence[int]) -> Links:
    """Link each target word to the source word with the most attention.

    `weights` is target tokens by source tokens; the others are each token's word, -1 for none. The weights of all
    tokens of a word are summed.
    """
    sums = _sum_groups(_sum_groups(weights, target_words).T, source_words).T
    if not sums.numel():
        return []
    most, best = sums.max(dim=1)
    return sorted((source, target) for target, source in enumerate(best.tolist()) if most[target] > 0)


def _sum_groups(rows: Tensor, groups: Sequence[int]) -> Tensor:
    """N x anything -> groups x anything: the sum of the rows of each group, without those of group -1."""
    numbers = torch.tensor(groups, dtype=torch.long)
    kept = numbers >= 0
    return rows.new_zeros(max(groups, default=-1) + 1, rows.shape[1]).index_add_(0, numbers[kept], rows[kept])


def _units_by_tokens(units: Sequence[Offsets], offsets: Sequence[Offsets]) -> Tensor:
    """Units x tokens: 1 where a token and a unit overlap."""
    overlaps, ends = torch.zeros(len(units), len(offsets)), [end for _, end in units]
    for token, (start, end) in enumerate(offsets):
        unit = bisect_right(ends, start)
        while unit < len(units) and units[unit][0] < end:
            overlaps[unit, token] = 1
            unit += 1
    return overlaps


def write_moses(links: Sequence[tuple[int, int]]) -> str:
    """Links in the format of Moses (Pharaoh format): 0-0 1-2."""
    return " ".join(f"{source}-{target}" for source, target in links)


def read_moses(line: str) -> Links:
    """The inverse of `write_moses`."""
    try:
        return sorted((int(source), int(target)) for source, target in (pair.split("-") for pair in line.split()))
    except ValueError:
        raise InputError(f"{line.strip()!r} is no alignment. Write pairs of words, counted from 0: 0-0 1-2.") from None


@dataclass(frozen=True)
class Aligner:
    """Aligns words by the mean of some cross-attention heads."""

    network: Network
    tokenizers: tuple[Tokenizer, Tokenizer]
    heads: Sequence[Head]

    def align(self, sources: Sequence[str], targets: Sequence[str], progress: Progress = QUIET) -> list[Links]:
        """The alignments of given pairs."""
        encoded = [tuple(map(Tokenizer.encode_with_offsets, self.tokenizers, pair)) for pair in zip(sources, targets)]
        for index, (source, target) in enumerate(encoded):
            check_length(self.network, max(len(source.ids) + 1, len(target.ids)), f"pair {index + 1:,}")
        found: list[Links] = [[] for _ in sources]
        for index, weights in self.weights([pair[0] for pair in encoded], [pair[1].ids for pair in encoded]):
            source, target = encoded[index]
            words = word_ids(targets[index], target.offsets), word_ids(sources[index], source.offsets)
            found[index] = extract_links(weights, *words)
            progress(1)
        return found

    def unit_weights(self, sources: Sequence[str], targets: Sequence[str]) -> list[Tensor | None]:
        """The attention of each pair, target units by source units (`text_units`); None if the model cannot read it."""
        encoded = [tuple(map(Tokenizer.encode_with_offsets, self.tokenizers, pair)) for pair in zip(sources, targets)]
        most = self.network.max_positions
        fit = [
            index
            for index, (source, target) in enumerate(encoded)
            if source.ids and target.ids and (most is None or max(len(source.ids) + 1, len(target.ids)) <= most)
        ]
        found: list[Tensor | None] = [None] * len(encoded)
        readable = [encoded[index] for index in fit]
        for number, weights in self.weights([pair[0] for pair in readable], [pair[1].ids for pair in readable]):
            index = fit[number]
            source, target = encoded[index]
            rows = _units_by_tokens(text_units(targets[index]), target.offsets)
            columns = _units_by_tokens(text_units(sources[index]), source.offsets)
            # Of a source token each of its units gets a share; a target unit has the mean of its tokens.
            columns = columns / columns.sum(dim=0, keepdim=True).clamp_min(1)
            found[index] = rows @ weights @ columns.T / rows.sum(dim=1, keepdim=True).clamp_min(1)
        return found

    def annotate(
        self,
        texts: Sequence[str],
        generated: Sequence[Sequence[GeneratedText]],
        *,
        prefixes: Sequence[str] | None = None,
        stop: tuple[str, ...] = (),
        alignment: bool = True,
        replace_unknown: bool = False,
        progress: Progress = QUIET,
    ) -> list[list[GeneratedText]]:
        """The translations of texts with their alignment, or with unknown words replaced, or with both."""
        target = self.tokenizers[1]
        prefix_ids = target.encode_batch([""] * len(texts) if prefixes is None else prefixes)
        results = [list(translations) for translations in generated]
        rows = [
            (index, rank, [*prefix_ids[index], *translation.tokens])
            for index, translations in enumerate(results)
            for rank, translation in enumerate(translations)
            if alignment or target.unknown_positions(translation.tokens)
        ]
        encoded = {index: self.tokenizers[0].encode_with_offsets(texts[index]) for index, _, _ in rows}
        for row, weights in self.weights([encoded[index] for index, _, _ in rows], [ids for _, _, ids in rows]):
            index, rank, ids = rows[row]
            translation, source, start = results[index][rank], texts[index], len(prefix_ids[index])
            replaced = self.replacements(source, encoded[index], ids, weights, start) if replace_unknown else {}
            text, offsets = target.decode_with_offsets(ids, replaced)
            if replaced:
                translation = replace(translation, text=cut_at_stop(text, len(target.decode(ids[:start])), stop))
            if alignment:
                words = word_ids(translation.text, offsets), word_ids(source, encoded[index].offsets)
                translation = replace(translation, alignment=tuple(extract_links(weights, *words)))
            results[index][rank] = translation
            progress(len(texts) / len(rows))
        return results

    def replacements(
        self, text: str, source: EncodedText, ids: Sequence[int], weights: Tensor, start: int
    ) -> dict[int, str]:
        """Unknown word replacement from position `start` on: the source word attended most (Jean 2015, Luong 2015)."""
        target, replaced = self.tokenizers[1], dict[int, str]()
        for position in target.unknown_positions(ids):
            sums = _sum_groups(weights[position, :, None], source.units).flatten()
            if position < start or not sums.any():
                continue
            offsets = [offset for offset, unit in zip(source.offsets, source.units) if unit == int(sums.argmax())]
            first, last = offsets[0][0], offsets[-1][1]
            before = target.decode_with_offsets(ids[:position], replaced)[0][-1:]
            # No space after a sign that also precedes the word in the source, such as a bracket or a quotation mark.
            attached = first > 0 and text[first - 1] == before and not before.isalnum()
            new_word = bool(before.strip()) and not attached
            replaced[position] = target.token_for_text(text[first:last], new_word=new_word)
        return replaced

    def weights(self, sources: Sequence[EncodedText], targets: Tokens) -> Iterator[tuple[int, Tensor]]:
        """The index of each pair and its weights, target tokens by source tokens."""
        source_tokenizer, target_tokenizer = self.tokenizers
        pairs = [(source.ids, target) for source, target in zip(sources, targets)]
        template = text_template(self.network, source_tokenizer)
        for index, heads in cross_attention_weights(self.network, (template, target_tokenizer.bos), pairs, self.heads):
            yield index, heads.mean(dim=0)


def choose_heads(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer],
    sources: Sequence[str],
    targets: Sequence[str],
    gold: Sequence[Links] | None = None,
    progress: Progress = QUIET,
) -> list[Head]:
    """The alignment heads: the head, the heads of one layer, or all heads, that align these pairs best.

    With gold alignments the best have the lowest alignment error rate, without, the highest mutual information between
    linked words and tokens. The first of several equally good ones wins; long pairs do not count.
    """
    heads = cross_attention_heads(network)
    choices = candidate_heads(heads)
    encoded = [tuple(map(Tokenizer.encode_with_offsets, tokenizers, pair)) for pair in zip(sources, targets)]
    longest = min(_MAX_TOKENS, network.max_positions or _MAX_TOKENS)
    indices = [index for index, pair in enumerate(encoded) if all(0 < len(side.ids) < longest for side in pair)]
    if len(choices) < 2 or not indices:
        return heads
    pairs = [(encoded[index][0].ids, encoded[index][1].ids) for index in indices]
    special = text_template(network, tokenizers[0]), tokenizers[1].bos
    averages = torch.tensor([[float(head in choice) / len(choice) for head in heads] for choice in choices])
    by_word: list[dict[int, Links]] = [{} for _ in choices]
    by_token: list[dict[int, Links]] = [{} for _ in choices]
    for pair, weights in cross_attention_weights(network, special, pairs, heads):
        index = indices[pair]
        texts = sources[index], targets[index]
        source_words, target_words = (word_ids(text, side.offsets) for text, side in zip(texts, encoded[index]))
        for choice, mean in enumerate(torch.einsum("ch,hts->cts", averages, weights)):
            by_word[choice][index] = extract_links(mean, target_words, source_words)
            by_token[choice][index] = extract_links(mean, _token_units(target_words), _token_units(source_words))
        progress(1)
    if gold is not None:
        known = [gold[index] for index in indices]
        scores = [-alignment_error_rate([links[index] for index in indices], known) for links in by_word]
    else:
        words = {index: (_words(sources[index]), _words(targets[index])) for index in indices}
        tokens = {index: (encoded[index][0].ids, encoded[index][1].ids) for index in indices}
        found = zip(by_word, by_token)
        scores = [mutual_information(one, words) + mutual_information(other, tokens) for one, other in found]
    return choices[scores.index(max(scores))]


def candidate_heads(heads: Sequence[Head]) -> list[list[Head]]:
    """Each head, the heads of each layer, and all heads; no set twice."""
    layers = [[head for head in heads if head[0] == layer] for layer in dict.fromkeys(layer for layer, _ in heads)]
    found = [*([head] for head in heads), *layers, list(heads)]
    return [some for index, some in enumerate(found) if some not in found[:index]]


def alignment_error_rate(found: Sequence[Links], gold: Sequence[Links]) -> float:
    """The alignment error rate, AER (Och 2000), if all gold links are sure: 0 is perfect, 1 is nothing right."""
    right = sum(len({*one} & {*other}) for one, other in zip(found, gold))
    return 1 - 2 * right / max(1, sum(map(len, found)) + sum(map(len, gold)))


def mutual_information(found: Mapping[int, Links], units: Mapping[int, Units]) -> float:
    """The mutual information between linked sources and targets, in nats per link, by two-fold cross-validation.

    Targets that do not occur in the training half do not count.
    """
    halves: tuple[list[tuple[Hashable, Hashable]], ...] = ([], [])
    for index, links in found.items():
        sources, targets = units[index]
        halves[index % 2].extend((sources[source], targets[target]) for source, target in links)
    gains = [_information_gain(*halves), _information_gain(*reversed(halves))]
    return sum(gains) / max(1, sum(map(len, halves)))


def _information_gain(
    training: Sequence[tuple[Hashable, Hashable]], held_out: Sequence[tuple[Hashable, Hashable]]
) -> float:
    """The sum of log p(target | source) - log p(target); p(target) is the prior, with the weight of one pair."""
    pairs, sources, targets = Counter(training), Counter(s for s, _ in training), Counter(t for _, t in training)
    gain = 0.0
    for source, target in held_out:
        if target in targets:
            prior = targets[target] / len(training)
            gain += math.log((pairs[source, target] + prior) / (sources[source] + 1) / prior)
    return gain


def _words(text: str) -> list[str]:
    return [text[start:end] for start, end in word_offsets(text)]


def _token_units(words: Sequence[int]) -> list[int]:
    """Each token that belongs to a word as a unit of its own."""
    return [index if word >= 0 else -1 for index, word in enumerate(words)]
