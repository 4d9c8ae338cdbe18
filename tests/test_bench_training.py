"""Peers train in processes and environments of their own, on our batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench import peers, training
from bench.learners import LEARNERS, Sizes
from regard.errors import InputError, RunFailed
from regard.evaluation.contestant import Pass

SMALL = {
    "encoder-decoder": training.Case("pairs", 16, 1, 2, vocabulary=400),
    "gpt": training.Case("text", 16, 1, 2, rows=2, vocabulary=259),
}


@pytest.mark.parametrize(("kind", "peer"), [("encoder-decoder", "nn.Transformer"), ("gpt", "plain")])
def test_a_peer_trains_in_turns_with_ours(kind: str, peer: str):
    found = training.measure(SMALL[kind], None, [peer], threads=1, rounds=1, steps=2, seed=1)
    ours, theirs = found.table.splitlines()[2:]
    assert ours.startswith("| regard |")
    assert theirs.startswith(f"| {peer} |")
    assert "MiB, loss" in theirs
    assert "GFLOP/s" in found.facts["limit"]


def test_a_peer_without_an_environment_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setattr(training, "python_of", lambda name: peers.python_of(name, tmp_path))
    found = training.measure(SMALL["gpt"], None, ["litgpt", "plain"], threads=1, rounds=1, steps=2, seed=1)
    assert (
        "litgpt (the environment of litgpt is missing. Run: python -m bench peers --only litgpt)"
        in found.facts["not measured"]
    )


def test_peers_get_the_batches_of_our_trainer():
    case = SMALL["gpt"]
    trainer, tokenizer = case.trainer(None, 1)
    given = case.given(trainer, tokenizer, 3)
    assert [batch["tokens"] for batch in given["batches"]] == [trainer.advance().tokens for _ in range(3)]
    assert "source" not in given["batches"][0]
    assert given["sizes"]["vocabulary"] == 259


class Reader:
    """A contestant that says how many tokens it read."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def train(self, steps: int) -> Pass:
        return Pass(1.0, 1.0, self.tokens, ["1.0"] * steps, 1)


def test_speeds_on_other_batches_are_refused():
    contestants = {"regard": Reader(7), "same": Reader(7)}
    assert training._in_turns(contestants, 1, 2)[0].speeds["same"] == (7.0,)
    with pytest.raises(RunFailed, match="same batches"):
        training._in_turns({**contestants, "other": Reader(8)}, 1, 2)


def test_a_loss_that_does_not_fall_is_refused():
    falls = [Pass(1.0, 4.0, 7, [f"{loss}"], 2**20) for loss in (3.0, 2.0)]
    assert training._remark(falls, 2) == "2.00 s of processor time per step, 1 MiB, loss 3.00 to 2.00"
    with pytest.raises(RunFailed, match="did not fall"):
        training._remark(falls[::-1], 2)


def test_the_plain_gpt_says_what_our_network_says():
    case = replace(SMALL["gpt"], depth=2)
    trainer, tokenizer = case.trainer(None, 1)
    given = case.given(trainer, tokenizer, 1)
    build = LEARNERS["plain"][1]
    assert build is not None
    model, loss = build(Sizes(**given["sizes"]))
    weights, theirs = dict(trainer.network.named_parameters()), dict(model.named_parameters())
    assert sum(one.numel() for one in weights.values()) == sum(one.numel() for one in theirs.values())
    names = {f"norm.{ending}": f"decoder.final_norm.{ending}" for ending in ("weight", "bias")}
    names |= {"tokens.weight": "embed.table.weight", "positions.weight": "embed.position.weight"}
    for number in range(2):
        for ending in ("weight", "bias"):
            for mine, other in {
                "norms.0": "self.norm",
                "query_key_value": "self.sublayer.query_key_value",
                "out": "self.sublayer.out",
                "norms.1": "feedforward.norm",
                "up": "feedforward.sublayer.up",
                "down": "feedforward.sublayer.down",
            }.items():
                names[f"blocks.{number}.{mine}.{ending}"] = f"decoder.layers.{number}.{other}.{ending}"
    assert names.keys() == theirs.keys()
    with torch.no_grad():
        for mine, other in names.items():
            theirs[mine].copy_(weights[other])
    batch = trainer.samples.batch(trainer.batches.next_step(trainer.cursor)[0])
    ours = trainer.network.eval().loss(batch.inputs, batch.targets) / batch.tokens
    assert loss(given["batches"][0]).item() == pytest.approx(ours.item(), rel=1e-5)


def test_an_unknown_peer_is_refused(tmp_path):
    with pytest.raises(InputError, match="no peer 'nobody'"):
        peers.install("nobody", tmp_path)
