"""Constrained search: terms that a text must or must not contain, or a regular expression that it must match.

Each constraint is a token automaton, and each hypothesis has a state per constraint. A required term takes beams: as in
dynamic beam allocation (Post & Vilar 2018), a sentence's beams are shared among banks of hypotheses that lack equally
many tokens of their terms, and each hypothesis also proposes the next token of each term that it lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.tokenize.surfaces import token_surfaces
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.automaton import (
    DEAD,
    NEVER,
    CharacterAutomaton,
    TokenAutomaton,
    VocabularyCharacters,
    canonical_way,
    term_tokenizations,
)
from regard.decode.regex import compile_regex
from regard.decode.requests import Request
from regard.decode.terms import Constraints, contains, is_word, term_automaton

_Key = tuple[str, str]
"""The kind of a constraint, "must", "must_begin", "must_not" or "regex", and its term or pattern."""


class ConstraintCompiler:
    """Compiles the constraints of requests for one tokenizer; each automaton is compiled once."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self.tokenizer, self.vocabulary = tokenizer, vocabulary
        self._known: dict[_Key, TokenAutomaton] = {}

    @cached_property
    def characters(self) -> VocabularyCharacters:
        """The characters of the vocabulary."""
        return VocabularyCharacters(token_surfaces(self.tokenizer, self.vocabulary))

    def automaton(self, key: _Key) -> TokenAutomaton:
        """The token automaton of a constraint."""
        if key not in self._known:
            self._known[key] = self._compile(*key)
        return self._known[key]

    def _compile(self, kind: str, given: str) -> TokenAutomaton:
        if kind == "regex":
            plain = compile_regex(given, self.characters.characters)
            found = self.characters.product(plain, blank_tokens=False, what=f"the regular expression {given!r}")
            return _without_next_tokens(found)
        plain = term_automaton(given, prefix=kind == "must_begin", forbidden=kind == "must_not")
        found = self.characters.product(plain, blank_tokens=True, what=f"the term {given!r}")
        if kind == "must_not":
            return _without_next_tokens(found)
        return self._with_canonical_tokens(found, plain, given)

    def _with_canonical_tokens(self, found: TokenAutomaton, plain: CharacterAutomaton, term: str) -> TokenAutomaton:
        """On the way that the tokenizer writes a term, the next token is the tokenizer's own."""
        next_token = found.next_token.copy()
        for tokens in reversed(term_tokenizations(self.tokenizer, term)):
            for start in (found.start, plain.read("."), plain.read("a")):
                for state, token in zip(canonical_way(found, tokens, start) or (), tokens):
                    next_token[state] = token
        return replace(found, next_token=next_token)

    def constraint(self, requests: Sequence[Request], device: torch.device) -> SearchConstraint | None:
        """The constraint of a search for these requests; None if they have none."""
        if not any(request.constraints for request in requests):
            return None
        keys = [_keys(request.constraints) for request in requests]
        distinct = list(dict.fromkeys(key for some in keys for key in some))
        automata = {key: self.automaton(key) for key in distinct}
        starts = [[self._start(key, request) for key in some] for some, request in zip(keys, requests)]
        return SearchConstraint(automata, keys, starts, device)

    def _start(self, key: _Key, request: Request) -> int:
        """The state after a request's target prefix; of the prompt of a language model only its end matters."""
        automaton, text = self.automaton(key), self.tokenizer.decode(request.prompt[request.special_tokens :])
        if request.source is None and text:
            if key[0] == "regex":
                return 0
            text = text[-1] if is_word(text[-1]) else " "
        return automaton.after(text)

    def unmet(self, constraints: Constraints, text: str) -> str | None:
        """The first constraint that a text does not meet."""
        for terms, prefix in ((constraints.must, False), (constraints.must_begin, True)):
            for term in terms:
                if not contains(text, term, prefix=prefix):
                    return f'it must contain "{term}"'
        for term in constraints.must_not:
            if contains(text, term):
                return f'it must not contain "{term}"'
        pattern = constraints.regex
        if pattern is None or self.automaton(("regex", pattern)).characters.accepts(text):
            return None
        return f"it must match {pattern}"

    def impossible(self, request: Request, unmet: str) -> str:
        """Why no text of a request met its constraints."""
        for key in _keys(request.constraints):
            distance = (
                int(self.automaton(key).distance[self._start(key, request)]) if self._possible(key, request) else NEVER
            )
            if distance >= NEVER:
                what = "match" if key[0] == "regex" else "avoid" if key[0] == "must_not" else "contain"
                return f"no tokens of this model can {what} {key[1]!r} here"
            if distance > request.max_tokens:
                tokens = "1 token" if distance == 1 else f"{distance:,} tokens"
                return f"{unmet}, which takes {tokens}, and it has {request.max_tokens:,} (max_tokens)"
        wanted = request.constraints.must if request.constraints else ()
        for term in request.constraints.must_not if request.constraints else ():
            for other in wanted:
                if contains(other, term):
                    return f'it must contain "{other}", and must not contain "{term}"'
        return f"{unmet}, and no hypothesis did"

    def _possible(self, key: _Key, request: Request) -> bool:
        return self._start(key, request) != DEAD


