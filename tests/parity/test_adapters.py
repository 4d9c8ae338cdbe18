"""Adapters, both ways: those that PEFT made load into our models, those that we trained load with PEFT."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.errors import InputError
from regard.layers.lora import LoRA, add_adapters
from regard.store.adapters import adapter_writer
from regard.store.convert import convert
from regard.store.folder import read_folder
from tests.parity import zoo
from tests.parity.folders import close, perturbed, rows, save_theirs
from tests.small import TEXTS

peft = pytest.importorskip("peft")
CPU = torch.device("cpu")

Settings = dict[str, Any]
ADAPTERS: dict[str, tuple[zoo.Make, Settings]] = {
    "gpt2, fused": (zoo.gpt2(), {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
    "gpt2, all": (zoo.gpt2(), {"target_modules": r".*\.(c_attn|c_proj|c_fc)", "lora_alpha": 3, "use_rslora": True}),
    "gpt2, some layers": (zoo.gpt2(), {"target_modules": ["c_proj"], "layers_to_transform": [1]}),
    "gpt2, untied": (zoo.gpt2(tie_word_embeddings=False), {"target_modules": ["c_fc", "lm_head", "wte"]}),
    "llama": (zoo.llama(), {"target_modules": ["q_proj", "v_proj", "down_proj"], "lora_alpha": 16}),
    "llama, patterns": (zoo.llama(attention_bias=True), {
        "target_modules": ["q_proj", "k_proj", "up_proj"], "rank_pattern": {"q_proj": 5}, "bias": "all",
        "alpha_pattern": {r"layers\.1\.self_attn\.k_proj": 11}}),
    "bert": (zoo.bert("ForSequenceClassification", num_labels=3), {
        "target_modules": ["query", "value"], "bias": "lora_only", "task_type": "SEQ_CLS"}),
    "roberta": (zoo.roberta("ForTokenClassification"), {
        "target_modules": ["dense"], "modules_to_save": ["classifier"]}),
    "t5": (zoo.t5(), {"target_modules": ["q", "v", "wo"]}),
    "marian": (zoo.marian(), {"target_modules": "all-linear"}),
}  # fmt: skip


def adapted(make: zoo.Make, settings: Settings, folder: Path) -> tuple[Any, Path]:
    """A model of transformers with a random adapter of PEFT, saved beside its base."""
    theirs = perturbed(make())
    base = save_theirs(theirs, folder / "base")
    model = peft.get_peft_model(theirs, peft.LoraConfig(r=4, **settings))
    model.base_model.model.config._name_or_path = str(base)
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad or "lora_" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(folder / "adapter")
    return model.eval(), folder / "adapter"


@torch.no_grad()
def logits(theirs: Any, network: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Our logits, theirs, and where they count."""
    ids, padding = rows()
    given = {"attention_mask": padding.long()}
    if network.shape == "encoder-decoder":
        target, where = rows(9, 4, 7)
        output = theirs(input_ids=ids, decoder_input_ids=target, **given)
        return network(target, target_padding=where, source_ids=ids, source_padding=padding), output.logits, where
    found, expected = network(ids, padding=padding), theirs(input_ids=ids, **given).logits
    return found, expected, padding if found.dim() == 3 else None


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_of_peft_gives_the_same_logits_here(name: str, tmp_path: Path):
    theirs, folder = adapted(*ADAPTERS[name], tmp_path)
    loaded = read_folder(folder, CPU)
    found, expected, where = logits(theirs, loaded.network)
    close(found, expected, where)
    plain, _, _ = logits(theirs, read_folder(tmp_path / "base", CPU).network)
    assert (plain - expected).abs().max() > 1e-2, "the adapter changes nothing"
    named = read_folder(tmp_path / "base", CPU, adapters=[folder])
    assert torch.equal(logits(theirs, named.network)[0], found)


def test_merged_it_is_a_model_of_its_own(tmp_path: Path):
    theirs, folder = adapted(*ADAPTERS["llama"], tmp_path)
    convert(folder, tmp_path / "merged", "huggingface")
    merged = regard.load(tmp_path / "merged", device="cpu")
    assert merged.adapters == ()
    found, expected, where = logits(theirs, merged.network)
    close(found, expected, where)


