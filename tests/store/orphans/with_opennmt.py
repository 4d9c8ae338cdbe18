"""Tiny models of OpenNMT-py itself: trained, saved as it saves, and their answers by `onmt_translate`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tests.store.orphans.toy import SOURCE, TARGET, lines, padded, train

_SMALL = ["-dropout", "0", "-attention_dropout", "0", "-hidden_size", "16", "-word_vec_size", "16", "-layers", "1"]
_TRANSFORMER = ["-encoder_type", "transformer", "-decoder_type", "transformer", "-heads", "2", "-transformer_ff", "24",
                "-position_encoding"]  # fmt: skip
MODELS = {
    "transformer": [*_TRANSFORMER],
    "modern": [*_TRANSFORMER, "-position_encoding_type", "SinusoidalConcat", "-layer_norm", "rms", "-add_qkvbias",
               "-pos_ffn_activation_fn", "silu", "-share_decoder_embeddings"],
    "brnn": ["-encoder_type", "brnn", "-decoder_type", "rnn", "-rnn_type", "LSTM", "-layers", "2"],
    "gru": ["-encoder_type", "rnn", "-decoder_type", "rnn", "-rnn_type", "GRU", "-global_attention", "dot"],
    "no_feed": ["-encoder_type", "brnn", "-decoder_type", "rnn", "-rnn_type", "LSTM", "-input_feed", "0"],
}  # fmt: skip


def make(name: str, folder: Path, *, steps: int = 100, seed: int = 1) -> dict[str, list[str]]:
    """Train a model, write its checkpoint, and return lines with OpenNMT-py's answers, greedy and by a beam of 3."""
    import pyonmttok
    from onmt.inputters.inputter import vocabs_to_dict
    from onmt.model_builder import build_base_model
    from onmt.opts import train_opts
    from onmt.utils.parse import ArgumentParser

    torch.manual_seed(seed)
    parser = ArgumentParser()
    train_opts(parser)
    options, _ = parser.parse_known_args(
        ["-data", "{}", "-src_vocab", "none", "-tgt_vocab", "none", *_SMALL, *MODELS[name]]
    )
    ArgumentParser.update_model_opts(options)
    options.model_task = "seq2seq"
    special = ["<unk>", "<blank>", "<s>", "</s>"]
    vocabs: dict[str, Any] = {
        side: pyonmttok.build_vocab_from_tokens(words, special_tokens=special)
        for side, words in (("src", SOURCE), ("tgt", TARGET))
    }
    for vocabulary in list(vocabs.values()):
        vocabulary.default_id = vocabulary["<unk>"]
    vocabs |= {"data_task": "seq2seq", "decoder_start_token": "<s>"}
    model = build_base_model(options, vocabs)
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.3, 0.3)

    def forward(batch: list[tuple[list[str], list[str]]]) -> tuple[torch.Tensor, torch.Tensor]:
        batch = sorted(batch, key=lambda pair: -len(pair[0]))
        sources = [[vocabs["src"][word] for word in one] for one, _ in batch]
        targets = [[2, *(vocabs["tgt"][word] for word in one), 3] for _, one in batch]
        ids = padded(targets, 1)
        states, _ = model(padded(sources, 1)[..., None], ids[..., None], torch.tensor(list(map(len, sources))))
        return model.generator(states), ids[:, 1:]

    train(model, forward, steps, pad=1)
    folder.mkdir(parents=True)
    state = {key: value for key, value in model.state_dict().items() if "generator" not in key}
    path = folder / f"toy_step_{steps}.pt"
    torch.save({"model": state, "generator": model.generator.state_dict(), "vocab": vocabs_to_dict(vocabs),
                "opt": options, "optim": {}}, path)  # fmt: skip
    texts = lines(12)
    return {"lines": texts, "greedy": _answers(path, texts, 1), "beam": _answers(path, texts, 3)}


def _answers(path: Path, texts: list[str], beam: int) -> list[str]:
    source, output = path.with_name("source.txt"), path.with_name("output.txt")
    source.write_text("".join(f"{text}\n" for text in texts))
    command = [sys.executable, "-m", "onmt.bin.translate", "-model", path, "-src", source, "-output", output,
               "-beam_size", beam, "-max_length", 20, "-batch_size", 1, "-length_penalty", "avg"]  # fmt: skip
    # OpenNMT-py reads its own file, which holds a Namespace, with the default of torch before version 2.6.
    environment = {**os.environ, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    subprocess.run([str(part) for part in command], check=True, capture_output=True, env=environment)
    found = output.read_text().splitlines()
    source.unlink()
    output.unlink()
    return found
