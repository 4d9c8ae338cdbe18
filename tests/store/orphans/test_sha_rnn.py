"""State dicts of sha-rnn: the logits of its own code, and refusals by name."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.errors import DamagedFile, InputError
from regard.layers.contract import Context
from regard.store.convert import convert

FROZEN = Path(__file__).parent / "sha_rnn"


def check_logits(folder: Path, target: Path, expected: dict[str, Any]) -> None:
    convert(folder / "model.pt", target, "regard", pickles=True)
    network = regard.load(target).network
    ids = torch.tensor([expected["ids"]])
    with torch.no_grad():
        states, _ = network.decode(ids, Context())
        logits = network.readout(states)[0]
    torch.testing.assert_close(logits, torch.tensor(expected["logits"]), atol=1e-5, rtol=1e-5)


def changed(folder: Path, change: dict[str, torch.Tensor | None]) -> Path:
    """A copy of the frozen model whose tensors are changed, or missing."""
    shutil.copytree(FROZEN, folder)
    state = torch.load(folder / "model.pt", weights_only=True)
    state.update({name: tensor for name, tensor in change.items() if tensor is not None})
    for name in [name for name, tensor in change.items() if tensor is None]:
        del state[name]
    torch.save(state, folder / "model.pt")
    return folder / "model.pt"


def test_a_frozen_model_has_the_logits_of_its_own_code(tmp_path: Path) -> None:
    check_logits(FROZEN, tmp_path / "ours", json.loads((FROZEN / "expected.json").read_text()))


@pytest.mark.storm
@pytest.mark.skipif("SHA_RNN" not in os.environ, reason="SHA_RNN does not name a clone of sha-rnn")
@pytest.mark.parametrize("size", [{}, {"depth": 4, "tied": False}, {"width": 12, "inner": 53, "depth": 3}])
def test_a_random_model_has_the_logits_of_its_own_code(size: dict[str, Any], tmp_path: Path) -> None:
    from tests.store.orphans.with_sha_rnn import make

    check_logits(tmp_path / "theirs", tmp_path / "ours", make(tmp_path / "theirs", seed=7, **size))


def test_a_text_is_scored_and_continued_by_its_words(tmp_path: Path) -> None:
    convert(FROZEN / "model.pt", tmp_path / "ours", "regard", pickles=True)
    model = regard.load(tmp_path / "ours")
    assert model.tokenizer.encode("w1 w3 unheard") == [3, 5, 0]
    assert len(model.score(["w1 w3"])) == 1
    assert model.generate("w1 w3", max_tokens=5, temperature=0).startswith("w1 w3")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"blocks.0.attn.vq.l1.weight": None}, r"collapsed gate on values \(blocks\.0\.attn\.vq\)"),
        ({"blocks.0.lnmem.weight": torch.zeros(8)}, r"norm of keys .*blocks\.0\.lnmem\.weight"),
    ],
)
def test_what_no_weights_of_ours_make_up_for_is_named(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=named):
        convert(changed(tmp_path / "model", change), tmp_path / "ours", "regard", pickles=True)


def test_a_matrix_of_keys_is_named(tmp_path: Path) -> None:
    path = changed(tmp_path / "model", {"blocks.0.attn.k.weight": torch.zeros(8, 8)})
    with pytest.raises(DamagedFile, match=r"do not describe: blocks\.0\.attn\.k\.weight"):
        convert(path, tmp_path / "ours", "regard", pickles=True)


def test_a_missing_vocabulary_is_named_with_what_it_holds(tmp_path: Path) -> None:
    path = changed(tmp_path / "model", {})
    (path.parent / "vocab.txt").unlink()
    with pytest.raises(InputError, match=r"lacks vocab\.txt.*idx2word"):
        convert(path, tmp_path / "ours", "regard", pickles=True)


def test_a_model_of_reformer_pytorch_is_refused_with_what_differs(tmp_path: Path) -> None:
    block = "reformer.layers.blocks.0.f.net.fn."
    names = [f"{block}toqk.weight", f"{block}to_out.bias", "layer_pos_emb.inv_freq"]
    torch.save({name: torch.zeros(2) for name in names}, tmp_path / "reformer.pt")
    with pytest.raises(InputError, match=r"to_out\.bias.*layer_pos_emb.*bucket_size") as caught:
        convert(tmp_path / "reformer.pt", tmp_path / "ours", "regard", pickles=True)
    assert "num_mem_kv" not in str(caught.value)


@pytest.mark.storm
def test_every_kind_of_reformer_pytorch_is_refused_by_name(tmp_path: Path) -> None:
    reformer: Any = pytest.importorskip("reformer_pytorch", reason="reformer-pytorch is not installed")
    kinds = {
        "layer_pos_emb": {}, "axial_position_emb": {"axial_position_emb": True}, "num_mem_kv": {"num_mem_kv": 4},
        "use_scale_norm": {"use_scale_norm": True}, "use_rezero": {"use_rezero": True},
        "pkm_layers": {"pkm_layers": (1,), "pkm_num_keys": 4},
    }  # fmt: skip
    for name, settings in kinds.items():
        model = reformer.ReformerLM(11, 16, 2, 64, heads=2, dim_head=8, bucket_size=8, causal=True, **settings)
        torch.save(model.state_dict(), tmp_path / f"{name}.pt")
        with pytest.raises(InputError, match=rf"to_out\.bias.*{name}"):
            convert(tmp_path / f"{name}.pt", tmp_path / "ours", "regard", pickles=True)