REFUSED: dict[str, tuple[zoo.Make, Settings, str]] = {
    "DoRA": (zoo.llama(), {"target_modules": ["q_proj"], "use_dora": True}, "use_dora"),
    "a bias of its own": (
        zoo.llama(attention_bias=True), {"target_modules": ["q_proj"], "lora_bias": True}, "lora_bias"),
    "a changed base": (zoo.llama(), {"target_modules": ["q_proj"], "init_lora_weights": "pissa"}, "init_lora_weights"),
    "a tied table": (zoo.gpt2(), {"target_modules": ["wte"]}, "shares its weights with"),
    "two maps in one": (zoo.modernbert(), {"target_modules": ["Wi"]}, "Wi.weight holds two maps"),
    "tokens": (zoo.llama(), {"target_modules": ["q_proj"], "trainable_token_indices": [3]}, "trainable_token_indices"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_we_cannot_read_is_refused_by_name(name: str, tmp_path: Path):
    make, settings, said = REFUSED[name]
    _, folder = adapted(make, settings, tmp_path)
    with pytest.raises(InputError, match=said):
        read_folder(folder, CPU)


def test_maps_that_are_halves_of_a_published_matrix_are_not_trained(tmp_path: Path):
    base = read_folder(save_theirs(zoo.modernbert()(), tmp_path), CPU)
    description = LoRA(2, "*.sublayer.gate")
    add_adapters(base.network, description)
    with pytest.raises(InputError, match=r"feedforward\.sublayer\.gate is half of a matrix"):
        adapter_writer(base.network, description, base, str(tmp_path))


def test_an_adapter_of_another_model_is_refused_with_the_nearest_name(tmp_path: Path):
    _, folder = adapted(*ADAPTERS["llama"], tmp_path)
    base = save_theirs(perturbed(zoo.gpt2()()), tmp_path / "other")
    with pytest.raises(InputError, match=r"has no model\.layers\.0\..*The nearest name is"):
        read_folder(base, CPU, adapters=[folder])
    wider = save_theirs(perturbed(zoo.llama(hidden_size=48)()), tmp_path / "wider")
    with pytest.raises(InputError, match=r"is \(\d+, \d+\) in the adapter"):
        read_folder(wider, CPU, adapters=[folder])


TRAINED: dict[str, tuple[zoo.Make, Callable[[Any], Any], str, str]] = {
    "gpt2": (zoo.gpt2(), lambda base: zoo.gpt2()(), "*.self.*", "text"),
    "llama": (zoo.llama(), lambda base: zoo.llama()(), "decoder.*", "text"),
    "t5": (zoo.t5(), lambda base: zoo.t5()(), "*", "pairs"),
    "marian": (zoo.marian(), lambda base: zoo.marian()(), "*.cross.*", "pairs"),
    "bert, new readout": (
        zoo.bert("ForMaskedLM"), lambda base: zoo.bert("ForSequenceClassification", num_labels=2)(), "*.self.*",
        "labels"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_an_adapter_of_ours_gives_the_same_logits_in_peft(name: str, tmp_path: Path):
    make, other, match, text = TRAINED[name]
    base = save_theirs(perturbed(make()), tmp_path / "base")
    lines = {"text": TEXTS, "pairs": [f"{one}\t{one[::-1]}" for one in TEXTS],
             "labels": [f"{one[:28]}\t{'dog' in one}" for one in TEXTS]}[text]  # fmt: skip
    suffix = "txt" if text == "text" else "tsv"
    head = {"text": "", "pairs": "a\tb\n", "labels": "a\tb\n"}[text]
    path = tmp_path / f"text.{suffix}"
    path.write_text(head + "".join(f"{line[:30]}\n" if text == "text" else f"{line}\n" for line in lines * 3).lower())
    fields = "" if text == "text" else '\nfields = ["a", "b"]'
    task = {"labels": '\ntask = { kind = "classification" }',
            "text": '\ntask = { kind = "language_model", length = 16 }',
            "pairs": '\nalignment = "unchecked"'}[text]  # fmt: skip
    (tmp_path / "recipe.toml").write_text(
        f'[model]\ninit = "{base}"\n[text]\ntrain = "{path}"{fields}{task}\n[train]\nsteps = 4\nbatch_tokens = 200\n'
        f'learning_rate = 0.05\nschedule = "constant"\nlora = {{ rank = 3, alpha = 7, match = "{match}" }}\n'
    )
    model = regard.train(tmp_path / "recipe.toml", out=tmp_path / "run", progress=False, device="cpu")
    (adapter,) = model.adapters
    assert (adapter.rank, adapter.alpha, adapter.base) == (3, 7, str(base))
    theirs = other(base).__class__.from_pretrained(base).eval()
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "run").eval()
    found, expected, where = logits(theirs, model.network)
    close(found, expected, where)
    assert json.loads((tmp_path / "run/adapter_config.json").read_text())["fan_in_fan_out"] == (name == "gpt2")
    assert not (tmp_path / "run/model.safetensors").exists()
