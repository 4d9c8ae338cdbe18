"""Conversion of a model to CTranslate2."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.engines.describe import converted_of, unfinished_folder, write_ours
from regard.engines.folder import OURS, PRECISIONS, Precision, Proof, weights_digest
from regard.engines.prove import Sample as Sample
from regard.engines.prove import write_proof
from regard.engines.spec import max_positions, refusal, spec_of
from regard.errors import InputError
from regard.schema import to_dict
from regard.store.huggingface.folder import can_be_published
from regard.store.loading import Loaded


def convert_to_ctranslate2(
    loaded: Loaded, source: Path, target: Path, precision: Precision, sample: Sample
) -> Proof:  # fmt: skip
    """Write a model as a CTranslate2 folder with its tokenizers, its default options and the proof."""
    if precision not in PRECISIONS:
        raise InputError(f'no precision is called "{precision}" (--precision). Use {" or ".join(PRECISIONS)}.')
    with unfinished_folder(target) as unfinished:
        _spec(loaded, precision).save(str(unfinished))
        write_ours(unfinished, loaded)
        return write_proof(loaded, unfinished, weights_digest(source), precision, sample)


def _spec(loaded: Loaded, precision: Precision) -> Any:
    """CTranslate2's specification, complete and quantized. Tokens are named by their ids: text is our tokenizers'."""
    network = loaded.network
    sizes = network.source_vocabulary or network.vocabulary, network.vocabulary
    names = [str(token) for token in range(max(sizes))]
    try:
        spec = spec_of(network, (names[: sizes[0]], names[: sizes[1]]))
    except InputError as error:
        error.args = (f"{error} {_other_targets(loaded)}",)
        raise
    special = loaded.tokenizers[1] or loaded.tokenizers[0]
    if network.shape != "encoder":
        if not special.has_eos:
            raise refusal("a tokenizer without an end token")
        spec.config.bos_token, spec.config.eos_token = str(special.bos), str(special.eos)
    if network.shape == "encoder-decoder":
        spec.config.decoder_start_token = str(special.bos)
    spec.config.unk_token = names[special.eos if special.has_eos else 0]  # never looked up: rows are our tokenizers'
    spec.config.add_attribute(OURS, asdict(converted_of(loaded, precision, max_positions(network.description))))
    both = [tokenizer and tokenizer.special_tokens for tokenizer in loaded.tokenizers]
    if any(both):
        spec.config.add_attribute("special_tokens", [to_dict(special) if special else None for special in both])
    spec.validate()
    spec.optimize(quantization=None if precision == "float32" else precision)
    return spec


def _other_targets(loaded: Loaded) -> str:
    """What else can hold a model that CTranslate2 cannot."""
    return "It can be converted with --to huggingface." if can_be_published(loaded) else ""
