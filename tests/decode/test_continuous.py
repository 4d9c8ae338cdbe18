"""Continuous batching: requests that join a running search and leave it get the result of decoding alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch

from regard.data.tokenize.train import Character
from regard.decode.continuous import ContinuousSearch, Partial, Ticket
from regard.decode.generate import GeneratedText, Request, generate_texts
from regard.decode.options import Options
from regard.decode.score import forced_log_probabilities, forced_logprobs
from regard.decode.search import Search
from regard.layers.contract import Shared, concatenate
from regard.layers.lsh.masks import Chunks
from regard.models import zoo
from regard.models.model import Network
from tests.decode.test_search import often_ending
from tests.laws.zoo import BEGIN, GENERATORS, SMALL, TRANSLATORS, VOCABULARY

LETTERS = Character().train(["abcdefghijklmnopqrstuvwxyzABCDEFGHI"])
KINDS = {
    "greedy": Options(),
    "beam": Options(beam=4, n_best=3),
    "sampling": Options(temperature=1.0, top_p=0.95, n_best=2),
    "coverage": Options(beam=3, coverage_penalty=0.3),
    "constraints": Options(
        beam=2, no_repeat_ngram=2, min_tokens=3, forced_bos=7, forced_eos=(2,), repetition_penalty=1.2,
        begin_suppress_tokens=(9, 11), suppress_tokens=(5,), extra_eos=(13,), stop=("e", "f"),
    ),
    "Hugging Face's beams": Options(beam=3, normalization="length", length_penalty=1.0, early_stopping=False),
}  # fmt: skip
COVERING = [name for name in TRANSLATORS if not name.startswith("seq2seq")]  # with cross-attention
CASES = [(name, kind) for name in GENERATORS for kind in KINDS if kind != "coverage" or name in COVERING]
QUICK = [
    (name, kind)
    for number, name in enumerate(GENERATORS)
    for kind in [[*KINDS][number % len(KINDS)]]
    if (name, kind) in CASES
]


def test_the_tokenizer_has_the_end_token_of_the_zoo():
    assert (LETTERS.vocabulary, LETTERS.bos, LETTERS.eos) == (VOCABULARY, BEGIN, 2)


def some_requests(network: Network, count: int, seed: int) -> list[Request]:
    """Requests whose prompts, sources and limits have different lengths."""
    draw = random.Random(seed)

    def tokens(most: int) -> tuple[int, ...]:
        return tuple(draw.randrange(5, VOCABULARY) for _ in range(draw.randint(1, most)))

    return [
        Request((BEGIN, *tokens(6)) if number % 2 else (BEGIN,), tokens(12) if network.encoder is not None else None,
                draw.randint(1, 20), seed=draw.randrange(1000))
        for number in range(count)
    ]  # fmt: skip


def alone(network: Network, request: Request, options: Options) -> list[GeneratedText]:
    return generate_texts(network, LETTERS, [request], options)[0]


def run(
    search: ContinuousSearch,
    requests: Sequence[Request],
    options: Options | Sequence[Options],
    *,
    seed: int = 0,
    cancelled: Sequence[int] = (),
) -> list[Ticket]:
    """Requests that arrive at random steps; some are cancelled a few steps later. -> the tickets of all."""
    draw, every = random.Random(seed), [options] * len(requests) if isinstance(options, Options) else options
    arrivals = sorted(draw.randint(0, len(requests) + 3) for _ in requests)
    tickets: list[Ticket] = []
    leaves: dict[int, list[Ticket]] = {}
    step = 0
    while len(tickets) < len(requests) or search.busy:
        while len(tickets) < len(requests) and arrivals[len(tickets)] <= step:
            number = len(tickets)
            tickets.append(search.add(requests[number], every[number]))
            if number in cancelled:
                leaves.setdefault(step + draw.randint(0, 4), []).append(tickets[-1])
        for ticket in leaves.pop(step, []):
            search.cancel(ticket)
        search.step()
        step += 1
    return tickets


def assert_equal(found: Sequence[GeneratedText] | None, expected: Sequence[GeneratedText]) -> None:
    assert found is not None
    assert [text.tokens for text in found] == [text.tokens for text in expected]
    assert [text.text for text in found] == [text.text for text in expected]
    assert [text.ended for text in found] == [text.ended for text in expected]
    assert [text.score for text in found] == pytest.approx([text.score for text in expected], abs=1e-4)


def assert_the_law(name: str, kind: str, seed: int) -> None:
    network = often_ending(name)
    requests = some_requests(network, 7, seed)
    search = ContinuousSearch(network, LETTERS)
    tickets = run(search, requests, KINDS[kind], seed=seed, cancelled=[2, 5])
    for number, (ticket, request) in enumerate(zip(tickets, requests)):
        assert ticket.error is None
        if not ticket.cancelled:
            assert_equal(ticket.result, alone(network, request, KINDS[kind]))
        assert ticket.cancelled <= (number in (2, 5))


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize(("name", "kind"), QUICK)
def test_requests_that_join_and_leave_get_the_result_of_decoding_alone(name: str, kind: str):
    assert_the_law(name, kind, seed=len(name))


@pytest.mark.storm
@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_every_model_and_search_gives_the_result_of_decoding_alone(name: str, kind: str, seed: int):
    assert_the_law(name, kind, seed)


def test_requests_that_arrive_later_share_the_running_search(monkeypatch: pytest.MonkeyPatch):
    joined, join = [], Search.join

    def counting(self: Search, other: Search) -> None:
        join(self, other)
        joined.append(isinstance(self.new_tokens, torch.Tensor))

    monkeypatch.setattr(Search, "join", counting)
    assert_the_law("gpt2", "greedy", seed=3)
    assert_the_law("transformer", "beam", seed=3)
    assert sum(joined) >= 4


@pytest.mark.parametrize("name", ["sha-rnn", "sha-rnn, two heads everywhere", "windowed"])
@pytest.mark.parametrize("beam", [1, 2])
def test_rows_with_a_sliding_window_join_after_the_window_has_moved(name: str, beam: int):
    network, options = often_ending(name), Options(beam=beam, min_tokens=30)
    requests = [Request((BEGIN, *range(5, 5 + length)), None, 30) for length in (20, 1, 9)]
    search, tickets = ContinuousSearch(network, LETTERS), []
    for request in requests:
        tickets.append(search.add(request, options))
        for _ in range(9):
            search.step()
    while search.busy:
        search.step()
    for ticket, request in zip(tickets, requests):
        assert_equal(ticket.result, alone(network, request, options))


def test_requests_with_different_options_take_turns():
    network = often_ending("transformer")
    requests = some_requests(network, 6, seed=1)
    options = [*KINDS.values()]
    for ticket, request, own in zip(run(ContinuousSearch(network, LETTERS), requests, options), requests, options):
        assert_equal(ticket.result, alone(network, request, own))


def test_requests_of_a_model_that_padding_changes_run_beside_each_other():
    torch.manual_seed(0)
    network = zoo.reformer(**SMALL, attention=("lsh",), pattern=Chunks(4), buckets=4).build(VOCABULARY).eval()
    assert not network.description.incremental
    requests = some_requests(network, 5, seed=2)
    for ticket, request in zip(run(ContinuousSearch(network, LETTERS), requests, Options()), requests):
        assert_equal(ticket.result, alone(network, request, Options()))


def test_a_search_stays_within_its_budget_of_tokens():
    search, sizes = ContinuousSearch(often_ending("gpt2"), LETTERS, batch_tokens=24), []
    tickets = [search.add(Request((BEGIN, *range(5, 12)), None, 6), Options(min_tokens=6)) for _ in range(12)]
    while search.busy:
        search.step()
        sizes += [len(one.rows) for one in search.running]
    assert max(sizes) == 3
    assert all(ticket.result for ticket in tickets)


def test_a_long_row_does_not_make_short_ones_carry_its_padding():
    network = often_ending("gpt2, rotary")
    search = ContinuousSearch(network, LETTERS)
    search.add(Request((BEGIN, *[7] * 2500), None, 30), Options(min_tokens=30))
    search.step()
    for _ in range(5):
        search.add(Request((BEGIN, 8), None, 30), Options(min_tokens=30))
    for _ in range(3):
        search.step()
    assert len(search.running) == 2


def test_a_cancelled_request_leaves_before_the_next_step():
    network = often_ending("gpt2")
    search, options = ContinuousSearch(network, LETTERS), Options(min_tokens=20)
    stays, leaves = (search.add(request, options) for request in [Request((BEGIN, 5), None, 20)] * 2)
    search.step()
    search.cancel(leaves)
    while search.busy:
        ended = search.step()
        assert all(len(one.search.active) == 1 for one in search.running)
        assert leaves not in ended
    assert leaves.result is None
    assert_equal(stays.result, alone(network, stays.request, options))
    search.cancel(search.add(stays.request, options))
    before = search.steps
    assert search.step() == []
    assert (search.steps, search.busy) == (before, False)


@pytest.mark.parametrize("options", [Options(), Options(temperature=1.0, n_best=3)], ids=["greedy", "samples"])
def test_a_stream_gets_every_token_once_with_its_log_probability(options: Options):
    network = often_ending("gpt2")
    search, heard = ContinuousSearch(network, LETTERS), []
    prompts = (Request((BEGIN, first), None, 12, seed=3) for first in range(5, VOCABULARY))
    request = next(one for one in prompts if any(text.ended for text in alone(network, one, options)))
    search.add(Request((BEGIN,), None, 9), options)
    search.step()
    ticket = search.add(request, options, on_token=heard.append, top_logprobs=2)
    while search.busy:
        search.step()
    assert ticket.result is not None
    assert_equal(ticket.result, alone(network, request, options))
    for sample in range(options.n_best):
        own = [partial for partial in heard if partial.sample == sample]
        assert [len(partial.tokens) for partial in own if partial.finished is None] == [*range(1, len(own))]
        assert own[-1].finished is not None
        assert own[-1].finished.tokens == own[-1].tokens
    for text in ticket.result:
        forced = replace(request, prompt=(*request.prompt, *text.tokens), special_tokens=len(request.prompt))
        expected = forced_logprobs(network, [forced], 2)[0]
        assert text.logprobs is not None
        assert text.logprobs.tokens == text.tokens == expected.tokens
        assert text.logprobs.log_probabilities == pytest.approx(expected.log_probabilities, abs=1e-4)
        assert [[token for token, _ in top] for top in text.logprobs.top] == [
            [token for token, _ in top] for top in expected.top
        ]


def test_beams_have_log_probabilities_too():
    network = often_ending("transformer")
    request, search = some_requests(network, 1, seed=5)[0], ContinuousSearch(network, LETTERS)
    ticket = search.add(request, Options(beam=3, n_best=2), top_logprobs=1)
    while search.busy:
        search.step()
    assert ticket.result is not None
    for text in ticket.result:
        assert text.logprobs is not None
        ends = len(text.tokens) < request.max_tokens
        assert sum(text.logprobs.log_probabilities) == pytest.approx(text.log_probability, abs=1e-4) or ends


def test_forced_log_probabilities_of_a_prompt_without_special_tokens_start_at_its_second_token():
    network = often_ending("gpt2")
    requests = [Request((7, 8, 9), None, 0, special_tokens=0), Request((7,), None, 0, special_tokens=0)]
    found = forced_logprobs(network, requests, 3)
    assert [one.tokens for one in found] == [(8, 9), ()]
    assert [len(top) for top in found[0].top] == [3, 3]
    assert forced_log_probabilities(network, requests) == [list(one.log_probabilities) for one in found]
    assert forced_logprobs(network, requests[1:], 3)[0].tokens == ()


def failing_for(network: Network, token: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network raises an error whenever a row holds this token."""
    decode = network.decode

    def failing(ids: torch.Tensor, *given: object):
        if (ids == token).any():
            raise RuntimeError("a row is bad")
        return decode(ids, *given)

    monkeypatch.setattr(network, "decode", failing)


