"""Tiny models of fairseq itself: trained, saved as fairseq saves, and their answers by fairseq's own search."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import torch

from tests.store.orphans.toy import SOURCE, TARGET, lines, padded, train

_SIZES = {
    "transformer": {
        "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24, "encoder_layers": 1, "decoder_layers": 2,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "dropout": 0.0,
    },
    "lstm": {
        "encoder_embed_dim": 16, "encoder_hidden_size": 8, "encoder_bidirectional": True, "encoder_layers": 2,
        "decoder_embed_dim": 16, "decoder_hidden_size": 16, "decoder_out_embed_dim": 16, "decoder_layers": 2,
        "dropout": 0.0, "criterion": "cross_entropy",
    },
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer", {}),
    "pre_norm": ("transformer", {"encoder_normalize_before": True, "decoder_normalize_before": True,
                                 "encoder_learned_pos": True, "decoder_learned_pos": True, "activation_fn": "gelu",
                                 "layernorm_embedding": True, "no_scale_embedding": True,
                                 "max_source_positions": 30, "max_target_positions": 30,
                                 "share_decoder_input_output_embed": True}),
    "shared": ("transformer", {"share_all_embeddings": True}),
    "lstm": ("lstm", {}),
    "lstm_tied": ("lstm", {"encoder_bidirectional": False, "encoder_hidden_size": 16, "encoder_layers": 1,
                           "decoder_layers": 1, "share_decoder_input_output_embed": True}),
}  # fmt: skip


def make(name: str, folder: Path, *, steps: int = 250, seed: int = 1) -> dict[str, list[str]]:
    """Train a model, write its folder, and return lines with fairseq's answers, greedy and by a beam of 3."""
    from fairseq.data import Dictionary
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
    from fairseq.tasks.translation import TranslationConfig, TranslationTask
    from omegaconf import OmegaConf

    torch.manual_seed(seed)
    arch, changes = MODELS[name]
    joint = bool(changes.get("share_all_embeddings"))
    dictionaries = []
    for words in ([*SOURCE, *TARGET],) * 2 if joint else (SOURCE, TARGET):
        dictionary = Dictionary()
        for word in words:
            dictionary.add_symbol(word, 5)
        dictionaries.append(dictionary)
    args = Namespace(arch=arch, task="translation", source_lang="xx", target_lang="yy", data=str(folder),
                     **{**_SIZES[arch], **changes})  # fmt: skip
    ARCH_CONFIG_REGISTRY[arch](args)
    for key, value in {"max_source_positions": 1024, "max_target_positions": 1024}.items():
        setattr(args, key, getattr(args, key, value))
    task = TranslationTask(TranslationConfig(source_lang="xx", target_lang="yy"), *dictionaries)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    source, target = dictionaries
    pad, eos = target.pad(), target.eos()

    def forward(batch: list[tuple[list[str], list[str]]]) -> tuple[torch.Tensor, torch.Tensor]:
        batch = sorted(batch, key=lambda pair: -len(pair[0]))
        sources = [[source.index(word) for word in one] + [eos] for one, _ in batch]
        targets = [[target.index(word) for word in one] + [eos] for _, one in batch]
        longest = max(map(len, sources))
        left = torch.tensor([[pad] * (longest - len(row)) + row for row in sources])
        before = padded([[eos, *row[:-1]] for row in targets], pad)
        logits, _ = model(left, torch.tensor([len(row) for row in sources]), before)
        return logits, padded(targets, pad)

    train(model, forward, steps, pad=pad)
    folder.mkdir(parents=True)
    for language, dictionary in (("xx", source), ("yy", target)):
        dictionary.save(str(folder / f"dict.{language}.txt"))
    config = OmegaConf.to_container(convert_namespace_to_omegaconf(args), resolve=True, enum_to_str=True)
    old = arch == "lstm"  # as versions before 0.10 wrote them
    state = {"args": args if old else None, "cfg": None if old else config, "model": model.state_dict(),
             "optimizer_history": [{"num_updates": steps}], "task_state": {}, "extra_state": {"epoch": 1},
             "last_optimizer_state": None}  # fmt: skip
    torch.save(state, folder / "checkpoint_best.pt")
    texts = lines(12)
    return {"lines": texts, "greedy": _answers(model, source, target, texts, 1),
            "beam": _answers(model, source, target, texts, 3)}  # fmt: skip


def _answers(model: Any, source: Any, target: Any, texts: list[str], beam: int) -> list[str]:
    from fairseq.sequence_generator import SequenceGenerator

    search = SequenceGenerator([model], target, beam_size=beam, max_len_a=0, max_len_b=20)
    found = []
    for text in texts:
        ids = source.encode_line(text, add_if_not_exist=False).long()[None]
        sample = {"net_input": {"src_tokens": ids, "src_lengths": torch.tensor([ids.shape[1]])}}
        found.append(target.string(search(sample)[0][0]["tokens"]))
    return found
