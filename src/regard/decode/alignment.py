"""Which words of a source and its translation belong together, and unknown words put right by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.decode.generate import Answer, before_stop, require_room
from regard.decode.look import Head, attended
from regard.errors import InputError
from regard.models.model import Network
from regard.text.tokenizer import Encoded, Tokenizer
from regard.text.words import word_numbers

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