def _without_next_tokens(automaton: TokenAutomaton) -> TokenAutomaton:
    """A constraint that forbids tokens, and proposes none."""
    return replace(automaton, next_token=np.full_like(automaton.next_token, -1))


def _keys(constraints: Constraints | None) -> list[_Key]:
    """The constraints as keys; a term inside another required one needs none of its own."""
    if constraints is None:
        return []
    keys = [("regex", constraints.regex)] if constraints.regex is not None else []
    keys += [("must_not", term) for term in constraints.must_not]
    every = dict.fromkeys([*constraints.must, *constraints.must_begin])
    for kind, terms in (("must", constraints.must), ("must_begin", constraints.must_begin)):
        for term in dict.fromkeys(terms):
            begins = kind == "must_begin"
            longer = (other for other in every if other != term and other in constraints.must)
            if not any(contains(other, term, prefix=begins) for other in longer):
                keys.append((kind, term))
    return keys


@dataclass
class _States:
    """The states of all automata of a search under one number each; state 0 is that of no constraint."""

    table: Tensor  # states x tokens -> state; DEAD: forbidden
    accepting: Tensor
    distance: Tensor  # the fewest tokens to acceptance
    farthest: Tensor  # the largest distance of any state of its automaton
    next_token: Tensor  # of a required term, where it is lacking
    lacking: Tensor  # the tokens of a required term that are lacking
    restrains: Tensor  # whether its automaton forbids tokens


