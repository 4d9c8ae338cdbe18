"""Tiny models of Joey NMT itself: trained, saved as it saves, and their answers by its own search."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml

from tests.store.orphans.toy import SOURCE, TARGET, lines, padded, train


def _transformer(norm: str) -> dict[str, Any]:
    side = {"type": "transformer", "num_layers": 1, "num_heads": 2, "hidden_size": 16, "ff_size": 24, "dropout": 0.0,
            "layer_norm": norm, "embeddings": {"embedding_dim": 16, "scale": True, "dropout": 0.0}}  # fmt: skip
    return {"encoder": side, "decoder": dict(side), "tied_softmax": norm == "pre", "tied_embeddings": False}


def _recurrent(cell: str, attention: str, start: str, depth: int) -> dict[str, Any]:
    encoder = {"type": "recurrent", "rnn_type": cell, "num_layers": depth, "hidden_size": 8, "bidirectional": True,
               "dropout": 0.0, "embeddings": {"embedding_dim": 12, "scale": False, "dropout": 0.0}}  # fmt: skip
    decoder = {**encoder, "hidden_size": 16, "attention": attention, "init_hidden": start, "input_feeding": True,
               "hidden_dropout": 0.0}  # fmt: skip
    return {"encoder": encoder, "decoder": decoder}


MODELS = {
    "transformer": lambda: _transformer("pre"),
    "post_norm": lambda: _transformer("post"),
    "gru": lambda: _recurrent("gru", "bahdanau", "bridge", 2),
    "lstm": lambda: _recurrent("lstm", "luong", "bridge", 1),
    "zero": lambda: _recurrent("gru", "luong", "zero", 1),
}


def make(name: str, folder: Path, *, steps: int = 100, seed: int = 1) -> dict[str, list[str]]:
    """Train a model, write its folder, and return lines with Joey NMT's answers, greedy and by a beam of 3."""
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    torch.manual_seed(seed)
    special = {"unk_id": 0, "unk_token": "<unk>", "pad_id": 1, "pad_token": "<pad>", "bos_id": 2, "bos_token": "<s>",
               "eos_id": 3, "eos_token": "</s>", "sep_id": None, "sep_token": None, "lang_tags": []}  # fmt: skip
    source, target = (Vocabulary(list(words), SimpleNamespace(**special)) for words in (SOURCE, TARGET))
    config = MODELS[name]()
    model = build_model(config, source, target)

    def forward(batch: list[tuple[list[str], list[str]]]) -> tuple[torch.Tensor, torch.Tensor]:
        batch = sorted(batch, key=lambda pair: -len(pair[0]))
        sources = [[source.lookup(word) for word in one] + [3] for one, _ in batch]
        targets = [[target.lookup(word) for word in one] + [3] for _, one in batch]
        ids, before = padded(sources, 1), padded([[2, *row[:-1]] for row in targets], 1)
        logits, *_ = model._encode_decode(
            src=ids, trg_input=before, src_mask=(ids != 1).unsqueeze(1),
            src_length=torch.tensor(list(map(len, sources))), trg_mask=(before != 1).unsqueeze(1),
        )  # fmt: skip
        return logits, padded(targets, 1)

    train(model, forward, steps, pad=1)
    folder.mkdir(parents=True)
    for vocabulary, side in ((source, "src"), (target, "trg")):
        vocabulary.to_file(folder / f"{side}_vocab.txt")
    data = {side: {"lang": side, "level": "word", "lowercase": False, "normalize": False} for side in ("src", "trg")}
    whole = {"name": "toy", "joeynmt_version": "2.3.0", "data": data, "testing": {"beam_size": 3, "beam_alpha": 1.0},
             "training": {"epochs": 1}, "model": config}  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
    torch.save({"model_state": model.state_dict(), "optimizer_state": {}, "stats_state": {"steps": steps}},
               folder / "best.ckpt")  # fmt: skip
    texts = lines(12)
    return {"lines": texts, "greedy": _answers(model, source, target, texts, 1),
            "beam": _answers(model, source, target, texts, 3)}  # fmt: skip


def _answers(model: Any, source: Any, target: Any, texts: list[str], beam: int) -> list[str]:
    from joeynmt.search import beam_search, greedy

    found = []
    for text in texts:
        ids = torch.tensor([[source.lookup(word) for word in text.split()] + [3]])
        mask = (ids != 1).unsqueeze(1)
        with torch.no_grad():
            output, hidden, _, _ = model(return_type="encode", src=ids, src_length=torch.tensor([ids.shape[1]]),
                                         src_mask=mask)  # fmt: skip
            more = {
                "src_mask": mask, "max_output_length": 20, "model": model, "encoder_output": output,
                "encoder_hidden": hidden, "generate_unk": True,
            }  # fmt: skip
            rows = greedy(**more)[0] if beam == 1 else beam_search(beam_size=beam, alpha=1.0, **more)[0]
        words = target.arrays_to_sentences(rows, cut_at_eos=True)[0]
        found.append(" ".join(word for word in words if word not in ("<s>", "</s>", "<pad>")))
    return found
