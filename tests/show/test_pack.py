"""A look as the page takes it: every number in it is one of the look's."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.errors import InputError
from regard.layers.lsh.masks import Ranks
from regard.layers.scores import Additive
from regard.models import zoo
from regard.models.model import Model
from regard.show import collect as sight
from regard.show import payload as module
from regard.show.payload import Pack, about, beside, look_payload, packed
from regard.show.trace import Seen
from tests.small import TEXTS, small

TEXT = "The cat sat on the mat."
MODELS: dict[str, Model] = {
    "transformer": zoo.transformer(16, 2, 2),
    "t5": zoo.t5(16, 2, 2),
    "luong": zoo.luong(16, 2),
    "bahdanau": zoo.bahdanau(16),
    "seq2seq": zoo.seq2seq(16, 2),
    "bert": zoo.bert(16, 2, 2, max_positions=64),
    "gpt2": zoo.gpt2(16, 2, 2),
    "gpt2, additive": zoo.gpt2(16, 1, 2, score=Additive(), position=None),
    "reformer": zoo.reformer(16, 2, 2, pattern=Ranks(4), buckets=4, rounds=2),
    "sha-rnn": zoo.sha_rnn(16, 2),
    "lstm-lm": zoo.lstm_lm(16, 2),
    "elmo": zoo.elmo(width=16, inner=20, clip=None),
}


def look(name: str, **more: Any) -> Seen:
    return small(MODELS[name], generation={"max_new_tokens": 6}).look(TEXT, **more)


def unpacked(ref: dict[str, Any], blobs: list[bytes]) -> Tensor:
    return torch.from_numpy(np.frombuffer(blobs[ref["blob"]], f"<{ref['type']}").reshape(ref["shape"]).copy())


def refs(tree: Any) -> list[dict[str, Any]]:
    if isinstance(tree, dict):
        return [tree] if "blob" in tree else [ref for branch in tree.values() for ref in refs(branch)]
    return [ref for branch in tree for ref in refs(branch)] if isinstance(tree, list) else []


@pytest.mark.parametrize("name", MODELS)
def test_the_payload_of_every_kind_of_model_is_whole(name: str):
    seen = look(name)
    pack = Pack()
    found = json.loads(json.dumps(look_payload(seen, pack, "one"), allow_nan=False))
    keys = "label about shape sides layers steps beams positions near off alignment"
    assert set(found) == set(keys.split())
    assert found["label"] == "one"
    assert sorted({ref["blob"] for ref in refs(found)}) == list(range(len(pack.blobs)))
    assert all(unpacked(ref, pack.blobs).isfinite().all() for ref in refs(found))
    assert [layer["name"] for layer in found["layers"]] == list(seen.weights)
    for side in found["sides"].values():
        assert [place for first, stop in side["words"] for place in range(first, stop)] == list(
            range(len(side["tokens"]))
        )
        assert len(side["word_texts"]) == len(side["words"])
    for layer in found["layers"]:
        weights = seen.weights[layer["name"]]
        rows, columns = (found["sides"][layer[axis]]["tokens"] for axis in ("rows", "columns"))
        assert (
            weights.shape
            == (layer["heads"], layer["queries"], layer["keys"])
            == (len(weights), len(rows), len(columns))
        )
        assert torch.equal(unpacked(layer["weights"], pack.blobs), weights.half())
        assert (layer["pooled"], layer["top"]) == (None, None)
        assert layer["entropy"] == seen.entropy[layer["name"]].tolist()
        assert (layer["alignment"] is not None) == layer["name"].endswith("cross")
        assert layer["causal"] == bool((weights.triu(1) == 0).all() and layer["name"].endswith("self"))
        assert unpacked(layer["norms"], pack.blobs).shape == (layer["heads"], layer["keys"])
        check_inside(layer, weights, pack.blobs)
    assert seen.html().startswith("<!doctype html>")


def check_inside(layer: dict[str, Any], weights: Tensor, blobs: list[bytes]) -> None:
    """What the page can work out of queries and keys is what was recorded, as far as half the digits go."""
    inside = layer["inside"]
    q, k = (unpacked(inside[name], blobs).float() for name in ("query", "key"))
    if inside["kind"] == "additive":
        vector = unpacked(inside["vector"], blobs).float()
        scores = (torch.tanh(q[:, :, None] + k[:, None]) * vector[:, None, None]).sum(-1)
    else:
        scores = q @ k.mT * inside["scale"]
    if inside["bias"] is not None:
        scores = scores + unpacked(inside["bias"], blobs).float()
    expected = scores.masked_fill(weights == 0, -torch.inf).softmax(-1)
    torch.testing.assert_close(weights, expected, atol=0.02, rtol=0.02)


def test_shapes_and_sides():
    found = {name: packed(look(name).looks)[0]["looks"][0] for name in ("transformer", "bert", "gpt2", "seq2seq")}
    assert {name: (one["shape"], list(one["sides"])) for name, one in found.items()} == {
        "transformer": ("encoder-decoder", ["source", "read", "said"]),
        "bert": ("encoder", ["source"]),
        "gpt2": ("decoder", ["read"]),
        "seq2seq": ("encoder-decoder", ["source", "read", "said"]),
    }
    axes = {layer["name"]: (layer["rows"], layer["columns"]) for layer in found["transformer"]["layers"]}
    assert axes["encoder.0.self"] == ("source", "source")
    assert axes["decoder.0.self"] == ("read", "read")
    assert axes["decoder.1.cross"] == ("said", "source")
    assert found["seq2seq"]["layers"] == []
    assert (found["seq2seq"]["alignment"], found["seq2seq"]["off"]) == (None, None)
    assert len(found["transformer"]["steps"]) == len(found["transformer"]["sides"]["said"]["tokens"])


def test_the_beam_tree_is_there_when_beams_were_searched():
    one, three = look("transformer", beam=1), look("transformer", beam=3)
    pack = Pack()
    assert look_payload(one, pack, "")["beams"] is None
    nodes = look_payload(three, pack, "")["beams"]
    said = [node["text"] for node in nodes if node["best"]]
    assert said == three.target_tokens[: len(said)]


def test_buckets_of_layers_that_hash():
    seen, pack = look("reformer"), Pack()
    layers = {layer["name"]: layer["buckets"] for layer in look_payload(seen, pack, "")["layers"]}
    hashing = {name: ref for name, ref in layers.items() if ref is not None}
    assert list(hashing) == list(seen.buckets)
    for name, ref in hashing.items():
        assert torch.equal(unpacked(ref, pack.blobs), seen.buckets[name])


def test_a_long_text_is_pooled_and_keeps_the_weightiest_keys(monkeypatch: pytest.MonkeyPatch):
    model, text = small(MODELS["transformer"]), " ".join(TEXTS * 3)
    whole = model.look(text, "the cat")
    monkeypatch.setattr(sight, "_BUDGET", 30_000)
    monkeypatch.setattr(sight, "_VECTORS", 1_000)
    monkeypatch.setattr(module, "_MOST_OFF", 100)
    monkeypatch.setattr(module, "_MOST_TOKENS", 20)
    seen, pack = model.look(text, "the cat"), Pack()
    found = look_payload(seen, pack, "")
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert layers["decoder.0.cross"]["weights"] is not None  # small ones are kept as they are
    assert (found["off"], found["near"], found["steps"]) == (None, None, None)
    assert found["alignment"] == whole.moses()
    layer, weights = layers["encoder.1.self"], whole.weights["encoder.1.self"]
    assert (layer["weights"], layer["inside"]) == (None, None)
    size, length = layer["pooled"]["size"], layer["queries"]
    tiles = unpacked(layer["pooled"]["weights"], pack.blobs)
    assert tiles.shape == (2, size, size)
    tile = torch.arange(length) * size // length
    corner = weights[:, tile == size - 1][:, :, tile == 0].amax((1, 2))
    assert torch.equal(tiles[:, -1, 0], corner.half())
    keys, top = (unpacked(layer["top"][name], pack.blobs) for name in ("keys", "weights"))
    assert torch.equal(top, weights.topk(top.shape[-1]).values.half())
    assert torch.equal(weights.gather(-1, keys.long()).half(), top)
    assert sum(len(blob) for blob in pack.blobs) < 2 * 30_000 + 10_000


def test_what_is_the_same_is_packed_once():
    pack = Pack()
    one, other, third = pack.add(torch.ones(2, 3)), pack.add(torch.ones(3, 2)), pack.add(torch.zeros(2, 3))
    assert (one["blob"], other["blob"], third["blob"]) == (0, 0, 1)
    assert (one["shape"], other["shape"]) == ([2, 3], [3, 2])
    assert unpacked(pack.add(torch.tensor([1e9, float("nan")])), pack.blobs).tolist() == [65504.0, 0.0]
    assert unpacked(pack.add(torch.tensor([-1, 70_000]), "i4"), pack.blobs).tolist() == [-1, 70_000]


def test_several_looks_share_a_page(tmp_path: Path):
    one, other = look("transformer"), look("gpt2")
    both = beside(one, other, labels=["a", "b"], slider=True)
    payload, _ = packed(both.looks, slider=both.slider)
    assert [found["label"] for found in payload["looks"]] == ["a", "b"]
    assert payload["slider"] is True
    assert [label for label, _ in beside(one, other).looks] == ["1", "2"]
    both.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == both.html()
    with pytest.raises(InputError, match="2 looks and 1 labels"):
        beside(one, other, labels=["a"])


def test_a_notebook_shows_the_page_in_a_frame_of_its_own():
    seen = Seen(["<script>", '"'], ["&amp;"], {"decoder.0.cross": torch.ones(1, 1, 2) / 2})
    shown = seen._repr_html_()
    before, inside, after = shown.split('"', 2)
    assert before == "<iframe srcdoc="
    assert unescape(inside) == seen.html()
    assert "<" not in inside
    assert after.endswith("</iframe>")


def test_a_model_in_a_line():
    assert about(MODELS["transformer"].build(100)) == "Encoder-decoder, 2+2 layers, width 16, 2 heads, 17 K parameters"
    assert about(MODELS["lstm-lm"].build(100)).startswith("Decoder, 2 layers, width 16, ")
    with torch.device("meta"):
        assert about(zoo.bert(64, 1, 1).build(900)) == "Encoder, 1 layer, width 64, 1 head, 146 K parameters"


def test_several_looks_share_the_room_of_a_page(monkeypatch: pytest.MonkeyPatch):
    model, text = small(MODELS["gpt2"]), " ".join(TEXTS)
    seen = model.look(text)
    weights = seen.weights["decoder.1.self"]
    monkeypatch.setattr(sight, "_BUDGET", 2 * seen.weights["decoder.0.self"].numel() + 10)
    alone, together = Pack(), Pack()
    assert look_payload(seen, alone, "")["layers"][1]["weights"] is not None
    layer = look_payload(seen, together, "", sharing=4)["layers"][1]
    assert layer["weights"] is None
    keys, top = (unpacked(layer["top"][name], together.blobs) for name in ("keys", "weights"))
    assert torch.equal(weights.gather(-1, keys.long().clamp_min(0)).half() * (keys >= 0), top)
    assert float(unpacked(layer["pooled"]["weights"], together.blobs).max()) == float(weights.max().half())
    assert len(packed([("one", seen), ("other", seen)])[0]["looks"]) == 2


def test_all_that_was_to_do_is_said_to_be_done():
    done: list[float] = []
    shown = look("transformer")
    effort = shown.effort
    shown.html(progress=done.append)
    assert sum(done) == effort > 0
