"""Training recurrent translators: our Trainer against Joey NMT's models of the same size."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from joeynmt.batch import Batch as JoeyBatch
from joeynmt.model import Model as JoeyModel
from joeynmt.model import build_model
from torch import Tensor

from bench.harness import Result
from bench.text import Bitext
from bench.train import PlainLoop, advancing, in_turns, learner
from regard.data.batching import IGNORE_INDEX, Batch
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import RunFailed
from regard.models import zoo
from regard.models.model import Model
from regard.training.settings import Training

logging.getLogger("joeynmt.model").setLevel(logging.WARNING)  # it tells whoever listens that it builds a model


@dataclass(frozen=True)
class Pair:
    """One of our translators, Joey NMT's settings for its like, and in what they differ."""

    name: str
    ours: Model
    theirs: dict[str, Any]
    note: str


def pairs(width: int, depth: int, dropout: float) -> tuple[Pair, ...]:
    """What is compared. Joey NMT's encoder is always bidirectional, so ours is too."""
    return (
        Pair(
            "luong",
            zoo.luong(width, depth, direction="bidirectional", dropout=dropout),
            settings_of("lstm", "luong", width, depth, dropout),
            "LSTM, q·Wk, input feeding; our decoder projects the initial state of each cell separately, theirs with "
            "one matrix for all",
        ),
        Pair(
            "bahdanau",
            zoo.bahdanau(width, depth, dropout=dropout),
            settings_of("gru", "bahdanau", width, depth, dropout),
            "GRU, v·tanh(Wq + Uk); ours attends before the cell and has a maxout output layer, as in the paper; theirs "
            "attends after the cell, outputs tanh(W[h; c]) and feeds it to the next step; initial states as above",
        ),
    )


def settings_of(cell: str, attention: str, width: int, depth: int, dropout: float) -> dict[str, Any]:
    """The [model] part of a Joey NMT configuration; its encoder has this width over both directions."""
    stack = {
        "type": "recurrent",
        "rnn_type": cell,
        "embeddings": {"embedding_dim": width, "scale": True, "dropout": dropout},
        "num_layers": depth,
        "dropout": dropout,
    }
    return {
        "encoder": {**stack, "hidden_size": width // 2, "bidirectional": True},
        "decoder": {
            **stack,
            "hidden_size": width,
            "hidden_dropout": dropout,
            "attention": attention,
            "init_hidden": "bridge",
            "input_feeding": True,
        },
    }


class Words:
    """A vocabulary for Joey NMT's models with our token ids; its own fixes those of <pad> and the like."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.count = tokenizer.vocabulary
        self.pad_index, self.bos_index, self.eos_index = tokenizer.pad, tokenizer.bos, tokenizer.eos
        self.unk_index, self.sep_index = tokenizer.unk, None
        self.specials: list[str] = []
        self.lang_tags: list[str] = []

    def __len__(self) -> int:
        return self.count


class JoeyLoop(PlainLoop):
    """A step as Joey NMT's trainer takes it, with our optimizer: rows sorted by the source's length, its own loss."""

    model: JoeyModel

    def loss(self, batch: Batch) -> Tensor:
        """The mean over a batch's targets."""
        given = self.given(batch)
        summed = self.model(return_type="loss", **vars(given))[0]
        return given.normalize(summed, "tokens")

    def given(self, batch: Batch) -> JoeyBatch:
        """Our batch as one of theirs: the same numbers in the same padded rows, longest source first."""
        pad, sources = self.model.pad_index, batch.inputs["source_ids"]
        targets = batch.targets.masked_fill(batch.targets == IGNORE_INDEX, pad)
        given = JoeyBatch(
            src=sources,
            src_length=(sources != pad).sum(1),
            src_prompt_mask=None,
            trg=torch.cat([batch.inputs["ids"][:, :1], targets], dim=1),
            trg_prompt_mask=None,
            indices=torch.arange(len(sources)),
            device=sources.device,
            pad_index=pad,
            eos_index=self.model.eos_index,
        )
        given.sort_by_src_length()
        return given


def as_joey(settings: dict[str, Any], tokenizer: Tokenizer, smoothing: float) -> JoeyModel:
    """Joey NMT's model of these settings, with its loss."""
    words = Words(tokenizer)
    model = build_model(settings, words, words)
    model.loss_function = ("crossentropy", smoothing)
    return model


@dataclass(frozen=True)
class Learning:
    """The speeds, and a remark on each contestant: its parameters and its loss."""

    result: Result
    remarks: dict[str, str]


def measure(text: Bitext, pair: Pair, settings: Training, *, rounds: int, steps: int) -> Learning:
    """Tokens per second, padding not counted, in blocks of `steps` optimizer steps on the same batches."""
    trainer = learner(text, pair.ours, settings)
    peer = JoeyLoop(as_joey(pair.theirs, text.tokenizer, settings.label_smoothing), trainer)
    result, losses = in_turns({"regard": advancing(trainer), "Joey NMT": peer.advance}, rounds=rounds, steps=steps)
    remarks = {}
    for name, model in (("regard", trainer.network), ("Joey NMT", peer.model)):
        first, last = course(f"{name}'s {pair.name}", losses[name], steps)
        count = sum(weight.numel() for weight in model.parameters())
        remarks[name] = f"{count / 1e6:.2f} M parameters, loss {first:.2f} to {last:.2f}"
    return Learning(result, remarks)


def course(name: str, losses: Sequence[float], steps: int) -> tuple[float, float]:
    """The mean loss of the first steps and of the last, which must be lower: a broken model may be fast."""
    first, last = mean(losses[:steps]), mean(losses[-steps:])
    if last >= first:
        raise RunFailed(f"the loss of {name} did not fall ({first:.3f} to {last:.3f}). Take more steps (--steps).")
    return first, last
