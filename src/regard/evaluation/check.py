"""Check a loaded model against the laws, with random tokens and with texts."""

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
from regard.data.tokenize.characters import text_characters
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.inputs import add_special_tokens, input_ids, reads_characters
from regard.errors import DamagedFile, InputError, RunFailed
from regard.evaluation.laws import LAWS, LEAST, Probe, gap
from regard.layers.contract import StatesFacts
from regard.progress import progress as show_progress
from regard.schema import classes_of
from regard.show.lsh import lsh_layers, measure_recall
from regard.store.folder import read_folder, unique_parameters, write_description, write_weights

TEXTS = (
    "A small dog runs over the field, and two more follow it.",
    "Am 3. Mai 2024 hat es in Köln geregnet.",
    "1 + 2 = 3",
    "犬が走る。",
    "a",
)
"""The texts that a check reads by default."""

_LINES = 32  # of the user's text
_ROWS = 4  # per batch
_MAX_LENGTH = 80  # tokens per row, enough for the KV cache to grow twice
_MIN_LENGTH = 12  # positions per row, however short the text

Verdict = Literal["holds", "BROKEN", "drifts", "skipped", "noted"]


@dataclass(frozen=True)
class LawResult:
    """The verdict on one law: by how much the model breaks it, and how much is allowed."""

    law: str
    verdict: Verdict
    detail: str
    error: float | None = None
    allowed: float | None = None

    @property
    def holds(self) -> bool:
        """False only if the law is broken."""
        return self.verdict != "BROKEN"

    def text(self) -> str:
        """One line for a terminal."""
        return f"{self.verdict:<7}  {self.law:<{_WIDEST}}  {self.detail}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; JSON has no infinity, so an infinite error is null."""
        finite = self.error is not None and math.isfinite(self.error)
        return {**asdict(self), "error": self.error if finite else None}


_WIDEST = max(len(law.name) for law in LAWS)


def check(
    model: LoadedModel, texts: Sequence[str] | None = None, *, seed: int = 0, progress: bool = True
) -> list[LawResult]:  # fmt: skip
    """Check a loaded model against every law; reads the first non-empty lines of `texts`. One result per law."""
    if not isinstance(model, LoadedModel):
        raise InputError("regard.check takes a loaded model, as in regard.check(regard.load(folder)).")
    found = []
    with show_progress(len(LAWS) + 2 if progress else 0, "checking the laws") as advance:
        for result in check_laws(model, texts, seed=seed):
            found.append(result)
            advance(1)
    return found


def check_laws(model: LoadedModel, texts: Sequence[str] | None = None, *, seed: int = 0) -> Iterator[LawResult]:
    """Check the laws one by one, so that each result can be printed at once."""
    texts = TEXTS if texts is None else [text for text in texts if text.strip()][:_LINES]
    if not texts:
        raise InputError("no line holds a text (regard check). Name a file that holds text.")
    probes = [random_probe(model, seed), *text_probes(model, texts)]
    # False if a part states that later tokens change earlier outputs: published LSH chunks.
    incremental = all(part.facts.incremental for part in model.description.parts if isinstance(part, StatesFacts))
    for law in LAWS:
        lacking = law.lacks(model.description)
        if lacking is not None:
            yield LawResult(law.name, "skipped", f"({lacking})")
            continue
        with torch.inference_mode():
            errors = [error for probe in probes if (error := law.error(probe)) is not None]
        if errors:
            result = verdict(law.name, max(errors), law.allowed, law.measures)
            yield drifting(result) if law.incremental and not incremental else result
        else:
            yield LawResult(law.name, "skipped", f"({law.nothing})")
    yield verdict("saving and loading changes nothing", saving(model, probes), 0.0)
    yield round_trip(model.tokenizer, texts)
    yield from lsh_recall(model, probes[1:])


def verdict(law: str, error: float, allowed: float, measures: str = "largest difference") -> LawResult:
    """Whether a law holds with this error."""
    shown = f"{error:.1e}" if 0 < error < 1 else f"{error:g}"
    detail = f"{measures} {shown} (allowed {f'{allowed:.0e}' if allowed else '0'})"
    return LawResult(law, "holds" if error <= allowed else "BROKEN", detail, error, allowed)


def drifting(result: LawResult) -> LawResult:
    """A law that published LSH chunks cannot keep: their error is reported as a fact."""
    if result.verdict != "BROKEN":
        return result
    return replace(result, verdict="drifts", detail=f"{result.detail}; published chunks move with later tokens")


