"""Why models of reformer-pytorch are not read: ours hold none of them exactly, and the message says what differs.

Its state dicts also lack the settings: the number of heads, the length of a bucket, the hashing rounds, causality.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from regard.errors import InputError

_ATTENTION = r"layers\.blocks\.\d+\.f\.net\.(fn\.)?"
# What a name of a tensor says of the model, that no model of ours has.
_DIFFERENCES = (
    (rf"{_ATTENTION}to_out\.bias$", "a bias of attention's output map (to_out.bias)"),
    (r"layer_pos_emb\.inv_freq$", "rotary positions between hashing and attention (layer_pos_emb)"),
    (r"pos_emb\.weights\.\d+$", "axial positions that are added, not concatenated (axial_position_emb)"),
    (rf"{_ATTENTION}mem_kv$", "trained keys and values that are no text's (num_mem_kv)"),
    (r"\.net\.norm\.g$", "normalization by length only (use_scale_norm)"),
    (r"\.net\.g$", "residuals behind a trained factor (use_rezero)"),
    (r"\.net\.fn\.(keys|values\.weight|to_queries\.weight)$", "product keys (pkm_layers)"),
)
_ALWAYS = "LSH buckets whose number is the text's length / bucket_size, of hashes drawn anew for every text"


def refuse_reformer_pytorch(names: Iterable[str], checkpoint: Path) -> None:
    """Raise an error that names what differs if the tensors are those of a Reformer or a ReformerLM."""
    names = list(names)
    if not any(re.search(rf"{_ATTENTION}toqk\.weight$", name) for name in names):
        return
    found = [what for pattern, what in _DIFFERENCES if any(re.search(pattern, name) for name in names)]
    raise InputError(f"{checkpoint} is a model of reformer-pytorch, which regard cannot hold exactly: it has "
                     f"{'; '.join([*found, _ALWAYS])}. It stays with its toolkit.")  # fmt: skip