class SearchConstraint:
    """The constraints of the sentences of a search, and the state of every hypothesis: A sentences, k beams, C each."""

    def __init__(
        self, automata: dict[_Key, TokenAutomaton], keys: list[list[_Key]], starts: list[list[int]],
        device: torch.device,
    ) -> None:  # fmt: skip
        first = 1 + np.cumsum([0, *(len(one.table) for one in automata.values())])
        offsets = dict(zip(automata, first.tolist()))
        self.tables = _join_states(list(automata.values()), device)
        most = max(map(len, keys))
        rows = [
            [
                *(DEAD if start == DEAD else offsets[key] + start for key, start in zip(some, begun)),
                *[0] * (most - len(some)),
            ]
            for some, begun in zip(keys, starts)
        ]
        self.states = torch.tensor(rows, device=device)[:, None]  # A k C
        self.banks = bool((self.tables.lacking > 0).any())  # whether some sentence has required terms
        self.grown = self.states  # A c C: those of the candidates

    def mask(self, log_probabilities: Tensor, left: Tensor, ends: Sequence[int]) -> Tensor:
        """A k N, in place: minus infinity for tokens after which the constraints cannot be met; `left` A: tokens left.

        The others keep their log-probability, so a hypothesis scores what the model gives it.
        """
        states, tables = self.states, self.tables
        ends = [end for end in ends if end >= 0]
        dead = states == DEAD
        unmet = ~tables.accepting[states].all(dim=-1)
        for end in ends:
            log_probabilities[..., end].masked_fill_(unmet, -torch.inf)
        for which in range(states.shape[-1]):
            sentence, beam = tables.restrains[states[..., which]].nonzero(as_tuple=True)
            if len(sentence):
                forbidden = tables.table[states[sentence, beam, which]] == DEAD
                forbidden[:, ends] = False
                some = log_probabilities[sentence, beam].masked_fill(forbidden, -torch.inf)
                log_probabilities[sentence, beam] = some
        if bool(dead.any()):
            log_probabilities.masked_fill_(dead.any(dim=-1, keepdim=True), -torch.inf)
        return self._in_time(log_probabilities, left, ends)

    def _in_time(self, masked: Tensor, left: Tensor, ends: Sequence[int]) -> Tensor:
        """Forbid tokens after which there are too few left to meet the constraints."""
        tables = self.tables
        tight = (left - 1)[:, None] < tables.farthest[self.states].sum(dim=-1)
        if not bool(tight.any()):
            return masked
        sentence, beam = tight.nonzero(as_tuple=True)
        reached = tables.table[self.states[sentence, beam].clamp_min(0)]  # R C N
        after = (left - 1)[sentence, None]
        late = self._missing(reached) > after
        # Terms may overlap: where they cannot all be written as a whole, each must be within reach at least.
        hopeless = late.all(dim=-1, keepdim=True)
        late = torch.where(hopeless, self.tables.distance[reached].amax(dim=1) > after, late)
        late[:, list(ends)] = False
        masked[sentence, beam] = masked[sentence, beam].masked_fill(late, -torch.inf)
        return masked

    def _missing(self, states: Tensor) -> Tensor:
        """R C N -> RN: tokens that suffice to meet all constraints: to finish one, then write the others as a whole."""
        distance, farthest = self.tables.distance[states], self.tables.farthest[states]
        lacking = distance > 0
        whole = torch.where(lacking, farthest, 0).sum(dim=1)
        begun = torch.where(lacking, distance - farthest, NEVER).amin(dim=1)
        return torch.where(lacking.any(dim=1), whole + begun, 0)

    def propose(self, count: int, log_probabilities: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best `count` continuations of each beam, and the next token of each term that it lacks; best first."""
        size = log_probabilities.shape[-1]
        best, tokens = log_probabilities.topk(min(count, size), dim=-1)
        wanted = self.tables.next_token[self.states]
        known = (wanted[..., None] == tokens[..., None, :]).any(dim=-1)
        earlier = (wanted[..., None] == wanted[..., None, :]).tril(-1).any(dim=-1)
        values = log_probabilities.gather(-1, wanted.clamp_min(0)).masked_fill(
            known | earlier | (wanted < 0), -torch.inf
        )
        both = torch.cat([best, values], dim=-1) + sums[..., None]
        beams = torch.arange(sums.shape[1], device=sums.device)[:, None].expand(-1, both.shape[-1]).flatten()
        chosen = torch.cat([tokens, wanted.clamp_min(0)], dim=-1).flatten(1)
        missing = max(0, count - chosen.shape[1])
        totals, order = F.pad(both.flatten(1), (0, missing), value=-torch.inf).sort(dim=1, descending=True, stable=True)
        return totals, F.pad(beams, (0, missing))[order], F.pad(chosen, (0, missing)).gather(1, order)

    def advance(self, parents: Tensor, chosen: Tensor, eos: Tensor) -> None:
        """The states of the candidates: where their new token leads; an end token leads nowhere else."""
        before = self.states.gather(1, parents[..., None].expand(-1, -1, self.states.shape[2]))
        reached = self.tables.table[before.clamp_min(0), chosen[..., None]].long()
        self.grown = torch.where(eos[..., None] | (before == DEAD), before, reached)

    def met(self) -> Tensor:
        """-> A c: the candidates that meet all constraints."""
        return (self.tables.accepting[self.grown] & (self.grown != DEAD)).all(dim=-1)

    def ranks(self, sums: Tensor) -> Tensor:
        """-> A c: the rank of each candidate among those that meet the constraints."""
        met = self.met() & (sums > -torch.inf)
        return met.cumsum(dim=1) - met.long() + (~met) * sums.shape[1]

    def allocate(self, unfinished: Tensor, beam: int) -> Tensor:
        """-> A k: the candidates that continue: the best of each bank in turn, the bank that lacks least first.

        `unfinished` A c are the sums, best first, minus infinity for candidates that do not continue.
        """
        usable = unfinished > -torch.inf
        lacking = self.tables.lacking[self.grown.clamp_min(0)].sum(dim=-1)
        rank = _ranks(lacking.masked_fill(~usable, NEVER))
        turn = (rank * (NEVER + 1) + lacking).masked_fill(~usable, 1 << 60)
        order = turn.topk(beam, dim=1, largest=False).indices
        best_first = unfinished.gather(1, order).sort(dim=1, descending=True, stable=True).indices
        return order.gather(1, best_first)

    def keep(self, order: Tensor) -> None:
        """Keep the candidates that continue."""
        self.states = self.grown.gather(1, order[..., None].expand(-1, -1, self.grown.shape[2]))

    def select(self, sentences: Tensor) -> None:
        """Keep these sentences only."""
        self.states = self.states[sentences]


def _ranks(groups: Tensor) -> Tensor:
    """AC -> AC: how many of the same number stand before each one in its row."""
    values, order = groups.sort(dim=1, stable=True)
    places = torch.arange(groups.shape[1], device=groups.device).expand_as(groups)
    begins = F.pad(values[:, 1:] != values[:, :-1], (1, 0), value=True)
    return torch.empty_like(groups).scatter_(1, order, places - (places * begins).cummax(dim=1).values)


def _join_states(automata: Sequence[TokenAutomaton], device: torch.device) -> _States:
    """All automata one after the other, behind the state of no constraint."""
    size = automata[0].table.shape[1]
    tables, first = [np.zeros((1, size), dtype=np.int32)], 1
    for one in automata:
        tables.append(np.where(one.table == DEAD, DEAD, one.table + first))
        first += len(one.table)
    farthest = [one.distance[one.distance < NEVER].max(initial=0) for one in automata]
    counts = [len(one.table) for one in automata]

    def column(none: int, parts: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]) -> Tensor:
        return torch.from_numpy(np.concatenate([[none], *parts])).to(device)

    return _States(
        torch.from_numpy(np.concatenate(tables)).to(device),
        column(1, [one.accepting for one in automata]).bool(),
        column(0, [one.distance for one in automata]),
        column(0, [np.full(count, value) for count, value in zip(counts, farthest)]),
        column(-1, [one.next_token for one in automata]),
        column(0, [_lacking(one) for one in automata]),
        column(0, [np.full(len(one.table), one.restrains) for one in automata]).bool(),
    )


def _lacking(automaton: TokenAutomaton) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Per state, the number of next tokens that lead to acceptance one after the other."""
    state, found = np.arange(len(automaton.table)), np.zeros(len(automaton.table), dtype=np.int64)
    while (going := automaton.next_token[state] >= 0).any():
        found += going
        state = np.where(going, automaton.table[state, automaton.next_token[state]], state)
    return found
