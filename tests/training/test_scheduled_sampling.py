"""Scheduled sampling: model predictions replace target tokens, by the schedules of the paper."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from regard.decode.options import Options
from regard.decode.search import search
from regard.errors import InputError
from regard.models import zoo
from regard.training.optimizers import Constant
from regard.training.scheduled_sampling import Exponential, InverseSigmoid, Linear, with_model_predictions
from regard.training.settings import Training
from tests.laws.zoo import BEGIN, END, TRANSLATORS, VOCABULARY, build
from tests.training.runs import digests, regard, terminate_at, write_recipe
from tests.training.test_step import make_trainer

SCHEDULES = [Linear(100, 0.5), Exponential(0.99), InverseSigmoid(20)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_probabilities_rise_from_0_to_their_maximum(schedule: Linear | Exponential | InverseSigmoid):
    found = [schedule.probability(step) for step in range(1000)]
    assert found == sorted(found)
    assert found[0] < 0.05
    assert found[-1] == pytest.approx(0.5 if isinstance(schedule, Linear) else 1.0, abs=1e-3)


def test_schedules_follow_the_paper():
    assert Exponential(0.9).probability(10) == pytest.approx(1 - 0.9**10)
    assert InverseSigmoid(10).probability(30) == pytest.approx(1 - 10 / (10 + 2.718281828**3))
    assert Linear(200, 0.4).probability(50) == pytest.approx(0.1)


def inputs() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(3, VOCABULARY, (4, 12), generator=draw)
    ids[:, 0] = BEGIN
    return {
        "ids": ids,
        "padding": torch.arange(12) < torch.tensor([12, 7, 10, 1])[:, None],
        "source_ids": torch.randint(3, VOCABULARY, (4, 9), generator=draw),
        "source_padding": torch.arange(9) < torch.tensor([9, 9, 4, 6])[:, None],
    }


@pytest.mark.parametrize("name", TRANSLATORS)
def test_with_probability_1_the_predictions_are_those_of_greedy_search(name: str):
    network, given = build(name), inputs()
    found = with_model_predictions(network, given, 1.0)["ids"]
    assert network.training
    network.eval()
    with torch.no_grad():
        source = network.encode_source(given["source_ids"], given["source_padding"])
    hypotheses = search(network, 4 * [[BEGIN]], Options(length_penalty=0.0), eos=END, limits=4 * [11], source=source)
    for row, length in enumerate([12, 7, 10, 1]):
        tokens = list(hypotheses[row][0].tokens[: length - 1])
        assert found[row, 1 : 1 + len(tokens)].tolist() == tokens
        assert torch.equal(found[row, length:], given["ids"][row, length:])


def test_probability_0_is_teacher_forcing():
    given = inputs()
    assert with_model_predictions(build("luong"), given, 0.0) is given


def test_half_of_the_tokens_are_replaced():
    network, given = build("transformer"), inputs()
    given = {name: tensor.repeat(50, 1) for name, tensor in given.items()}
    torch.manual_seed(0)
    changed = with_model_predictions(network, given, 0.5)["ids"] != given["ids"]
    assert not changed[:, 0].any()
    assert 0.4 < float(changed[given["padding"]].float().mean()) < 0.6


@pytest.mark.parametrize("model", ["seq2seq", "bahdanau", "luong", "convs2s"])
def test_a_recurrent_run_resumes_bit_identically(tmp_path: Path, model: str):
    recipe = write_recipe(tmp_path)
    text = recipe.read_text().replace('"transformer"', f'"{model}"').replace("heads   = 2\ninner   = 24\n", "")
    recipe.write_text(text + 'scheduled_sampling = { kind = "linear", steps = 20, max_probability = 0.6 }\n')
    assert regard("train", recipe, "--out", tmp_path / "whole")[0] == 0
    code, _, err = regard("train", recipe, "--out", tmp_path / "parts", driver=partial(terminate_at, 23))
    assert code == 143, err
    assert regard("train", recipe, "--out", tmp_path / "parts")[0] == 0
    assert digests(tmp_path / "parts") == digests(tmp_path / "whole")


def test_a_model_is_trained_with_scheduled_sampling():
    plain, sampled = (trained(scheduled_sampling) for scheduled_sampling in (None, Linear(1, 0.5)))
    assert plain[0] == sampled[0]  # the probability starts at 0
    assert plain[1:] != sampled[1:]
    assert sampled[-1] < 0.75 * sampled[0]


def trained(scheduled_sampling: Linear | None) -> list[float]:
    settings = {"batch_tokens": 500, "learning_rate": 1e-2, "schedule": Constant()}
    trainer = make_trainer(zoo.luong(16, 1, dropout=0.0), **settings, scheduled_sampling=scheduled_sampling)
    return [trainer.advance().loss for _ in range(40)]


def test_scheduled_sampling_of_other_models_is_refused():
    with pytest.raises(InputError, match='Use parallel = "replicate"'):
        Training(scheduled_sampling=Linear(), parallel="shard")
    with pytest.raises(InputError, match="scheduled sampling needs an encoder-decoder"):
        make_trainer(zoo.gpt2(16, 1, 2), scheduled_sampling=Linear())
    for wrong in (
        lambda: Linear(0),
        lambda: Linear(max_probability=1.5),
        lambda: Exponential(0.0),
        lambda: InverseSigmoid(0.5),
    ):
        with pytest.raises(InputError):
            wrong()


def test_after_a_failure_the_network_is_in_training_mode():
    network, given = build("luong").train(), inputs()
    given["source_ids"] = given["source_ids"] + VOCABULARY
    with pytest.raises(IndexError):
        with_model_predictions(network, given, 1.0)
    assert network.training
