"""Hugging Face folders that we write: transformers reads the same model; unsupported parts are refused by name."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoTokenizer

from regard.data.tokenize.encode import Template
from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import BPE, Character, SentencePiece, WordPiece
from regard.decode.generate import translate
from regard.decode.inputs import network_inputs
from regard.decode.options import Options
from regard.errors import InputError
from regard.layers.join import LayerNorm, PreNorm
from regard.layers.positions import Learned, RelativeBias, Rotary
from regard.layers.scores import Additive
from regard.models import zoo as models
from regard.models.model import Model
from regard.models.readouts import First, Label, Last, Max, Mean, Number, Tags, Vector
from regard.store.folder import unique_parameters
from regard.store.huggingface.folder import write_huggingface
from regard.store.loading import Loaded
from tests.parity import zoo
from tests.parity.folders import close, ours, perturbed, rows, save_theirs

SMALL = {"width": 24, "depth": 2, "heads": 3, "inner": 36}


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def architecture(folder: Path) -> Any:
    """The class of transformers' that a folder names."""
    return getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])


@pytest.mark.parametrize("name", zoo.ALL)
def test_reading_and_writing_changes_nothing(name: str, tmp_path: Path):
    theirs = perturbed(zoo.ALL[name]())
    loaded = ours(save_theirs(theirs, tmp_path / "old"))
    write_huggingface(tmp_path / "new", loaded)
    again = architecture(tmp_path / "new").from_pretrained(tmp_path / "new").eval()
    decoder_without_head = name in ("gpt2, bare", "llama, bare")
    assert type(again) is type(theirs) or decoder_without_head
    expected, found = theirs.base_model.state_dict(), again.base_model.state_dict()
    if not decoder_without_head:
        expected, found = theirs.state_dict(), again.state_dict()
    different = [key for key in expected if key in found and not torch.equal(expected[key], found[key])]
    # The first rows of a position table and biases, which are never used.
    unused = {"embeddings.position_embeddings.weight"} if "roberta" in name else {"predictions.bias"}
    unused |= {"pooler.dense.weight", "pooler.dense.bias"} if name == "bert, no pooler" else set()
    unused |= {"model.shared.weight"} if name == "marian, untied" else set()
    unused |= {"embed_positions.weight"} if "bart" in name else set()
    unused |= {"model.shared.weight"} if name in ("bart, odd", "m2m100, odd") else set()
    assert [key for key in different if not key.endswith(tuple(unused))] == []
    again_ours = ours(tmp_path / "new")
    assert again_ours.network.description == loaded.network.description
    before, after = unique_parameters(loaded.network), unique_parameters(again_ours.network)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def trained(model: Model, tokenizer: Tokenizer | None = None) -> Loaded:
    """A model of ours with random weights, as if trained."""
    tokenizer = tokenizer or Character().train(["abcdefghijklmnopqrstuvwxyz ."])
    torch.manual_seed(1)
    network = model.build(tokenizer.vocabulary)
    perturbed(network)
    return Loaded(network, (tokenizer, None), {"model_type": "regard"}, {"num_beams": 3, "length_penalty": 0.6})


OURS: dict[str, Model] = {
    "transformer": models.transformer(**SMALL),
    "transformer, untied": models.transformer(**SMALL, tied=False),
    "transformer, separate": models.transformer(**SMALL, shared=False, decoder_depth=1),
    "gpt2": models.gpt2(**SMALL),
    "bert": models.bert(**SMALL, max_positions=32),
    "bert, next sentence": models.bert(**SMALL, max_positions=32, next_sentence=True),
    "t5, 1.0": models.t5(**SMALL, version="1.0"),
    "t5, 1.1": models.t5(**SMALL, version="1.1"),
    "t5, key width": models.t5(**SMALL, key_width=5),
    "bert, labels": replace(models.bert(**SMALL, max_positions=32), readout=Label(("a", "b", "c"))),
    "bert, regression": replace(models.bert(**SMALL, max_positions=32), readout=Number()),
    "bert, tags": replace(models.bert(**SMALL, max_positions=32), readout=Tags(("a", "b"))),
    "bert, pooler": replace(models.bert(**SMALL, max_positions=32), readout=Vector(First(), "tanh", normalised=False)),
    "gpt2, labels": replace(models.gpt2(**SMALL), readout=Label(("a", "b"), Last(), None, biased=False)),
}


