"""The payload of the page: every number in it is one of the trace's."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.errors import InputError
from regard.layers.lsh.masks import RankWindow
from regard.layers.scores import Additive
from regard.models import zoo
from regard.models.model import Model
from regard.models.readouts import Label, Number
from regard.show import collect
from regard.show import payload as module
from regard.show.payload import Blobs, model_summary, page_payload, side_by_side, trace_payload
from regard.show.trace import AttentionTrace
from tests.small import TEXTS, small

TEXT = "The cat sat on the mat."
MODELS: dict[str, Model] = {
    "transformer": zoo.transformer(16, 2, 2),
    "t5": zoo.t5(16, 2, 2),
    "convs2s": zoo.convs2s(16, 2),
    "luong": zoo.luong(16, 2),
    "bahdanau": zoo.bahdanau(16),
    "seq2seq": zoo.seq2seq(16, 2),
    "bert": zoo.bert(16, 2, 2, max_positions=64),
    "gpt2": zoo.gpt2(16, 2, 2),
    "gpt2, additive": zoo.gpt2(16, 1, 2, score=Additive(), position=None),
    "reformer": zoo.reformer(16, 2, 2, pattern=RankWindow(4), buckets=4, rounds=2),
    "sha-rnn": zoo.sha_rnn(16, 2),
    "lstm-lm": zoo.lstm_lm(16, 2),
    "elmo": zoo.elmo(width=16, inner=20, clip=None),
}


def traced(name: str, **more: Any) -> AttentionTrace:
    return small(MODELS[name], generation_config={"max_new_tokens": 6}).look(TEXT, **more)


def unpacked(ref: dict[str, Any], blobs: list[bytes]) -> Tensor:
    return torch.from_numpy(np.frombuffer(blobs[ref["blob"]], f"<{ref['type']}").reshape(ref["shape"]).copy())


def refs(tree: Any) -> list[dict[str, Any]]:
    if isinstance(tree, dict):
        return [tree] if "blob" in tree else [ref for branch in tree.values() for ref in refs(branch)]
    return [ref for branch in tree for ref in refs(branch)] if isinstance(tree, list) else []


@pytest.mark.parametrize("name", MODELS)
def test_the_payload_of_every_kind_of_model_is_complete(name: str):
    trace = traced(name)
    blobs = Blobs()
    found = json.loads(json.dumps(trace_payload(trace, blobs, "one"), allow_nan=False))
    keys = "label model shape sides layers beams alignment prompt left_out"
    views = "prediction walk generation positions neighbours attribution ablation"
    assert set(found) == {*keys.split(), *views.split()}
    assert found["label"] == "one"
    assert sorted({ref["blob"] for ref in refs(found)}) == list(range(len(blobs.data)))
    assert all(unpacked(ref, blobs.data).isfinite().all() for ref in refs(found))
    assert [layer["name"] for layer in found["layers"]] == list(trace.weights)
    for side in found["sides"].values():
        assert [at for first, stop in side["word_spans"] for at in range(first, stop)] == list(
            range(len(side["tokens"]))
        )
        assert len(side["word_texts"]) == len(side["word_spans"])
    for layer in found["layers"]:
        weights = trace.weights[layer["name"]]
        rows, columns = (found["sides"][layer[axis]]["tokens"] for axis in ("rows", "columns"))
        assert (
            weights.shape
            == (layer["heads"], layer["queries"], layer["keys"])
            == (len(weights), len(rows), len(columns))
        )
        assert torch.equal(unpacked(layer["weights"], blobs.data), weights.half())
        assert (layer["pooled"], layer["top"]) == (None, None)
        assert layer["entropy"] == trace.entropy[layer["name"]].tolist()
        assert (layer["confidence"] is not None) == layer["name"].endswith("cross")
        assert layer["causal"] == bool((weights.triu(1) == 0).all() and layer["name"].endswith("self"))
        assert unpacked(layer["value_norms"], blobs.data).shape == (layer["heads"], layer["keys"])
        check_score_inputs(layer, weights, blobs.data)
    assert trace.html().startswith("<!doctype html>")


def check_score_inputs(layer: dict[str, Any], weights: Tensor, blobs: list[bytes]) -> None:
    """Weights computed from the stored queries and keys are the recorded ones, in half precision."""
    inputs = layer["score_inputs"]
    q, k = (unpacked(inputs[name], blobs).float() for name in ("query", "key"))
    if inputs["kind"] == "additive":
        vector = unpacked(inputs["vector"], blobs).float()
        scores = (torch.tanh(q[:, :, None] + k[:, None]) * vector[:, None, None]).sum(-1)
    else:
        scores = q @ k.mT * inputs["scale"]
    if inputs["bias"] is not None:
        scores = scores + unpacked(inputs["bias"], blobs).float()
    expected = scores.masked_fill(weights == 0, -torch.inf).softmax(-1)
    torch.testing.assert_close(weights, expected, atol=0.02, rtol=0.02)


def test_a_classifier_shows_what_it_predicts():
    bert = replace(MODELS["bert"], auxiliary=None)
    labels = small(replace(bert, readout=Label(("good", "bad", "ugly"))))
    shown = page_payload(labels.look("The cat sat.").traces)[0]["traces"][0]["prediction"]
    expected = labels.classify(["The cat sat."])[0]
    assert shown[0][0] == expected.label
    assert dict(shown) == pytest.approx(expected.probabilities)
    assert sorted(shown, key=lambda pair: -pair[1]) == shown
    number = small(replace(bert, readout=Number()))
    [[text, probability]] = page_payload(number.look("The cat sat.").traces)[0]["traces"][0]["prediction"]
    assert probability is None
    assert float(text) == pytest.approx(number.classify(["The cat sat."])[0].number, rel=1e-3)
    assert page_payload(traced("bert").traces)[0]["traces"][0]["prediction"] is None


def test_shapes_and_sides():
    found = {
        name: page_payload(traced(name).traces)[0]["traces"][0] for name in ("transformer", "bert", "gpt2", "seq2seq")
    }
    assert {name: (one["shape"], list(one["sides"])) for name, one in found.items()} == {
        "transformer": ("encoder-decoder", ["source", "decoder_input", "target"]),
        "bert": ("encoder", ["source"]),
        "gpt2": ("decoder", ["decoder_input"]),
        "seq2seq": ("encoder-decoder", ["source", "decoder_input", "target"]),
    }
    axes = {layer["name"]: (layer["rows"], layer["columns"]) for layer in found["transformer"]["layers"]}
    assert axes["encoder.0.self"] == ("source", "source")
    assert axes["decoder.0.self"] == ("decoder_input", "decoder_input")
    assert axes["decoder.1.cross"] == ("target", "source")
    assert found["seq2seq"]["layers"] == []
    assert (found["seq2seq"]["alignment"], found["seq2seq"]["ablation"]) == (None, None)
    assert len(found["transformer"]["generation"]) == len(found["transformer"]["sides"]["target"]["tokens"])


def test_the_beam_tree_is_there_after_a_beam_search():
    one, three = traced("transformer", beam=1), traced("transformer", beam=3)
    blobs = Blobs()
    assert trace_payload(one, blobs, "")["beams"] is None
    nodes = trace_payload(three, blobs, "")["beams"]
    best = [node["text"] for node in nodes if node["best"]]
    assert best == three.target_tokens[: len(best)]


def test_lsh_layers_have_buckets():
    trace, blobs = traced("reformer"), Blobs()
    layers = {layer["name"]: layer["buckets"] for layer in trace_payload(trace, blobs, "")["layers"]}
    hashed = {name: ref for name, ref in layers.items() if ref is not None}
    assert list(hashed) == list(trace.buckets)
    for name, ref in hashed.items():
        assert torch.equal(unpacked(ref, blobs.data), trace.buckets[name])


def test_a_long_text_is_pooled_and_stores_its_top_keys(monkeypatch: pytest.MonkeyPatch):
    model, text = small(MODELS["transformer"]), " ".join(TEXTS * 3)
    whole = model.look(text, "the cat")
    monkeypatch.setattr(collect, "_BUDGET", 30_000)
    monkeypatch.setattr(collect, "_VECTORS", 1_000)
    monkeypatch.setattr(module, "_MAX_ABLATION_TOKENS", 100)
    monkeypatch.setattr(module, "_MAX_TOKENS", 20)
    trace, blobs = model.look(text, "the cat"), Blobs()
    found = trace_payload(trace, blobs, "")
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert layers["decoder.0.cross"]["weights"] is not None  # small layers are stored in full
    assert (found["ablation"], found["neighbours"], found["generation"]) == (None, None, None)
    assert found["alignment"] == whole.moses()
    layer, weights = layers["encoder.1.self"], whole.weights["encoder.1.self"]
    assert (layer["weights"], layer["score_inputs"]) == (None, None)
    size, length = layer["pooled"]["size"], layer["queries"]
    tiles = unpacked(layer["pooled"]["weights"], blobs.data)
    assert tiles.shape == (2, size, size)
    tile = torch.arange(length) * size // length
    corner = weights[:, tile == size - 1][:, :, tile == 0].amax((1, 2))
    assert torch.equal(tiles[:, -1, 0], corner.half())
    keys, top = (unpacked(layer["top"][name], blobs.data) for name in ("keys", "weights"))
    assert torch.equal(top, weights.topk(top.shape[-1]).values.half())
    assert torch.equal(weights.gather(-1, keys.long()).half(), top)
    assert sum(len(blob) for blob in blobs.data) < 2 * 30_000 + 10_000


def test_equal_tensors_are_stored_once():
    blobs = Blobs()
    one, other, third = blobs.add(torch.ones(2, 3)), blobs.add(torch.ones(3, 2)), blobs.add(torch.zeros(2, 3))
    assert (one["blob"], other["blob"], third["blob"]) == (0, 0, 1)
    assert (one["shape"], other["shape"]) == ([2, 3], [3, 2])
    assert unpacked(blobs.add(torch.tensor([1e9, float("nan")])), blobs.data).tolist() == [65504.0, 0.0]
    assert unpacked(blobs.add(torch.tensor([-1, 70_000]), "i4"), blobs.data).tolist() == [-1, 70_000]


def test_several_traces_share_a_page(tmp_path: Path):
    one, other = traced("transformer"), traced("gpt2")
    both = side_by_side(one, other, labels=["a", "b"], slider=True)
    payload, _ = page_payload(both.traces, slider=both.slider)
    assert [found["label"] for found in payload["traces"]] == ["a", "b"]
    assert payload["slider"] is True
    assert [label for label, _ in side_by_side(one, other).traces] == ["1", "2"]
    both.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == both.html()
    with pytest.raises(InputError, match="2 traces and 1 labels"):
        side_by_side(one, other, labels=["a"])


def test_a_notebook_shows_the_page_in_an_iframe():
    trace = AttentionTrace(["<script>", '"'], ["&amp;"], {"decoder.0.cross": torch.ones(1, 1, 2) / 2})
    page = trace._repr_html_()
    before, content, after = page.split('"', 2)
    assert before == "<iframe srcdoc="
    assert unescape(content) == trace.html()
    assert "<" not in content
    assert after.endswith("</iframe>")


def test_a_model_summary_is_one_line():
    assert (
        model_summary(MODELS["transformer"].build(100))
        == "Encoder-decoder, 2+2 layers, width 16, 2 heads, 17 K parameters"
    )
    assert model_summary(MODELS["lstm-lm"].build(100)).startswith("Decoder, 2 layers, width 16, ")
    with torch.device("meta"):
        assert model_summary(zoo.bert(64, 1, 1).build(900)) == "Encoder, 1 layer, width 64, 1 head, 146 K parameters"


def test_several_traces_share_the_budget_of_a_page(monkeypatch: pytest.MonkeyPatch):
    model, text = small(MODELS["gpt2"]), " ".join(TEXTS)
    trace = model.look(text)
    weights = trace.weights["decoder.1.self"]
    monkeypatch.setattr(collect, "_BUDGET", 2 * trace.weights["decoder.0.self"].numel() + 10)
    single, shared = Blobs(), Blobs()
    assert trace_payload(trace, single, "")["layers"][1]["weights"] is not None
    layer = trace_payload(trace, shared, "", sharing=4)["layers"][1]
    assert layer["weights"] is None
    keys, top = (unpacked(layer["top"][name], shared.data) for name in ("keys", "weights"))
    assert torch.equal(weights.gather(-1, keys.long().clamp_min(0)).half() * (keys >= 0), top)
    assert float(unpacked(layer["pooled"]["weights"], shared.data).max()) == float(weights.max().half())
    assert len(page_payload([("one", trace), ("other", trace)])[0]["traces"]) == 2


def test_progress_adds_up_to_the_work():
    done: list[float] = []
    trace = traced("transformer")
    work = trace.work
    trace.html(progress=done.append)
    assert sum(done) == work > 0
