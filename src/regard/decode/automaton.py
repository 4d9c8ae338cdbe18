"""Token automata: a finite automaton over characters, and its product with a vocabulary.

A token may hold many characters, and a text has many tokenizations. The automaton reads characters, so a constraint on
a text holds for all of them; the product tells for each state and token in one step where the token leads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.tokenize.surfaces import Surfaces
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError

Table = NDArray[np.int32]

DEAD = -1  # the state from which nothing is accepted
NEVER = 1 << 20  # the distance of a state that no tokens lead to acceptance from
_MOST_ENTRIES = 32_000_000  # of a token automaton: states x vocabulary


@dataclass(frozen=True)
class CharacterAutomaton:
    """A deterministic finite automaton over classes of characters; it starts in state 0."""

    table: Table  # states x classes -> state
    accepting: NDArray[np.bool_]
    class_of: Callable[[str], int]  # the class of a character; DEAD: no text with it is accepted

    def read(self, text: str, state: int = 0) -> int:
        """The state after a text."""
        for character in text:
            number = self.class_of(character)
            state = DEAD if state == DEAD or number == DEAD else int(self.table[state, number])
        return state

    def accepts(self, text: str) -> bool:
        """Whether a whole text is accepted."""
        state = self.read(text)
        return state != DEAD and bool(self.accepting[state])


@dataclass(frozen=True)
class TokenAutomaton:
    """The product of a character automaton and a vocabulary; the last state is the first one before any text."""

    characters: CharacterAutomaton
    table: Table  # states x tokens -> state
    accepting: NDArray[np.bool_]
    distance: NDArray[np.int64]  # per state, the fewest tokens to acceptance
    next_token: NDArray[np.int64]  # per state, the token that a shortest way begins with; -1: accepted, or no way

    @property
    def start(self) -> int:
        """The state at the start of a text, where some tokens lose their space."""
        return len(self.table) - 1

    def after(self, text: str) -> int:
        """The state after a text."""
        return self.characters.read(text) if text else self.start

    @cached_property
    def restrains(self) -> bool:
        """Whether some state forbids a token."""
        return bool((self.table == DEAD).any())


class VocabularyCharacters:
    """The characters of a vocabulary, as numbers, and the tokens as rows of them, longest first."""

    def __init__(self, surfaces: Surfaces) -> None:
        self.size = len(surfaces.later)
        self.characters = sorted({character for text in (*surfaces.first, *surfaces.later) for character in text or ""})
        numbers = {character: number for number, character in enumerate(self.characters)}
        self.later, self.first = (_Rows.read(texts, numbers) for texts in (surfaces.later, surfaces.first))
        self.blank = np.array([not text for text in surfaces.later])
        self.lengths = np.array([len(text or "") for text in surfaces.later])

    def product(self, automaton: CharacterAutomaton, *, blank_tokens: bool, what: str) -> TokenAutomaton:
        """The token automaton; `blank_tokens`: special tokens keep the state, else they are forbidden."""
        states = len(automaton.table)
        if (states + 1) * self.size > _MOST_ENTRIES:
            raise InputError(f"{what} needs {states:,} states for {self.size:,} tokens, more than fit in memory. "
                             "Use a shorter one, with fewer repetitions.")  # fmt: skip
        classes = np.array([automaton.class_of(character) for character in self.characters], dtype=np.int64)
        steps = np.full((states + 1, len(classes)), states, dtype=np.int32)  # the last row is the dead state
        known = classes != DEAD
        reached = automaton.table[:, classes[known]]
        steps[:-1, known] = np.where(reached == DEAD, states, reached)
        later = self.later.walk(steps, np.arange(states, dtype=np.int32))
        table = np.concatenate([later, self.first.walk(steps, np.zeros(1, dtype=np.int32))])
        table[table == states] = DEAD
        table[:, self.blank] = np.arange(states + 1)[:, None] if blank_tokens else DEAD
        accepting = np.append(automaton.accepting, automaton.accepting[0])
        distance = _distances(table, accepting)
        table[np.append(distance, NEVER)[table] >= NEVER] = DEAD
        return TokenAutomaton(automaton, table, accepting, distance, self._next_tokens(table, distance))

    def _next_tokens(self, table: Table, distance: NDArray[np.int64]) -> NDArray[np.int64]:
        """Per state, the token with the most characters among those that begin a shortest way."""
        closer = np.append(distance, NEVER)[table] == distance[:, None] - 1
        best = np.where(closer, self.lengths + 1, 0).argmax(axis=1)
        return np.where(closer.any(axis=1), best, -1)


@dataclass(frozen=True)
class _Rows:
    """The characters of each token; tokens are sorted by length, so that a column holds those that are long enough."""

    order: NDArray[Any]
    columns: list[NDArray[np.int64]]  # of the longest tokens, their characters at this index

    @classmethod
    def read(cls, texts: Sequence[str | None], numbers: dict[str, int]) -> _Rows:
        lengths = np.array([len(text or "") for text in texts])
        order = np.argsort(-lengths, kind="stable")
        sorted_texts = [texts[index] or "" for index in order.tolist()]
        columns: list[NDArray[np.int64]] = []
        for place in range(int(lengths.max(initial=0))):
            count = int((lengths > place).sum())
            columns.append(np.array([numbers[text[place]] for text in sorted_texts[:count]], dtype=np.int64))
        return cls(order, columns)

    def walk(self, steps: Table, states: Table) -> Table:
        """Where each token leads from each of the states."""
        found = np.repeat(states[:, None], len(self.order), axis=1)
        for column in self.columns:
            found[:, : len(column)] = steps[found[:, : len(column)], column]
        table = np.empty_like(found)
        table[:, self.order] = found
        return table


def _distances(table: Table, accepting: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Per state, the fewest tokens to acceptance: a search from the end, in breadth."""
    states = len(table)
    leads = np.zeros((states, states + 1), dtype=bool)  # the dead state is the last column
    leads[np.arange(states)[:, None], table] = True
    distance = np.where(accepting, 0, NEVER).astype(np.int64)
    reached, steps = accepting, 0
    while reached.any():
        steps += 1
        reached = leads[:, :-1][:, reached].any(axis=1) & (distance == NEVER)
        distance[reached] = steps
    return distance


def canonical_way(automaton: TokenAutomaton, tokens: Sequence[int], state: int) -> list[int] | None:
    """The states before each of the tokens, if these lead from a state to acceptance."""
    states = []
    for token in tokens:
        if automaton.accepting[state]:
            return None
        states.append(state)
        state = int(automaton.table[state, token])
        if state == DEAD:
            return None
    return states if tokens and automaton.accepting[state] else None


def term_tokenizations(tokenizer: Tokenizer, term: str) -> list[list[int]]:
    """A term as the tokenizer writes it at the start of a text, and after another word."""
    alone, before, after = tokenizer.encode_batch([term, "a", f"a {term}"])
    following = after[len(before) :] if after[: len(before)] == before else []
    return [tokens for tokens in (following, alone) if tokens and not tokenizer.unknown_positions(tokens)]
