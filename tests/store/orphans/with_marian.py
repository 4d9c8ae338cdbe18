"""A tiny model in Marian's layout, and its answers by CTranslate2, whose own converter reads that layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.store.orphans.toy import SOURCE, TARGET, lines

_WIDTH, _INNER = 16, 24
MODELS: dict[str, dict[str, Any]] = {
    "post_norm": {"transformer-preprocess": "", "transformer-postprocess": "dan", "transformer-postprocess-top": ""},
    "pre_norm": {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n",
                 "transformer-ffn-activation": "relu"},
}  # fmt: skip


def make(name: str, folder: Path, *, seed: int = 1) -> dict[str, list[str]]:
    """Write a folder with random weights, and return lines with CTranslate2's greedy answers."""
    settings = {
        "type": "transformer", "dim-emb": _WIDTH, "transformer-heads": 2, "transformer-dim-ffn": _INNER, "enc-depth": 1,
        "dec-depth": 2, "transformer-ffn-activation": "swish", "transformer-ffn-depth": 2,
        "transformer-decoder-autoreg": "self-attention", "transformer-no-projection": False,
        "transformer-postprocess-emb": "d", "transformer-guided-alignment-layer": "last", **MODELS[name],
    }  # fmt: skip
    draw, tokens = np.random.default_rng(seed), ["</s>", "<unk>", *SOURCE, *TARGET]
    arrays: dict[str, Any] = {}

    def linear(scope: str, letter: str, inputs: int, outputs: int) -> None:
        arrays[f"{scope}_W{letter}"] = draw.normal(0, 0.5, (inputs, outputs))
        arrays[f"{scope}_b{letter}"] = draw.normal(0, 0.3, (1, outputs))

    def norm(scope: str) -> None:
        arrays[f"{scope}_ln_scale"] = draw.normal(1, 0.2, (1, _WIDTH))
        arrays[f"{scope}_ln_bias"] = draw.normal(0, 0.2, (1, _WIDTH))

    arrays["Wemb"] = draw.normal(0, 0.1, (len(tokens), _WIDTH))
    arrays["decoder_ff_logit_out_b"] = draw.normal(0, 0.5, (1, len(tokens)))
    arrays["decoder_ff_logit_out_b"][0, 0] -= 0.3  # so that sentences end
    for side, depth, attentions in (("encoder", 1, ("self",)), ("decoder", 2, ("self", "context"))):
        for layer in range(1, depth + 1):
            for attention in attentions:
                for letter in "qkvo":
                    linear(f"{side}_l{layer}_{attention}", letter, _WIDTH, _WIDTH)
                norm(f"{side}_l{layer}_{attention}_Wo")
            linear(f"{side}_l{layer}_ffn", "1", _WIDTH, _INNER)
            linear(f"{side}_l{layer}_ffn", "2", _INNER, _WIDTH)
            norm(f"{side}_l{layer}_ffn_ffn")
        if settings["transformer-postprocess-top"] == "n":
            norm(f"{side}_top")
    folder.mkdir(parents=True)
    text = np.frombuffer(yaml.safe_dump(settings).encode() + b"\0", dtype=np.int8)
    floats = {key: array.astype(np.float32) for key, array in arrays.items()}
    np.savez_compressed(folder / "model.npz", **{"special:model.yml": text, **floats})
    (folder / "vocab.yml").write_text(yaml.safe_dump({token: number for number, token in enumerate(tokens)}))
    texts = lines(12)
    return {"lines": texts, "greedy": _answers(folder, texts)}


def _answers(folder: Path, texts: list[str]) -> list[str]:
    import ctranslate2
    from ctranslate2.converters import MarianConverter

    vocabulary = str(folder / "vocab.yml")
    converted = folder.with_name(f"{folder.name}-ctranslate2")
    MarianConverter(str(folder / "model.npz"), [vocabulary, vocabulary]).convert(str(converted), force=True)
    engine = ctranslate2.Translator(str(converted))
    found = engine.translate_batch([text.split() for text in texts], beam_size=1, max_decoding_length=20,
                                   min_decoding_length=0)  # fmt: skip
    return [" ".join(one.hypotheses[0]) for one in found]
