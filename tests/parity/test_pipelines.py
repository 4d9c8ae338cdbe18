"""From text: labels, tags, vectors, fills, generations and translations are those of transformers.

`tests/storm/pipelines.py` compares 200 lines with every kind, head and tokenizer form.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as t

import regard
from regard.decode.options import Options
from regard.errors import InputError
from regard.store.convert import convert
from tests.parity.folders import perturbed
from tests.parity.pipelines import CASES, Case, config, lines, merges, run, saved, write_json
from tests.store.published import edit, refusal

# One head of every kind with all its tokenizer forms, and one form of every kind with all its heads.
FIRST = {case.kind: case for case in reversed(CASES)}
USUAL = {"gpt2": "ForTokenClassification", "bert": "ForSequenceClassification", "t5": "EncoderModel",
         "roberta": "ForMaskedLM"}  # fmt: skip
CHOSEN = [
    case
    for case in CASES
    if case.form == FIRST[case.kind].form or case.head == USUAL.get(case.kind, FIRST[case.kind].head)
]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    t.logging.set_verbosity_error()
    t.logging.disable_progress_bar()


@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_every_kind_head_and_tokenizer_form_from_text(case: Case, tmp_path: Path):
    for name, same, count in run(case, tmp_path, lines(5)):
        assert (same, count) == (count, max(count, 5)), name


@pytest.mark.parametrize(("kind", "pool"), [("bert", "mean"), ("xlm-roberta", "cls"), ("bert", "max")])
def test_sentence_vectors_are_pooled_from_the_folders_own_tokens(kind: str, pool: str, tmp_path: Path):
    name = {"bert": "json, no post-processor, no class", "xlm-roberta": "json"}[kind]
    Case(kind, "Model", name).write(tmp_path)
    kinds = ["Transformer", "Pooling", "Normalize"]
    write_json(tmp_path / "modules.json", [
        {"idx": index, "name": str(index), "path": f"{index}_{one}" if index else "", "type": f"x.models.{one}"}
        for index, one in enumerate(kinds)])  # fmt: skip
    (tmp_path / "1_Pooling").mkdir()
    suffix = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}[pool]
    write_json(tmp_path / "1_Pooling" / "config.json", {f"pooling_mode_{suffix}": True})
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": False})
    tokenizer, theirs = t.AutoTokenizer.from_pretrained(tmp_path), t.AutoModel.from_pretrained(tmp_path)
    texts = lines(20)
    found = regard.load(tmp_path).embed(texts)
    for text, vector in zip(texts, found):
        with torch.no_grad():
            given = tokenizer(text, return_tensors="pt", truncation=True, max_length=9)
            states = theirs(**given).last_hidden_state[0].numpy()
        pooled = {"mean": states.mean(0), "cls": states[0], "max": states.max(0)}[pool]
        np.testing.assert_allclose(vector, pooled / np.linalg.norm(pooled), atol=2e-6)


def test_a_language_model_without_an_end_token_generates_up_to_the_limit(tmp_path: Path):
    settings = dict.fromkeys(("bos_token", "eos_token", "unk_token"))
    write = saved("GPT2Tokenizer", merges("<x>"), post=None, tokenizer_class="PreTrainedTokenizerFast", **settings)
    write(tmp_path)
    plain = json.loads((tmp_path / "tokenizer.json").read_text())
    write_json(tmp_path / "tokenizer.json", {**plain, "added_tokens": []})
    of_model = t.GPT2Config(vocab_size=len(plain["model"]["vocab"]), n_embd=24, n_layer=1, n_head=3, n_positions=64,
                            bos_token_id=None, eos_token_id=None)  # fmt: skip
    perturbed(t.GPT2LMHeadModel(of_model), by=0.35).save_pretrained(tmp_path)
    model = regard.load(tmp_path)
    assert not model.tokenizer.has_eos
    (found,) = model.continuations(["The early"], Options(temperature=0.0, max_tokens=9))
    assert len(found[0].tokens) == 9
    assert not found[0].ended
    with pytest.raises(InputError, match=r"no bos token .*tokenizer_config\.json"):
        model.score(["ab"])
    pipe = t.pipeline("text-generation", model=str(tmp_path), device="cpu")
    expected = pipe("The early", max_new_tokens=9, do_sample=False)[0]["generated_text"]
    assert found[0].text == expected


def test_segments_are_given_only_where_the_tokenizer_gives_them(tmp_path: Path):
    for name, expected in (("json", True), ("json, own template, no class", False)):
        Case("bert", "ForSequenceClassification", name).write(tmp_path / name)
        special = regard.load(tmp_path / name).tokenizer.special_tokens
        assert any(segment for _, segment in special.pair) == expected


def test_a_class_that_misses_one_of_its_special_tokens_is_refused_by_name(tmp_path: Path):
    Case("bert", "Model", "vocab.txt").write(tmp_path)
    vocabulary = (tmp_path / "vocab.txt").read_text().replace("[CLS]", "[BEGIN]")
    (tmp_path / "vocab.txt").write_text(vocabulary)
    with pytest.raises(InputError, match=r"no \[CLS\].*cls_token"):
        regard.load(tmp_path)
    config(tmp_path, cls_token="[BEGIN]")
    assert regard.load(tmp_path).embed(["a bird"], tokens=True)[0][0][0] == "[BEGIN]"


def test_what_is_converted_from_our_own_form_keeps_what_stands_around_a_text(tmp_path: Path):
    Case("gpt2", "ForSequenceClassification", "merges, begin").write(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours", "regard")
    convert(tmp_path / "ours", tmp_path / "again", "huggingface")
    texts = lines(6)
    first = [one.probabilities for one in regard.load(tmp_path / "theirs").classify(texts)]
    assert [one.probabilities for one in regard.load(tmp_path / "ours").classify(texts)] == first
    pipe = t.pipeline("text-classification", model=str(tmp_path / "again"), top_k=None, device="cpu")
    for text, expected in zip(texts, first):
        found = {row["label"]: row["score"] for row in pipe([text])[0]}
        assert found == pytest.approx(expected, abs=2e-6)


def test_each_of_several_labels_has_a_probability_of_its_own(tmp_path: Path):
    Case("bert", "ForSequenceClassification", "vocab.txt").write(tmp_path)
    edit(tmp_path / "config.json", problem_type="multi_label_classification")
    convert(tmp_path, tmp_path / "ours", "regard")
    convert(tmp_path / "ours", tmp_path / "again", "huggingface")
    texts = lines(3)
    for folder in (tmp_path, tmp_path / "again"):
        pipe = t.pipeline("text-classification", model=str(folder), top_k=None, device="cpu")
        for text, found in zip(texts, regard.load(tmp_path / "ours").classify(texts)):
            expected = {row["label"]: row["score"] for row in pipe([text])[0]}
            assert found.probabilities == pytest.approx(expected, abs=2e-6)
            assert found.label == max(expected, key=expected.__getitem__)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}}, "rope_parameters"),
        ({"rope_scaling": {"type": "dynamic", "factor": 8.0}}, "rope_scaling"),
        ({"rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "attention_factor": 2.0}}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),  # beside another rope_parameters
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
    ],
)
def test_settings_of_llama_that_we_lack_are_refused_by_name(settings: dict[str, object], name: str, tmp_path: Path):
    Case("llama", "ForCausalLM", "json").write(tmp_path)
    edit(tmp_path / "config.json", **settings)
    assert name in refusal(tmp_path)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}}, "rope_parameters"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types"),
        ({"position_embedding_type": "sans_pos"}, "position_embedding_type"),
        ({"architectures": ["ModernBertForSequenceClassification"]}, "ModernBertForSequenceClassification"),
    ],
)
def test_settings_of_modernbert_that_we_lack_are_refused_by_name(
    settings: dict[str, object], name: str, tmp_path: Path
):
    Case("modernbert", "ForMaskedLM", "json, no class").write(tmp_path)
    edit(tmp_path / "config.json", **settings)
    assert name in refusal(tmp_path)


def test_the_first_config_of_modernbert_is_read(tmp_path: Path):
    Case("modernbert", "ForMaskedLM", "json, no class").write(tmp_path)
    before = regard.load(tmp_path).description
    plain = json.loads((tmp_path / "config.json").read_text())
    del plain["layer_types"], plain["rope_parameters"]
    write_json(tmp_path / "config.json", {**plain, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
                                          "local_rope_theta": 10000.0, "reference_compile": None,
                                          "position_embedding_type": "absolute", "layer_norm_eps": 1e-05})  # fmt: skip
    assert regard.load(tmp_path).description == before


def test_shared_layers_of_albert_that_repeat_within_a_group_are_refused_by_name(tmp_path: Path):
    Case("albert", "Model", "spiece.model").write(tmp_path)
    edit(tmp_path / "config.json", inner_group_num=2)
    assert "inner_group_num = 2" in refusal(tmp_path)