@pytest.mark.parametrize("name", OURS)
def test_our_models_have_the_same_outputs_in_transformers(name: str, tmp_path: Path):
    loaded = trained(OURS[name])
    write_huggingface(tmp_path, loaded)
    theirs = architecture(tmp_path).from_pretrained(tmp_path).eval()
    ids, padding = rows()
    network = loaded.network
    if network.encoder is not None and network.decoder is not None:
        target, target_padding = rows(9, length=7)
        start = target.new_full((len(target), 1), theirs.config.decoder_start_token_id)
        given = torch.cat([start, target[:, 1:]], dim=1)  # Marian has a start token of its own
        output = theirs(ids, attention_mask=padding.long(), decoder_input_ids=given).logits
        target[:, 0] = loaded.tokenizers[0].bos
        found = network(target, source_ids=ids, source_padding=padding, target_padding=target_padding)
        close(found, output[..., : network.vocabulary], target_padding)
    else:
        output = theirs(ids, attention_mask=padding.long())
        found = network(ids, padding=padding)
        expected = output.pooler_output if "pooler" in name else getattr(output, "logits", None)
        expected = output.prediction_logits if "next" in name else expected
        close(found, expected, padding if found.dim() == 3 else None)
    if network.decoder is not None and "labels" not in name:
        assert theirs.generation_config.num_beams == 3
        assert theirs.generation_config.eos_token_id == loaded.tokenizers[0].eos
    again = ours(tmp_path)
    assert again.tokenizers[0].encode("hello") == loaded.tokenizers[0].encode("hello")
    parts, reads = ("bos", "eos", "pad"), network.description.reads
    assert Template.of(again.tokenizers[0], reads).row([7]) == Template.of(loaded.tokenizers[0], reads).row([7])
    assert [getattr(again.tokenizers[0], p) for p in parts] == [getattr(loaded.tokenizers[0], p) for p in parts]


@pytest.mark.parametrize(
    ("name", "expected"), [("gpt2", "<s>hello"), ("bert", "<s>hello</s>"), ("transformer", "hello</s>")]
)
def test_our_tokenizer_adds_the_same_special_tokens_in_transformers(name: str, expected: str, tmp_path: Path):
    tokenizer = BPE(size=266).train(["hello hello"] * 3)
    write_huggingface(tmp_path, trained(OURS[name], tokenizer))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.decode(theirs("hello")["input_ids"]) == expected
    assert (theirs.pad_token, theirs.mask_token) == ("<pad>", "<mask>")


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        (SentencePiece(25), models.transformer(**SMALL)),
        (BPE(270), models.transformer(**SMALL, tied=False)),
        (WordPiece(40), models.transformer(**SMALL, shared=False)),
    ],
)
def test_ctranslate2s_own_converter_accepts_what_we_write(kind: Any, model: Model, tmp_path: Path):
    """Its Marian starts from zeros and leaves the last token out; transformers and it answer as we do."""
    converters = pytest.importorskip("ctranslate2.converters")
    texts = ["the dog runs to the house", "a dog and a cat see the house", "the cat  runs, and the dog sees it"]
    loaded = trained(model, kind.train(3 * texts))
    write_huggingface(tmp_path / "marian", loaded)
    converters.TransformersConverter(str(tmp_path / "marian")).convert(str(tmp_path / "converted"))
    engine = importlib.import_module("ctranslate2").Translator(str(tmp_path / "converted"))
    theirs, tokenizer = architecture(tmp_path / "marian").from_pretrained(tmp_path / "marian"), loaded.tokenizers[0]
    options, library = Options(max_tokens=12), AutoTokenizer.from_pretrained(tmp_path / "marian")
    ours_again = ours(tmp_path / "marian")
    for text, found in zip(texts, translate(loaded.network, (tokenizer, tokenizer), texts, options)):
        given = library(text, return_tensors="pt")
        generated = theirs.generate(**given, max_new_tokens=12, num_beams=1)[0, 1:].tolist()
        pieces = library.convert_ids_to_tokens(given["input_ids"][0].tolist())
        converted = engine.translate_batch([pieces], beam_size=1, max_decoding_length=12)[0].hypotheses[0]
        expected = list(found[0].tokens)
        assert [token for token in generated if token != tokenizer.eos] == expected
        assert library.convert_tokens_to_ids(converted) == expected
    assert ours_again.network.description == loaded.network.description
    assert ours_again.tokenizers[0].bos == tokenizer.bos
    assert ours_again.generation_config["decoder_start_token_id"] == tokenizer.bos
    before, after = unique_parameters(loaded.network), unique_parameters(ours_again.network)
    assert all(torch.equal(before[key], after[key]) for key in before)
    write_huggingface(tmp_path / "again", ours_again)
    names = "model.safetensors", "config.json"
    assert all((tmp_path / "again" / name).read_bytes() == (tmp_path / "marian" / name).read_bytes() for name in names)