def random_probe(model: LoadedModel, seed: int) -> Probe:
    """Three rows of random tokens, of unequal length."""
    network, longest = model.network, _max_length(model)
    draw = torch.Generator().manual_seed(seed)
    if reads_characters(network, model.tokenizer):
        rows = [_random_words(length, draw) for length in (longest, longest // 4, longest // 2)]
        return _probe(model, _spelled(model, rows))
    sizes = {"": (network.vocabulary, longest)}
    if network.shape == "encoder-decoder":
        sizes["source_"] = (network.source_vocabulary or network.vocabulary, max(LEAST, longest // 2))
    inputs = {}
    for side, (vocabulary, length) in sizes.items():
        lengths = torch.tensor([length, length // 4, length // 2])
        inputs[f"{side}ids"] = torch.randint(vocabulary, (3, length), generator=draw)
        inputs[f"{side}padding"] = torch.arange(length) < lengths[:, None]
    return _probe(model, inputs)


def text_probes(model: LoadedModel, texts: Sequence[str]) -> Iterator[Probe]:
    """Texts as rows; a translator gets each text as source and as target, since no law measures quality."""
    source, target = model.tokenizer, model.target_tokenizer
    for start in range(0, len(texts), _ROWS):
        some = texts[start : start + _ROWS]
        if reads_characters(model.network, source):
            yield _probe(model, _spelled(model, some))
            continue
        inputs = _side(model, "", [[target.bos, *ids] for ids in target.encode_batch(some)])
        if model.network.shape == "encoder-decoder":
            rows = [[*add_special_tokens(model.network, source, ids)] for ids in source.encode_batch(some)]
            inputs |= _side(model, "source_", rows)
        yield _probe(model, inputs)


def _random_words(count: int, draw: torch.Generator) -> str:
    letters = torch.randint(ord("a"), ord("z") + 1, (count, 5), generator=draw).tolist()
    return " ".join(bytes(word).decode() for word in letters)


def _spelled(model: LoadedModel, texts: Sequence[str]) -> dict[str, Tensor]:
    """The characters of texts, for a model without a vocabulary of words, and their padding."""
    words = [model.tokenizer.words(text)[: _max_length(model) - 2] for text in texts]
    ids, padding = text_characters(words, model.description.embed.characters)
    return {"ids": torch.from_numpy(ids), "padding": torch.from_numpy(padding)}


def _side(model: LoadedModel, side: str, rows: list[list[int]]) -> dict[str, Tensor]:
    """Rows as ids and padding, truncated to what the model can read."""
    width = min(_max_length(model), max(_MIN_LENGTH, *map(len, rows)))
    ids = torch.tensor([[*row, *[0] * width][:width] for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return {f"{side}ids": ids, f"{side}padding": torch.arange(width) < lengths[:, None]}


def _probe(model: LoadedModel, inputs: dict[str, Tensor]) -> Probe:
    read = {**inputs, "ids": input_ids(model.network, model.tokenizer, inputs["ids"])}
    moved = {name: tensor.to(model.device) for name, tensor in read.items()}
    return Probe(model.network, moved, model.target_tokenizer.eos)


def _max_length(model: LoadedModel) -> int:
    longest = model.network.max_positions
    if longest is not None and longest < LEAST:
        raise InputError(f"this model reads {longest} tokens at once (regard check). Give one that reads {LEAST}.")
    return _MAX_LENGTH if longest is None else min(longest, _MAX_LENGTH)


def saving(model: LoadedModel, probes: Sequence[Probe]) -> float:
    """Save the model to a temporary folder, load it, and compare weights, tokenizers and logits."""
    network, target = model.network, model.target_tokenizer
    tokenizers = model.tokenizer, None if target is model.tokenizer else target
    with TemporaryDirectory(prefix="regard-check-") as name:
        folder, task = Path(name), str(model.config.get("task", ""))
        write_description(folder, network, tokenizers, task=task, generation_config=model.generation_config)
        try:
            write_weights(folder, unique_parameters(network))
            loaded = read_folder(folder, model.device, parts=classes_of(model.description))
        except (DamagedFile, RunFailed):
            return math.inf
    again = LoadedModel(loaded)
    pairs = [(again.tokenizer, model.tokenizer), (again.target_tokenizer, target)]
    same = all(one.digest == other.digest for one, other in pairs)
    if not same or again.description != model.description or again.generation_config != model.generation_config:
        return math.inf
    with torch.inference_mode():
        return max(gap(_probe(again, dict(probe.inputs)).logits(), probe.logits()) for probe in probes)


def round_trip(tokenizer: Tokenizer, texts: Sequence[str]) -> LawResult:
    """How many texts the tokenizer decodes unchanged: a fact, not a law, since some tokenizers lose spaces."""
    changed = [text for text in texts if tokenizer.decode(tokenizer.encode(text)) != text]
    example = f"; not {changed[0][:30]!r}" if changed else ""
    detail = f"{len(texts) - len(changed)} of {len(texts)} texts{example}"
    return LawResult("the tokenizer gives back the text it was given", "noted", detail)


def lsh_recall(model: LoadedModel, probes: Sequence[Probe]) -> Iterator[LawResult]:
    """Per LSH layer, how much of the largest attention weights falls into shared buckets: a fact, not a law."""
    if not lsh_layers(model.network):
        return
    texts = {}
    for side in probes[0].sides:
        rows = [probe.inputs[f"{side}ids"][probe.inputs[f"{side}padding"]] for probe in probes]
        texts[f"{side}ids"] = torch.cat(rows)[None, : model.network.max_positions]
    found = measure_recall(model.network, texts)
    for layer in found.layers:
        detail = f"of the top {found.top} keys, by rounds: {layer.text()} ({found.tokens:,} tokens)"
        yield LawResult(f"LSH recall of {layer.layer}", "noted", detail)
