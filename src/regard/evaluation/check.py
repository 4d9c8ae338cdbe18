"""Prove the laws on a loaded model: with tokens drawn at random, and with texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import Tensor

from regard.api import LoadedModel
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.inputs import as_read
from regard.errors import DamagedFile, InputError
from regard.evaluation.laws import LAWS, LEAST, Probe, gap, steady
from regard.show.lsh import hashing_layers, magnified
from regard.store.folder import read_folder, unique_tensors, write_description, write_weights

TEXTS = (
    "A small dog runs over the field, and two more follow it.",
    "Am 3. Mai 2024 hat es in Köln geregnet.",
    "1 + 2 = 3",
    "犬が走る。",
    "a",
)
"""What is read when nobody gives a text."""

_LINES = 32  # of a person's own text
_ROWS = 4  # in a probe
_LONGEST = 80  # tokens of a row, enough for memory to grow twice
_SHORTEST = 12  # slots of a row, however short its text

Verdict = Literal["holds", "BROKEN", "drifts", "skipped", "noted"]


@dataclass(frozen=True)
class Finding:
    """What was found about a law."""

    law: str
    verdict: Verdict
    detail: str
    off: float | None = None
    allowed: float | None = None

    def text(self) -> str:
        """One line for a terminal."""
        return f"{self.verdict:<7}  {self.law:<{_WIDEST}}  {self.detail}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; what is not a finite number is null, as JSON has none."""
        plain = asdict(self)
        return {**plain, "off": self.off if self.off is not None and math.isfinite(self.off) else None}


_WIDEST = max(len(law.name) for law in LAWS)


def check(model: LoadedModel, texts: Sequence[str] | None = None, *, seed: int = 0) -> Iterator[Finding]:
    """Prove each law, one after the other; the first lines of `texts` that hold something are read."""
    texts = TEXTS if texts is None else [text for text in texts if text.strip()][:_LINES]
    if not texts:
        raise InputError("no line holds a text (regard check). Name a file that has some.")
    probes = [drawn(model, seed), *spelled(model, texts)]
    for law in LAWS:
        lacking = law.lacks(model.description)
        if lacking is not None:
            yield Finding(law.name, "skipped", f"({lacking})")
            continue
        with torch.inference_mode():
            found = [off for probe in probes if (off := law.off(probe)) is not None]
        if found:
            finding = judged(law.name, max(found), law.allowed, law.counts)
            yield drifting(finding) if law.steady and not steady(model.description) else finding
        else:
            yield Finding(law.name, "skipped", "(no layer says what it attends to)")
    yield judged("saving and loading changes nothing", saving(model, probes), 0.0)
    yield spelling(model.tokenizer, texts)
    yield from hashing(model, probes[1:])


def judged(law: str, off: float, allowed: float, counts: str = "largest difference") -> Finding:
    """Whether a law holds that is off by so much."""
    shown = f"{off:.1e}" if 0 < off < 1 else f"{off:g}"
    detail = f"{counts} {shown} (allowed {f'{allowed:.0e}' if allowed else '0'})"
    return Finding(law, "holds" if off <= allowed else "BROKEN", detail, off, allowed)


def drifting(finding: Finding) -> Finding:
    """What cannot hold in a model whose chunks move with all that is read: how far it is off is a fact to know."""
    if finding.verdict != "BROKEN":
        return finding
    return replace(finding, verdict="drifts", detail=f"{finding.detail}; published chunks move with what is read")


