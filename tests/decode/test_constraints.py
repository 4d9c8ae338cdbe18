"""Constrained search, against brute force over all texts and against its definition without tensors."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest
import torch

from regard.decode.constraints import ConstraintCompiler
from regard.decode.options import Options
from regard.decode.requests import Request
from regard.decode.search import search
from regard.decode.terms import Constraints, contains
from regard.errors import InputError
from regard.models import zoo
from tests.decode.steered import END, next_values, source_of, tiny_network, tiny_tokenizer
from tests.small import TEXTS, small

MODELS = ["transformer", "bahdanau", "luong", "seq2seq", "convs2s", "t5", "gpt2", "sha-rnn", "lstm-lm"]
TOKENIZER = tiny_tokenizer()
SIZE = 13
CASES = {
    "a term": Constraints(must=("ab",)),
    "two terms": Constraints(must=("ab", "b")),
    "a beginning": Constraints(must_begin=("a",)),
    "no term": Constraints(must_not=("a", "ab")),
    "a term and none": Constraints(must=("b",), must_not=("ab",)),
    "a pattern": Constraints(regex=r"( ?ab)+\.?"),
}


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def meets(constraints: Constraints, tokens: list[int]) -> bool:
    """Whether a whole text meets the constraints, by Python's `re`."""
    text = TOKENIZER.decode(tokens)
    special = constraints.regex is not None and any(token < 5 for token in tokens)
    return (
        all(contains(text, term) for term in constraints.must)
        and all(contains(text, term, prefix=True) for term in constraints.must_begin)
        and not any(contains(text, term) for term in constraints.must_not)
        and (constraints.regex is None or (not special and re.fullmatch(constraints.regex, text) is not None))
    )


def found_by_search(network, constraints: Constraints, options: Options, limit: int):
    request = Request((1,), None if network.shape == "decoder" else (5,), limit, constraints=constraints)
    constraint = ConstraintCompiler(TOKENIZER, SIZE).constraint([request], torch.device("cpu"))
    (best,) = search(
        network, [[1]], options, eos=END, limits=[limit], source=source_of(network), constraint=constraint
    )  # fmt: skip
    return best


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", MODELS)
def test_the_best_text_that_meets_the_constraints_is_found(name: str, case: str):
    network, constraints, limit = tiny_network(name), CASES[case], 3
    source, options = source_of(network), Options(beam=170)
    others = [token for token in range(SIZE) if token != END]
    before_last = [tokens for length in range(limit) for tokens in product(others, repeat=length)]
    values = {tokens: next_values(network, source, [1], list(tokens)) for tokens in before_last}
    scored = []
    for before, following in values.items():
        for token, value in enumerate(following):
            ends = token == END
            if not ends and len(before) + 1 < limit:
                continue
            tokens = list(before) if ends else [*before, token]
            if meets(constraints, tokens):
                total = sum(values[before[:index]][before[index]] for index in range(len(before))) + value
                scored.append((total / options.penalty(len(before) + 1), tokens))
    best = found_by_search(network, constraints, options, limit)[0]
    score, tokens = max(scored)
    assert list(best.tokens) == tokens
    assert best.score == pytest.approx(score, abs=1e-4)


def defined_search(network, key: tuple[str, str], options: Options, limit: int) -> list[tuple[list[int], float]]:
    """Dynamic beam allocation for one required term as defined: no KV cache, no batch, no early stopping."""
    automaton = ConstraintCompiler(TOKENIZER, SIZE).automaton(key)

    def state_of(tokens: list[int]) -> int:
        state = automaton.start
        for token in tokens:
            state = int(automaton.table[state, token])
        return state

    def lacking(tokens: list[int]) -> int:
        state, count = state_of(tokens), 0
        while (token := int(automaton.next_token[state])) >= 0:
            state, count = int(automaton.table[state, token]), count + 1
        return count

    live, finished, source = [([], 0.0)], [], source_of(network)
    for made in range(1, limit + 1):
        grown = {}
        for tokens, total in live:
            values = next_values(network, source, [1], tokens)
            met = bool(automaton.accepting[state_of(tokens)])
            for token in range(SIZE):
                late = token != END and automaton.distance[state_of([*tokens, token])] > limit - made
                if late or (token == END and not met):
                    values[token] = -float("inf")
            wanted = int(automaton.next_token[state_of(tokens)])
            best = sorted(range(SIZE), key=lambda token, values=values: -values[token])[: 2 * options.beam]
            for token in {*best, wanted} - {-1}:
                if values[token] > -float("inf"):
                    grown[(*tokens, token)] = total + values[token]
        ranked = sorted(grown.items(), key=lambda pair: -pair[1])
        whole = [pair for pair in ranked if lacking([t for t in pair[0] if t != END]) == 0]
        for tokens, total in whole[: options.beam]:
            if tokens[-1] == END or made == limit:
                finished.append(([t for t in tokens if t != END], total / options.penalty(made)))
        going = [pair for pair in ranked if pair[0][-1] != END]
        banks = [lacking(list(tokens)) for tokens, _ in going]
        turns = [(banks[:index].count(bank), bank, index) for index, bank in enumerate(banks)]
        live = [(list(going[index][0]), going[index][1]) for _, _, index in sorted(turns)[: options.beam]]
    return sorted(finished, key=lambda pair: -pair[1])[:1]