@pytest.mark.parametrize("name", ["bert, labels", "bert, tags"])
def test_a_pair_of_texts_has_segments_in_transformers(name: str, tmp_path: Path):
    loaded = trained(OURS[name])
    write_huggingface(tmp_path, loaded)
    theirs = architecture(tmp_path).from_pretrained(tmp_path).eval()
    given = AutoTokenizer.from_pretrained(tmp_path)("hello you", "my dear", return_tensors="pt")
    assert set(given["token_type_ids"][0].tolist()) == {0, 1}
    tokenizer = loaded.tokenizers[0]
    sides = [tokenizer.encode_batch(["hello you"]), tokenizer.encode_batch(["my dear"])]
    close(loaded.network(**network_inputs(loaded.network, tokenizer, sides)), theirs(**given).logits)


@pytest.mark.parametrize("pool", [Mean(), First(), Max()])
@pytest.mark.parametrize("normalised", [True, False])
def test_sentence_embeddings_are_written_with_their_pooling(pool: Any, normalised: bool, tmp_path: Path):
    model = replace(models.bert(**SMALL, max_positions=32), readout=Vector(pool, None, normalised))
    loaded = trained(model)
    write_huggingface(tmp_path, loaded)
    kinds = [module["type"].rpartition(".")[2] for module in json.loads((tmp_path / "modules.json").read_text())]
    assert kinds == ["Transformer", "Pooling", *(["Normalize"] if normalised else [])]
    again = ours(tmp_path)
    assert again.network.description.readout == Vector(pool, None, normalised)
    ids, padding = rows()
    assert torch.equal(again.network(ids, padding=padding), loaded.network(ids, padding=padding))


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (models.transformer(**SMALL, position=Rotary()), "position"),
        (models.transformer(**SMALL, score=Additive()), "score"),
        (models.transformer(**SMALL, join=PreNorm()), "join"),
        (models.gpt2(**SMALL, position=RelativeBias()), "position"),
        (models.gpt2(**SMALL, score=Additive()), "score"),
        # Of the nearest family that also translates, and each difference once, however many layers have it.
        (
            models.transformer(**SMALL, position=Rotary(), join=PreNorm()),
            'm2m_100 has no embed.position = none and no encoder.layers.position = "rotary" and no decoder.layers',
        ),
        (models.seq2seq(24, 1), "encoder = recurrent and no decoder = recurrent"),
        (models.bahdanau(24, 1), "decoder = attention_decoder"),
        (models.luong(24, 1), "decoder = attention_decoder"),
        (models.bert(**SMALL, join=PreNorm(LayerNorm(1e-12))), "join"),
        (models.transformer(**SMALL, position=Learned(30)), "bart has no embed.norm = none"),
    ],
)
def test_a_model_without_an_equivalent_is_refused_by_name(model: Model, part: str, tmp_path: Path):
    with pytest.raises(InputError, match="no published form") as caught:
        write_huggingface(tmp_path / "new", trained(model))
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()