def drawn(model: LoadedModel, seed: int) -> Probe:
    """Three rows of tokens drawn at random, of unequal length."""
    network, longest = model.network, _longest(model)
    draw = torch.Generator().manual_seed(seed)
    sizes = {"": (network.vocabulary, longest)}
    if network.encoder is not None and network.decoder is not None:
        sizes["source_"] = (network.source_vocabulary or network.vocabulary, max(LEAST, longest // 2))
    inputs = {}
    for side, (vocabulary, length) in sizes.items():
        lengths = torch.tensor([length, length // 4, length // 2])
        inputs[f"{side}ids"] = torch.randint(vocabulary, (3, length), generator=draw)
        inputs[f"{side}padding"] = torch.arange(length) < lengths[:, None]
    return _probe(model, inputs)


def spelled(model: LoadedModel, texts: Sequence[str]) -> Iterator[Probe]:
    """Texts as rows; where there is a source, a text stands for its own translation, since no law asks for quality."""
    source, target = model.tokenizer, model.target_tokenizer
    both = model.network.encoder is not None and model.network.decoder is not None
    for start in range(0, len(texts), _ROWS):
        some = texts[start : start + _ROWS]
        inputs = _side(model, "", [[target.begin, *ids] for ids in target.encode_batch(some)])
        if both:
            inputs |= _side(model, "source_", [[*ids, source.end] for ids in source.encode_batch(some)])
        yield _probe(model, inputs)


def _side(model: LoadedModel, side: str, rows: list[list[int]]) -> dict[str, Tensor]:
    """Rows as ids and padding, cut to what the model reads at once."""
    width = min(_longest(model), max(_SHORTEST, *map(len, rows)))
    ids = torch.tensor([[*row, *[0] * width][:width] for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return {f"{side}ids": ids, f"{side}padding": torch.arange(width) < lengths[:, None]}


def _probe(model: LoadedModel, inputs: dict[str, Tensor]) -> Probe:
    read = {**inputs, "ids": as_read(model.network, model.tokenizer, inputs["ids"])}
    moved = {name: tensor.to(model.device) for name, tensor in read.items()}
    return Probe(model.network, moved, model.target_tokenizer.end)


def _longest(model: LoadedModel) -> int:
    longest = model.network.max_positions
    if longest is not None and longest < LEAST:
        raise InputError(f"this model reads {longest} tokens at once (regard check). Give one that reads {LEAST}.")
    return _LONGEST if longest is None else min(longest, _LONGEST)


def saving(model: LoadedModel, probes: Sequence[Probe]) -> float:
    """Write the model into a folder of its own, load it, and compare weights, tokenizers and logits."""
    network, target = model.network, model.target_tokenizer
    tokenizers = model.tokenizer, None if target is model.tokenizer else target
    with TemporaryDirectory(prefix="regard-check-") as name:
        folder = Path(name)
        task = str(model.config.get("task", ""))
        write_description(folder, network, tokenizers, task=task, generation=model.generation)
        write_weights(folder, unique_tensors(network))
        try:
            loaded = read_folder(folder, model.device)
        except DamagedFile:
            return math.inf
    again = LoadedModel(loaded)
    pairs = [(again.tokenizer, model.tokenizer), (again.target_tokenizer, target)]
    same = all(one.digest == other.digest for one, other in pairs)
    if not same or again.description != model.description or again.generation != model.generation:
        return math.inf
    with torch.inference_mode():
        return max(gap(_probe(again, dict(probe.inputs)).read(), probe.read()) for probe in probes)


def spelling(tokenizer: Tokenizer, texts: Sequence[str]) -> Finding:
    """How many texts a tokenizer gives back; a fact to know, not a law, since some kinds lose spaces or signs."""
    changed = [text for text in texts if tokenizer.decode(tokenizer.encode(text)) != text]
    example = f"; not {changed[0][:30]!r}" if changed else ""
    detail = f"{len(texts) - len(changed)} of {len(texts)} texts{example}"
    return Finding("the tokenizer gives back the text it was given", "noted", detail)


def hashing(model: LoadedModel, probes: Sequence[Probe]) -> Iterator[Finding]:
    """What hashing catches of the keys that weigh most, a line a layer; a fact to know, if the model hashes at all."""
    if not hashing_layers(model.network):
        return
    texts = {}
    for side in probes[0].sides:
        rows = [probe.inputs[f"{side}ids"][probe.inputs[f"{side}padding"]] for probe in probes]
        texts[f"{side}ids"] = torch.cat(rows)[None, : model.network.max_positions]
    found = magnified(model.network, texts)
    for layer in found.layers:
        detail = f"of {found.top} keys' weight, by rounds: {layer.text()} ({found.tokens:,} tokens)"
        yield Finding(f"what hashing catches in {layer.layer}", "noted", detail)
