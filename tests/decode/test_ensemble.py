"""Ensembles, shallow fusion and diverse beams, against their definitions; minimum Bayes risk and streams."""

from __future__ import annotations

import math

import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from regard.decode.continuous import ContinuousSearch
from regard.decode.diverse import diverse_search
from regard.decode.ensemble import CombinedNetwork, Ensemble, ShallowFusion
from regard.decode.mbr import MBR, bleu_matrix, chrf_matrix
from regard.decode.options import Options
from regard.decode.requests import GeneratedText, Request
from regard.decode.search import search
from regard.decode.terms import Constraints
from regard.decode.text_generator import ensemble
from regard.errors import InputError
from regard.models import zoo
from tests.decode.steered import END, next_values, source_of, tiny_network
from tests.small import TEXTS, small

FAMILIES = [["transformer", "luong"], ["bahdanau", "t5", "convs2s"], ["gpt2", "lstm-lm"]]
CANDIDATES = ["a man rides a bike .", "a man is riding a bicycle .", "a man rides a bike .", "dogs run", ""]


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def defined_beam(values, beam: int, limit: int, options: Options) -> tuple[list[int], float]:
    """Beam search over a function that gives the scores of the next tokens."""
    live, finished = [([], 0.0)], []
    for made in range(1, limit + 1):
        grown = [([*tokens, token], total + value) for tokens, total in live
                 for token, value in enumerate(values(tokens))]  # fmt: skip
        top = sorted(grown, key=lambda pair: -pair[1])[: 2 * beam]
        finished += [(tokens[:-1] if tokens[-1] == END else tokens, total / options.penalty(made))
                     for tokens, total in top[:beam] if tokens[-1] == END or made == limit]  # fmt: skip
        live = [pair for pair in top if pair[0][-1] != END][:beam]
    return max(finished, key=lambda pair: pair[1])


@pytest.mark.parametrize("names", FAMILIES, ids=", ".join)
def test_an_ensemble_searches_by_the_mean_of_the_probabilities(names: list[str]):
    members = [tiny_network(name, seed) for seed, name in enumerate(names)]
    weights = tuple(range(1, len(members) + 1))
    network = CombinedNetwork(members, Ensemble(weights))

    def values(tokens: list[int]) -> list[float]:
        rows = [next_values(member, source_of(member), [1], tokens) for member in members]
        return [math.log(sum(w * math.exp(row[token]) for w, row in zip(weights, rows)) / sum(weights))
                for token in range(13)]  # fmt: skip

    options = Options(beam=3)
    best = search(network, [[1]], options, eos=END, limits=[6], source=source_of(network))[0][0]
    tokens, score = defined_beam(values, 3, 6, options)
    assert (list(best.tokens), best.score) == (tokens, pytest.approx(score, abs=1e-4))


@pytest.mark.parametrize("name", ["transformer", "seq2seq"])
def test_shallow_fusion_adds_the_language_model_times_its_weight(name: str):
    translator, language_model = tiny_network(name, 1), tiny_network("gpt2", 2)
    network = CombinedNetwork([translator, language_model], ShallowFusion(0.3))

    def values(tokens: list[int]) -> list[float]:
        own = next_values(translator, source_of(translator), [1], tokens)
        return [one + 0.3 * two for one, two in zip(own, next_values(language_model, None, [1], tokens))]

    options = Options(beam=3)
    best = search(network, [[1]], options, eos=END, limits=[6], source=source_of(network))[0][0]
    tokens, score = defined_beam(values, 3, 6, options)
    assert (list(best.tokens), best.score) == (tokens, pytest.approx(score, abs=1e-4))


def defined_groups(network, options: Options, limit: int) -> set[tuple[int, ...]]:
    """The best text of each group of a diverse beam search, without tensors."""
    source, share = source_of(network), options.beam // options.beam_groups
    live = [[([], 0.0)] for _ in range(options.beam_groups)]
    finished: list[list[tuple[float, tuple[int, ...]]]] = [[] for _ in live]
    for made in range(1, limit + 1):
        taken = dict.fromkeys(range(13), 0)
        for group, beams in enumerate(live):
            grown = []
            for tokens, total in beams:
                for token, value in enumerate(next_values(network, source, [1], tokens)):
                    penalized = total + value - options.diversity * taken[token]
                    grown.append((penalized, [*tokens, token], total + value))
            top = sorted(grown, key=lambda one: -one[0])[: 2 * share]
            for _, tokens, total in top[:share]:
                if tokens[-1] == END or made == limit:
                    text = tuple(tokens[:-1] if tokens[-1] == END else tokens)
                    finished[group].append((total / options.penalty(made), text))
            live[group] = [(tokens, total) for _, tokens, total in top if tokens[-1] != END][:share]
            for tokens, _ in live[group]:
                taken[tokens[-1]] += 1
    return {max(some)[1] for some in finished}


