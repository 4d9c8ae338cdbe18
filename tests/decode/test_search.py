"""Beam search, greedy search and sampling, against their definition: no KV cache, no batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from regard.decode import search as module
from regard.decode.hypotheses import Hypothesis
from regard.decode.options import SOON, Options
from regard.decode.search import search
from regard.errors import InputError
from regard.layers.contract import Context, Source
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.join import PreNorm
from regard.layers.positions import Learned
from regard.layers.record import Record
from regard.models.model import Model, Network, Stack
from regard.models.readouts import Vocabulary
from tests.laws.zoo import BEGIN, END, GENERATORS, VOCABULARY, build

SOURCE_LENGTHS = [9, 2, 6, 7]


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def often_ending(name: str, seed: int = 0) -> Network:
    """A network with a likely EOS, so that it generates sentences of many lengths."""
    network = build(name, seed)
    generator = torch.Generator().manual_seed(seed)
    table = network.readout.lm_head.weight
    table[END] = table[3:].mean(dim=0) + torch.randn(table.shape[1], generator=generator) * table.std()
    return network


def source_of(network: Network, rows: list[int]) -> Source | None:
    if network.encoder is None:
        return None
    ids = torch.randint(3, VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(5))
    lengths = torch.tensor(SOURCE_LENGTHS)
    if len(rows) == 1:
        return network.encode_source(ids[rows, : SOURCE_LENGTHS[rows[0]]])
    return network.encode_source(ids[rows], torch.arange(9) < lengths[rows, None])


def next_log_probabilities(
    network: Network, source: Source | None, prompt: list[int], tokens: list[int]
) -> list[float]:
    states, _ = network.decode(torch.tensor([prompt + tokens]), Context(source=source))
    return network.readout(states[0, -1]).log_softmax(-1).tolist()


def defined_beam(network, source, prompt, options: Options, limit: int) -> list[tuple[list[int], float]]:
    """Beam search as defined: no KV cache, no batch, no early stopping."""
    live, finished = [([], 0.0)], []
    for made in range(1, limit + 1):
        grown = [
            ([*tokens, token], total + value)
            for tokens, total in live
            for token, value in enumerate(next_log_probabilities(network, source, prompt, tokens))
        ]
        grown.sort(key=lambda pair: -pair[1])
        top = grown[: 2 * options.beam]
        penalty = options.penalty(made)
        for tokens, total in top[: options.beam]:
            if tokens[-1] == END or made == limit:
                finished.append((tokens[:-1] if tokens[-1] == END else tokens, total / penalty))
        live = [pair for pair in top if pair[0][-1] != END][: options.beam]
    return sorted(finished, key=lambda pair: -pair[1])[: options.n_best]


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("penalty", [0.6, 0.0, 2.0, -1.0])
def test_beam_search_agrees_with_its_definition(name: str, penalty: float):
    network = often_ending(name)
    options = Options(beam=3, n_best=2, length_penalty=penalty, early_stopping="never")
    prompts = [[BEGIN], [BEGIN, 5, 6], [BEGIN, 7], [BEGIN, 8, 9, 10]]
    limits = [8, 6, 7, 5]
    found = search(network, prompts, options, eos=END, limits=limits, source=source_of(network, [0, 1, 2, 3]))
    for row in range(4):
        expected = defined_beam(network, source_of(network, [row]), prompts[row], options, limits[row])
        assert [list(h.tokens) for h in found[row]] == [tokens for tokens, _ in expected]
        assert [h.score for h in found[row]] == pytest.approx([score for _, score in expected], abs=1e-4)


def hesitant() -> Network:
    """Ends at once with probability 0.9; after another first token, continues almost surely. Weights set by hand."""
    layer = (FeedForward(2),)
    network = Model(2, Embed(Learned(40)), decoder=Stack((layer,), PreNorm()), readout=Vocabulary(False, True)).build(4)
    for parameter in network.parameters():
        parameter.zero_()
    network.decoder.final_norm.weight.fill_(1.0)
    network.embed.position.weight[:] = torch.tensor([-1.0, 1.0])
    network.embed.position.weight[0] = torch.tensor([1.0, -1.0])
    network.readout.lm_head.weight[END] = torch.tensor([3.55, -3.55])
    network.readout.lm_head.bias[:] = torch.tensor([-50.0, -50.0, -4.9, 0.0])
    return network.eval()


@pytest.mark.parametrize(
    ("early_stopping", "limit", "tokens"),
    [("never", 30, 30), ("soon", 30, 0), ("soon", 9, 0), ("never", SOON + 1, 0), (False, 30, 30), (True, 30, 0)],
)
def test_a_search_continues_while_a_longer_hypothesis_may_still_win(early_stopping: Any, limit: int, tokens: int):
    options = Options(beam=2, length_penalty=3.0, early_stopping=early_stopping)
    found = search(hesitant(), [[BEGIN]], options, eos=END, limits=[limit])[0][0]
    assert found.tokens == (3,) * tokens


def test_a_search_with_a_near_limit_is_exact():
    for penalty in (0.6, 3.0, 8.0):
        soon, never = (Options(beam=2, length_penalty=penalty, early_stopping=rule) for rule in ("soon", "never"))
        for limit in range(1, SOON + 2):
            found = [search(hesitant(), [[BEGIN]], one, eos=END, limits=[limit]) for one in (soon, never)]
            assert found[0] == found[1]


def test_short_hypotheses_win_without_a_length_penalty():
    short = search(hesitant(), [[BEGIN]], Options(beam=2, length_penalty=0.0), eos=END, limits=[30])[0][0]
    assert short.tokens == ()


def test_a_row_at_its_limit_does_not_change_the_others():
    prompts = [[BEGIN, *range(3, 12)], [BEGIN, 3]]
    network = often_ending("gpt2")
    together = search(network, prompts, Options(), eos=END, limits=[0, 6])
    assert together[1] == search(network, prompts[1:], Options(), eos=END, limits=[6])[0]


def test_when_every_token_is_suppressed_the_hypothesis_is_empty():
    options = Options(no_repeat_ngram=1, min_tokens=100)
    assert isinstance(generate("gpt2", options, limit=100).tokens, tuple)


@pytest.mark.parametrize("name", GENERATORS)
def test_greedy_search_takes_the_best_token_at_each_step(name: str):
    network, prompts, limits = often_ending(name), [[BEGIN], [BEGIN, 5], [BEGIN, 6, 7], [BEGIN]], [12, 9, 12, 70]
    found = search(network, prompts, Options(), eos=END, limits=limits, source=source_of(network, [0, 1, 2, 3]))
    for row in range(4):
        tokens, total = [], 0.0
        while len(tokens) < limits[row]:
            values = next_log_probabilities(network, source_of(network, [row]), prompts[row], tokens)
            best = max(range(len(values)), key=values.__getitem__)
            total += values[best]
            if best == END:
                break
            tokens.append(best)
        assert list(found[row][0].tokens) == tokens
        assert found[row][0].ended == (len(tokens) < limits[row])
        assert found[row][0].log_probability == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize(
    "name", ["transformer", "bahdanau", "convs2s", "luong, dot, local-m", "gpt2", "gpt2, relative bias"]
)
@pytest.mark.parametrize("options", [Options(), Options(beam=4, n_best=4), Options(temperature=1.0, top_p=0.9)])
def test_a_batch_of_64_gives_the_hypotheses_of_each_isolated_sentence(name: str, options: Options):
    network = often_ending(name)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, VOCABULARY, (64, 12), generator=generator)
    lengths = torch.randint(1, 13, (64,), generator=generator)
    lengths[0] = 12
    prompts = [[BEGIN, *range(3, 3 + i % 3)] for i in range(64)]
    source = None if network.encoder is None else network.encode_source(ids, torch.arange(12) < lengths[:, None])
    together = search(network, prompts, options, eos=END, limits=[15] * 64, source=source, seeds=range(64))
    for row in range(64):
        one = None if source is None else network.encode_source(ids[row : row + 1, : lengths[row]])
        isolated = search(network, [prompts[row]], options, eos=END, limits=[15], source=one, seeds=[row])
        assert [h.tokens for h in isolated[0]] == [h.tokens for h in together[row]]


def generate(name: str, options: Options, limit: int = 30, prompt: tuple[int, ...] = (BEGIN,), **more) -> Hypothesis:
    network = often_ending(name)
    return search(network, [prompt], options, eos=END, limits=[limit], source=source_of(network, [0]), **more)[0][0]


def test_sampling_follows_the_distribution_and_its_seed():
    network = often_ending("gpt2")
    rows = 4000
    found = search(network, [[BEGIN]] * rows, Options(temperature=0.7), eos=END, limits=[1] * rows, seeds=range(rows))
    values = torch.tensor(next_log_probabilities(network, None, [BEGIN], [])) / 0.7
    drawn = torch.tensor([h[0].tokens[0] if h[0].tokens else END for h in found])
    frequency = torch.bincount(drawn, minlength=VOCABULARY) / rows
    assert (frequency - values.softmax(-1)).abs().max() < 0.03
    assert generate("gpt2", Options(temperature=1.0), seeds=[7]) == generate(
        "gpt2", Options(temperature=1.0), seeds=[7]
    )
    assert generate("gpt2", Options(temperature=1.0), seeds=[7]) != generate(
        "gpt2", Options(temperature=1.0), seeds=[8]
    )


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}])
def test_the_narrowest_sampling_is_greedy(options: dict):
    narrow = generate("gpt2", Options(temperature=1.0, **options))
    assert narrow.tokens == generate("gpt2", Options()).tokens


def test_top_k_draws_from_the_best_k_only():
    network = often_ending("gpt2")
    found = search(network, [[BEGIN]] * 500, Options(temperature=5.0, top_k=3), eos=END, limits=[1] * 500)
    values = torch.tensor(next_log_probabilities(network, None, [BEGIN], []))
    best = set(values.topk(3).indices.tolist())
    assert {h[0].tokens[0] if h[0].tokens else END for h in found} == best


@pytest.mark.parametrize("beam", [1, 4])
def test_the_minimum_and_the_maximum_length_can_be_set(beam: int):
    for length in (1, 5, 20):
        shortest = generate("transformer", Options(beam=beam, min_tokens=length), limit=25)
        assert len(shortest.tokens) >= length
        assert len(generate("transformer", Options(beam=beam), limit=length).tokens) <= length
    assert generate("transformer", Options(beam=beam), limit=0).tokens == ()


def test_a_hypothesis_cut_by_the_limit_has_not_ended():
    assert not generate("gpt2", Options(min_tokens=10), limit=10).ended
    assert generate("gpt2", Options(temperature=5.0), limit=900).ended


def test_no_repeat_ngram_prevents_repeated_bigrams():
    for beam in (1, 3):
        tokens = generate("gpt2, rotary", Options(beam=beam, no_repeat_ngram=2, min_tokens=25), limit=40).tokens
        pairs = list(pairwise(tokens))
        assert len(pairs) == len(set(pairs))
    plain = generate("gpt2, rotary", Options(min_tokens=25), limit=40).tokens
    assert len(set(pairwise(plain))) < len(plain) - 1


def test_a_repetition_penalty_counts_the_prompt_too():
    network, prompt = often_ending("gpt2"), [BEGIN, 5, 6, 0]
    logits = network.readout(network.decode(torch.tensor([prompt]), Context())[0][0, -1])
    for token in (1, 5, 6, 0):
        logits[token] = logits[token] / 2.0 if logits[token] > 0 else logits[token] * 2.0
    found = search(network, [prompt], Options(repetition_penalty=2.0), eos=END, limits=[1])[0][0]
    assert found.log_probability == pytest.approx(logits.log_softmax(-1).max().item(), abs=1e-5)


def test_a_stopping_criterion_ends_the_hypothesis_with_the_token_that_meets_it():
    free = generate("gpt2", Options(min_tokens=10), limit=20).tokens
    stopped = generate(
        "gpt2", Options(min_tokens=10), limit=20, stopping_criterion=lambda tokens: tokens[-1] == free[4]
    )
    first = free.index(free[4])
    assert stopped.tokens == free[: first + 1]
    assert stopped.ended


def test_a_coverage_penalty_lowers_the_score_of_uncovered_sources():
    network, source = often_ending("transformer"), None
    source = source_of(network, [0])
    options = Options(beam=4, n_best=4, coverage_penalty=0.0)
    plain = search(network, [[BEGIN]], options, eos=END, limits=[10], source=source)[0]
    covered = search(network, [[BEGIN]], replace(options, coverage_penalty=0.5), eos=END, limits=[10], source=source)[0]
    other = source_of(network, [1])
    ids = torch.randint(3, VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(5))
    both = network.encode_source(ids[:2], torch.arange(9) < torch.tensor(SOURCE_LENGTHS[:2])[:, None])
    one = replace(options, coverage_penalty=0.5)
    in_batch = search(network, [[BEGIN, 4, 5, 6], [BEGIN]], one, eos=END, limits=[10, 10], source=both)[1]
    isolated = search(network, [[BEGIN]], one, eos=END, limits=[10], source=other)[0]
    assert [h.score for h in in_batch] == pytest.approx([h.score for h in isolated], abs=1e-4)
    for hypothesis in covered:
        record = Record(lambda name: name.endswith("cross"))
        tokens = torch.tensor([[BEGIN, *hypothesis.tokens]])
        if not hypothesis.ended:
            tokens = tokens[:, :-1]
        network.decode(tokens, Context(source=source, record=record))
        weights = torch.stack([record.matrix(name).mean(1) for name in record.rows]).mean(0)
        length = len(hypothesis.tokens) + hypothesis.ended
        coverage = 0.5 * weights.sum(1).clamp(1e-9, 1.0).log().sum().item()
        expected = hypothesis.log_probability / options.penalty(length) + coverage
        assert hypothesis.score == pytest.approx(expected, abs=1e-4)
    assert [h.score for h in plain] != [h.score for h in covered]


@pytest.mark.parametrize(
    "bad", [{"beam": 0}, {"top_p": 2.0}, {"temperature": -1.0}, {"n_best": 3}, {"temperature": float("nan")}]
)
def test_options_out_of_range_are_refused_by_name(bad: dict):
    with pytest.raises(InputError, match=next(iter(bad))):
        Options(**bad)


@pytest.mark.parametrize("name", ["sha-rnn", "lstm-lm", "gpt2, rotary"])
@pytest.mark.parametrize("options", [Options(), Options(beam=3)], ids=["greedy", "beam"])
def test_long_prompts_are_prefilled_in_chunks(monkeypatch: pytest.MonkeyPatch, name: str, options: Options):
    network, lengths = build(name), []
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in (30, 23, 41)]
    at_once = search(network, prompts, options, eos=END, limits=[6] * 3)
    decode = network.decode

    def recording(ids: torch.Tensor, *given: object):
        lengths.append(ids.shape[1])
        return decode(ids, *given)

    monkeypatch.setattr(network, "decode", recording)
    monkeypatch.setattr(module, "_PREFILL_CHUNK", 5)
    found = search(network, prompts, options, eos=END, limits=[6] * 3)
    assert [[one.tokens for one in hypotheses] for hypotheses in found] == [
        [one.tokens for one in hypotheses] for hypotheses in at_once
    ]
    assert lengths[:6] == ([5, 5, 5, 5, 21, 1] if network.description.constant_memory else [41, 1, 1, 1, 1, 1])