@pytest.mark.parametrize("position", ["prompt", "generated"])
def test_a_row_that_fails_does_not_change_the_others(position: str, monkeypatch: pytest.MonkeyPatch):
    network, options = often_ending("gpt2"), Options(min_tokens=8, suppress_tokens=(39,))
    requests = [Request((BEGIN, 5 + number), None, 10) for number in range(4)]
    expected = [alone(network, request, options) for request in requests]
    marked = 39 if position == "prompt" else expected[2][0].tokens[5]
    requests[2] = replace(requests[2], prompt=(BEGIN, 39)) if position == "prompt" else requests[2]
    failing_for(network, marked, monkeypatch)
    search: ContinuousSearch = ContinuousSearch(network, LETTERS)
    heard: Mapping[int, list[Partial]] = {number: [] for number in range(4)}
    tickets = [search.add(one, options, on_token=heard[number].append) for number, one in enumerate(requests)]
    ended: list[Ticket] = []
    while search.busy:
        ended += search.step()
    assert sorted(map(id, ended)) == sorted(map(id, tickets))
    for number, ticket in enumerate(tickets):
        if number == 2 or marked in expected[number][0].tokens[:-1]:
            assert str(ticket.error) == "a row is bad"
        else:
            assert_equal(ticket.result, expected[number])
            lengths = [len(partial.tokens) for partial in heard[number] if partial.finished is None]
            assert lengths == sorted(set(lengths))
            assert heard[number][-1].tokens == expected[number][0].tokens
    assert any(ticket.error is None for ticket in tickets)


def test_a_listener_that_fails_ends_its_own_request_only():
    network = often_ending("gpt2")
    search = ContinuousSearch(network, LETTERS)

    def broken(_: Partial) -> None:
        raise ValueError("nobody listens")

    request = Request((BEGIN, 5), None, 8)
    other, ticket = search.add(request, Options()), search.add(request, Options(), on_token=broken)
    while search.busy:
        search.step()
    assert isinstance(ticket.error, ValueError)
    assert_equal(other.result, alone(network, request, Options()))


def test_memories_are_concatenated_with_zeros_on_the_right():
    one = {"a": torch.ones(2, 3, 1), "b": Shared((torch.ones(1, 2, dtype=torch.bool),)), "c": None}
    other = {"a": torch.ones(1, 1, 2), "b": Shared((torch.ones(1, 4, dtype=torch.bool),)), "c": None}
    joined = concatenate(one, other)
    assert joined["a"].shape == (3, 3, 2)
    assert joined["a"][:2, :, 0].all()
    assert joined["a"].sum() == 8
    assert joined["b"].tree[0].tolist() == [[True, True, False, False], [True] * 4]
    with pytest.raises(TypeError, match="3 and 2 tensors"):
        concatenate({**one, "c": torch.ones(1)}, other)
