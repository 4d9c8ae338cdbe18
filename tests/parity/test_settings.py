"""Settings and weights that published folders may hold: obeyed as transformers obeys them, or refused by name."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file

import regard
from regard.errors import DamagedFile, Note
from regard.store.convert import convert
from tests.parity import zoo
from tests.parity.folders import close, ours, perturbed, rows, save_theirs, write_tokenizer
from tests.store.published import edit, refusal


@pytest.fixture(autouse=True)
def _without_gradients():
    t.logging.set_verbosity_error()
    with torch.no_grad():
        yield


def change_weights(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_positions_that_are_not_marians_sinusoids_are_refused_by_name(tmp_path: Path):
    theirs = perturbed(zoo.marian()())
    save_theirs(theirs, tmp_path)
    name = "model.encoder.embed_positions.weight"
    sinusoids = theirs.model.encoder.embed_positions.weight.detach().clone()
    change_weights(tmp_path, lambda tensors: tensors.update({name: sinusoids.half()}))
    assert ours(tmp_path).network.shape == "encoder-decoder"
    change_weights(tmp_path, lambda tensors: tensors.update({name: sinusoids.flip(0).contiguous()}))
    assert "encoder.embed_positions.weight holds other positions" in refusal(tmp_path)


@pytest.mark.parametrize("given", [{"dense_act_fn": "gelu"}, {"dense_act_fn": "gelu_new"}, {"is_gated_act": False}])
def test_t5s_activation_is_the_one_that_transformers_uses(given: dict[str, Any], tmp_path: Path):
    save_theirs(perturbed(zoo.t5()()), tmp_path)
    edit(tmp_path / "config.json", feed_forward_proj="relu", **given)
    theirs, (ids, padding) = t.T5ForConditionalGeneration.from_pretrained(tmp_path).eval(), rows()
    expected = theirs(ids, attention_mask=padding.long(), decoder_input_ids=ids).logits
    close(ours(tmp_path).network(ids, source_ids=ids, source_padding=padding), expected)


def test_an_activation_of_t5_that_we_lack_is_refused_by_name(tmp_path: Path):
    save_theirs(perturbed(zoo.t5()()), tmp_path)
    edit(tmp_path / "config.json", dense_act_fn="mish")
    assert 'dense_act_fn = "mish"' in refusal(tmp_path)


@pytest.mark.parametrize("name", ["XLMRoberta", "Camembert", "MT5"])
def test_other_model_types_with_a_network_that_we_have(name: str, tmp_path: Path):
    settings = {**zoo.T5, "scale_decoder_outputs": True} if name == "MT5" else {**zoo.BERT, "pad_token_id": 1}
    head = "ForConditionalGeneration" if name == "MT5" else "ForMaskedLM"
    theirs = perturbed(getattr(t, name + head)(getattr(t, f"{name}Config")(**settings)))
    theirs.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, pad=0 if name == "MT5" else 1)
    ids, padding = rows()
    if name == "MT5":
        expected = theirs(ids, attention_mask=padding.long(), decoder_input_ids=ids).logits
        close(ours(tmp_path).network(ids, source_ids=ids, source_padding=padding), expected)
    else:
        ids = ids.masked_fill(~padding, 1)
        close(ours(tmp_path).network(ids, padding=padding), theirs(ids, attention_mask=padding.long()).logits, padding)


# What transformers 2.x wrote besides the settings of the model itself.
OLDER = {
    "bos_token_id": 0, "do_sample": False, "eos_token_ids": 0, "finetuning_task": None, "is_decoder": False,
    "is_encoder_decoder": False, "length_penalty": 1.0, "max_length": 20, "num_beams": 1, "num_labels": 2,
    "num_return_sequences": 1, "output_attentions": False, "output_hidden_states": False, "output_past": True,
    "pruned_heads": {}, "repetition_penalty": 1.0, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "torchscript": False,
    "use_bfloat16": False, "xla_device": None, "bad_words_ids": None, "task_specific_params": None,
}  # fmt: skip


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "gpt2", "bert, labels", "gpt2, labels"])
@pytest.mark.parametrize("xla_device", [None, True])
def test_the_keys_of_transformers_2_load(name: str, xla_device: bool | None, tmp_path: Path):
    save_theirs(perturbed(zoo.ALL[name]()), tmp_path)
    plain = json.loads((tmp_path / "config.json").read_text())
    before = ours(tmp_path).network
    older = {**OLDER, "xla_device": xla_device, "_num_labels": len(plain.get("id2label", "ab"))}
    plain = {**older, **plain}
    for key in ("transformers_version", "dtype", "model_type", "eos_token_id"):
        plain.pop(key, None)
    (tmp_path / "config.json").write_text(json.dumps(plain))
    ids, padding = rows()
    close(ours(tmp_path).network(ids, padding=padding), before(ids, padding=padding))


@pytest.mark.parametrize("name", ["bert, labels", "roberta, labels", "gpt2, labels", "distilbert, tags"])
def test_a_stale_id2label_is_named_with_what_to_do(name: str, tmp_path: Path):
    save_theirs(perturbed(zoo.ALL[name]()), tmp_path)
    edit(tmp_path / "config.json", id2label={"0": "no", "1": "yes"}, label2id={"no": 0, "yes": 1})
    line = refusal(tmp_path)
    assert "2 labels (id2label), the weights have 3" in line
    assert "Give id2label the 3 names" in line
    assert "copy both" not in line


def test_errors_and_notes_of_converting_a_pickle_name_the_folder_not_its_copy(tmp_path: Path):
    folder = tmp_path / "theirs"
    save_theirs(perturbed(zoo.ALL["bert, labels"]()), folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    edit(folder / "config.json", id2label={"0": "no"})
    with pytest.raises(DamagedFile) as caught:
        convert(folder, tmp_path / "ours", "regard", pickles=True)
    assert f"({folder})" in str(caught.value)
    for path in folder.glob("*token*"):
        path.unlink()
    edit(folder / "config.json", id2label={"0": "a", "1": "b", "2": "c"})
    with pytest.warns(UserWarning, match=f"{folder} has no tokenizer"):
        convert(folder, tmp_path / "ours", "regard", pickles=True)


def test_penalties_of_a_language_models_own_settings_hold_in_generate(tmp_path: Path):
    theirs = perturbed(zoo.gpt2()(), by=0.35)
    save_theirs(theirs, tmp_path)
    own = {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2, "min_new_tokens": 6, "suppress_tokens": [9]}
    (tmp_path / "generation_config.json").write_text(json.dumps({**own, "eos_token_id": 1, "pad_token_id": 0}))
    model, ids = regard.load(tmp_path), torch.tensor([[5, 7, 5, 7, 5]])
    expected = t.AutoModelForCausalLM.from_pretrained(tmp_path).generate(ids, max_new_tokens=12, do_sample=False)
    assert model.generate(model.tokenizer.decode(ids[0].tolist()), max_tokens=12, temperature=0) == (
        model.tokenizer.decode([token for token in expected[0].tolist() if token > 1])
    )
    plain = t.GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=1, pad_token_id=0)
    assert expected.tolist() != theirs.generate(ids, generation_config=plain).tolist()


def test_settings_of_sampling_are_named_as_our_own_options(tmp_path: Path):
    save_theirs(perturbed(zoo.gpt2()()), tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 0}))
    with pytest.warns(Note, match=r"samples with temperature = 0\.6, top_p = 0\.9; regard takes these from its own"):
        ours(tmp_path)
    path.write_text(json.dumps({"do_sample": False, "temperature": 0.6}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(tmp_path)
