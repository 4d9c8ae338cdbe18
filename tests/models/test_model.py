"""Models: their shape, and the inputs that each shape takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import regard
from regard.errors import InputError
from regard.layers.contract import CarriedMemory
from regard.layers.feedforward import FeedForward
from regard.layers.join import PreNorm
from regard.layers.positions import ALiBi
from regard.models import zoo
from regard.models.model import Stack
from tests.laws.zoo import LANGUAGE_MODELS, MODELS, TRANSLATORS, VOCABULARY, build


@pytest.mark.parametrize("name", MODELS)
def test_the_shape_of_a_model_is_which_stacks_it_has(name: str):
    model = MODELS[name]
    expected = {(True, True): "encoder-decoder", (True, False): "encoder", (False, True): "decoder"}
    assert model.shape == expected[model.encoder is not None, model.decoder is not None]
    assert list(model.stacks) == model.shape.split("-")
    with torch.device("meta"):
        assert model.build(VOCABULARY).shape == model.shape
    assert (model.shape == "encoder-decoder") == (name in TRANSLATORS)
    assert model.shape == "decoder" or name not in LANGUAGE_MODELS


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_padding_may_be_the_second_argument(name: str):
    network, ids = build(name), torch.tensor([[1, 2, 3, 0], [4, 5, 6, 7]])
    padding = torch.tensor([[True, True, True, False], [True] * 4])
    with torch.no_grad():
        torch.testing.assert_close(network(ids, padding)[:, :3], network(ids, padding=padding)[:, :3])
        assert not torch.allclose(network(ids, padding)[0, :3], network(ids)[0, :3]) or name == "gpt2"


def test_a_text_is_refused_where_the_shape_has_no_use_for_it():
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(InputError, match="only an encoder-decoder reads source_ids"):
        build("gpt2").hidden_states(ids, source_ids=ids)
    with pytest.raises(InputError, match="needs source_ids"):
        build("transformer").hidden_states(ids)
    with pytest.raises(InputError, match="only a decoder continues a text"):
        build("bert").hidden_states(ids, carried=CarriedMemory())


def test_a_model_with_alibi_is_trained_resumed_loaded_and_shown(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{i % 7} and {i % 5} are {i % 7 + i % 5}.\n" for i in range(300)))
    model = zoo.gpt2(24, 2, 3, position=ALiBi())

    def trained(folder: str, *steps: int) -> regard.LoadedModel:
        for count in steps:
            settings = ["train.batch_tokens=400", "train.save_every=4", "train.seed=3", "text.tokenizer=character"]
            settings.append("train.schedule.kind=constant")  # the same for any number of steps
            found = regard.train(model, tmp_path / folder, text=text, steps=count, settings=settings)
        return found

    at_once, resumed = trained("one", 8), trained("two", 4, 8)
    saved = json.loads((tmp_path / "two" / "config.json").read_text())["model"]
    assert saved["decoder"]["position"] == {"kind": "alibi"}
    again = regard.load(tmp_path / "two")
    for name, weight in at_once.network.state_dict().items():
        assert torch.equal(weight, resumed.network.state_dict()[name])
        assert torch.equal(weight, again.network.state_dict()[name])
    again.look("3 and 4 are").save(tmp_path / "page.html")
    assert "decoder: alibi" in (tmp_path / "page.html").read_text()


def test_two_sublayers_of_one_name_in_a_layer_are_refused():
    layer = (FeedForward(8), FeedForward(8))
    with pytest.raises(InputError, match="need different names, got feedforward, feedforward"):
        Stack((layer,), PreNorm())