@pytest.mark.parametrize("name", ["transformer", "luong", "gpt2"])
def test_diverse_beams_agree_with_their_definition(name: str):
    # A limit of few tokens: groups that have finished no longer hold tokens back, which the definition leaves out.
    network, options = tiny_network(name, 4), Options(beam=4, n_best=2, beam_groups=2, diversity=0.7)
    found = diverse_search(network, [[1]], options, eos=END, limits=[2], source=source_of(network))[0]
    assert defined_groups(network, options, 2) <= {one.tokens for one in found}
    assert found[0].score >= found[-1].score


def test_one_group_without_diversity_is_beam_search():
    network = tiny_network("transformer")
    plain = search(network, [[1]], Options(beam=3), eos=END, limits=[6], source=source_of(network))
    groups = Options(beam=6, beam_groups=2, diversity=0.0)
    found = diverse_search(network, [[1]], groups, eos=END, limits=[6], source=source_of(network))
    assert [[one.tokens for one in some] for some in found] == [[one.tokens for one in some] for some in plain]
    assert found[0][0].score == pytest.approx(plain[0][0].score, abs=1e-5)


def test_an_ensemble_of_one_model_is_that_model():
    model = small(zoo.transformer(16, 1, 2))
    assert ensemble([model]).translate(TEXTS, beam=3) == model.translate(TEXTS, beam=3)
    language_model = small(zoo.gpt2(16, 1, 2))
    text = language_model.generate("the", max_tokens=8, seed=3)
    assert ensemble([language_model, language_model]).generate("the", max_tokens=8, seed=3) == text


def test_models_that_do_not_fit_together_are_refused():
    translator, language_model = small(zoo.transformer(16, 1, 2)), small(zoo.gpt2(16, 1, 2))
    with pytest.raises(InputError, match="translators or of language models"):
        ensemble([translator, language_model])
    with pytest.raises(InputError, match="one weight per model"):
        ensemble([translator], weights=[1, 2])
    with pytest.raises(InputError, match="have a sum"):
        ensemble([translator, translator], weights=[1e308, 1e308])
    with pytest.raises(InputError, match="a translator and a language model"):
        translator.fuse(translator)
    with pytest.raises(InputError, match="do not generate"):
        ensemble([translator]).generate("the")
    assert isinstance(translator.fuse(language_model, 0.1).translate("the cat"), str)


@pytest.mark.parametrize(("matrix", "metric"), [(chrf_matrix, CHRF()), (bleu_matrix, BLEU(effective_order=True))])
def test_similarities_are_the_sentence_scores_of_sacrebleu(matrix, metric):
    found = matrix(CANDIDATES)
    for row, one in enumerate(CANDIDATES):
        for column, other in enumerate(CANDIDATES):
            assert found[row, column] == pytest.approx(metric.sentence_score(one, [other]).score, abs=1e-9)


def test_minimum_bayes_risk_chooses_the_candidate_nearest_to_all():
    texts = [GeneratedText(text, 0.0, -1.0, (), True) for text in CANDIDATES]
    matrix = chrf_matrix(CANDIDATES)
    best = CANDIDATES[int(matrix.mean(axis=1).argmax())]
    assert MBR("chrf").rank(texts, sampled=True)[0].text == best
    assert [one.text for one in MBR("bleu").rank(texts[3:4], sampled=False)] == ["dogs run"]


def test_minimum_bayes_risk_with_one_candidate_is_that_candidate():
    model = small(zoo.transformer(16, 1, 2))
    sampled = Options(temperature=1.0, seed=4)
    one = model.translations(TEXTS, sampled, mbr=MBR("chrf", 1))
    assert [row[0].text for row in one] == [row[0].text for row in model.translations(TEXTS, sampled)]


@pytest.mark.parametrize("stop", [(), ("cat",)])
def test_a_stream_gives_the_text_of_the_search(stop: tuple[str, ...]):
    translator, language_model = small(zoo.transformer(16, 1, 2)), small(zoo.gpt2(16, 1, 2))
    for seed in range(4):
        pieces = list(language_model.stream("the", max_tokens=20, seed=seed, stop=stop))
        assert "the" + "".join(pieces) == language_model.generate("the", max_tokens=20, seed=seed, stop=stop)
    pieces = list(translator.stream(TEXTS[0]))
    assert len(pieces) > 1
    assert "".join(pieces) == translator.translate(TEXTS[0], beam=1)
    with pytest.raises(InputError, match="beam"):
        translator.stream(TEXTS[0], options=Options(beam=2))


def test_continuous_batching_refuses_what_it_does_not_honour():
    model = small(zoo.transformer(16, 1, 2))
    batching = ContinuousSearch(model.network, model.tokenizer)
    with pytest.raises(InputError, match="constraints"):
        batching.add(Request((1,), (5,), 4, constraints=Constraints(must=("a",))), Options())
    with pytest.raises(InputError, match="beam_groups"):
        batching.add(Request((1,), (5,), 4), Options(beam=2, beam_groups=2))