@pytest.mark.parametrize("term", ["ab", "b a"])
@pytest.mark.parametrize("name", ["transformer", "luong", "gpt2", "lstm-lm"])
def test_dynamic_beam_allocation_agrees_with_its_definition(name: str, term: str):
    network, options = tiny_network(name, 3), Options(beam=3)
    best = found_by_search(network, Constraints(must=(term,)), options, 7)[0]
    ((tokens, score),) = defined_search(network, ("must", term), options, 7)
    assert list(best.tokens) == tokens
    assert best.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("name", ["transformer", "bahdanau", "gpt2"])
def test_sentences_with_other_constraints_do_not_change_each_other(name: str):
    network, options, limits = tiny_network(name), Options(beam=4), [6, 5, 7, 6]
    several = [CASES["a term"], None, CASES["no term"], CASES["two terms"]]
    source = None if network.shape == "decoder" else (5,)
    requests = [Request((1,), source, limit, constraints=one) for one, limit in zip(several, limits)]
    compiler = ConstraintCompiler(TOKENIZER, SIZE)

    def found(some: list[Request]):
        constraint = compiler.constraint(some, torch.device("cpu"))
        encoded = source_of(network)
        if encoded is not None:
            encoded = network.encode_source(
                torch.randint(5, 13, (1, 6), generator=torch.Generator().manual_seed(5)).expand(len(some), -1)
            )
        return search(
            network, [one.prompt for one in some], options, eos=END, limits=[one.max_tokens for one in some],
            source=encoded, constraint=constraint,
        )  # fmt: skip

    together = found(requests)
    for index, request in enumerate(requests):
        assert together[index][0].tokens == found([request])[0][0].tokens


def test_beams_are_shared_among_banks_whatever_the_number_of_candidates():
    # A matrix of all pairs of candidates would take 160 GB.
    request = Request((1,), (5,), 9, constraints=Constraints(must=("b a",)))
    constraint = ConstraintCompiler(TOKENIZER, SIZE).constraint([request], torch.device("cpu"))
    states = torch.tensor(range(1, len(constraint.tables.lacking)))
    constraint.grown = states[torch.arange(400_000) % len(states)][None, :, None]
    sums = -torch.arange(400_000.0)[None]
    order = constraint.allocate(sums, 9)[0].tolist()
    lacking = constraint.tables.lacking[states].tolist()
    banks = sorted(set(lacking))
    turns = [(sum(lacking[i % len(states)] == lacking[n % len(states)] for i in range(n)),
              lacking[n % len(states)], n) for n in range(200)]  # fmt: skip
    assert len(banks) > 2
    assert order == sorted(n for *_, n in sorted(turns)[:9])


def test_a_sample_matches_its_pattern_and_avoids_its_term():
    network = tiny_network("gpt2")
    for seed in range(20):
        options = Options(temperature=1.0, seed=seed)
        for case in ("a pattern", "no term"):
            best = found_by_search(network, CASES[case], options, 8)[0]
            assert meets(CASES[case], list(best.tokens)), (seed, case)


def test_a_text_that_has_its_terms_by_itself_is_that_of_the_plain_search():
    model = small(zoo.luong(16, 1))
    options = replace(model.defaults(), beam=3, max_tokens=12)
    plain = [texts[0] for texts in model.translations(TEXTS, options)]
    words = [next(word for word in re.findall(r"[^\W_]+", one.text) if contains(one.text, word)) for one in plain]
    done: list[float] = []
    found = model.translations(TEXTS, options, constraints=[Constraints(must=(word,)) for word in words],
                               progress=done.append)  # fmt: skip
    assert [one[0].tokens for one in found] == [one.tokens for one in plain]
    assert sum(done) == pytest.approx(len(TEXTS))
    term = "dog" if words[0] == "park" else "park"
    other = Constraints(must=(term,), must_not=(words[0],))
    found = model.translations(TEXTS, options, constraints=[other, *[None] * 3], progress=done.append)
    assert contains(found[0][0].text, term)
    assert not contains(found[0][0].text, words[0])
    assert [one[0].tokens for one in found[1:]] == [one.tokens for one in plain[1:]]
    assert sum(done) == pytest.approx(2 * len(TEXTS))


def test_a_term_that_no_token_spells_is_said_to_be_impossible():
    compiler = ConstraintCompiler(TOKENIZER, SIZE)
    request = Request((1,), (5,), 9, constraints=Constraints(must=("xyz",)))
    assert "no tokens of this model can contain 'xyz'" in compiler.impossible(request, "it must")
    short = Request((1,), (5,), 1, constraints=Constraints(must=("b a b",)))
    assert "takes" in compiler.impossible(short, "it must")


def test_a_pattern_with_terms_is_refused():
    with pytest.raises(InputError, match="Write the terms"):
        Constraints(must=("a",), regex="a")
