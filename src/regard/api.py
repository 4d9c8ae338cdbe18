"""What `regard.load` returns: a model one can speak with and look into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch

from regard.decode.alignment import Aligner, Links
from regard.decode.choose import Options
from regard.decode.generate import Answer, Progress, extend, translate
from regard.decode.heads import choose_heads
from regard.decode.look import Head, cross_heads
from regard.errors import DamagedFile, InputError
from regard.models.device import choose_device
from regard.models.model import Model, Network
from regard.show.trace import Seen, trace
from regard.store.folder import Loaded, read_folder
from regard.text.corpus import Corpus
from regard.text.problem import NextToken, Translation
from regard.text.tokenizer import Tokenizer

_WHOLE = 1 << 30


def load(folder: str | Path, *, device: str = "auto") -> LoadedModel:
    """A model from its folder; never runs code, never unpickles."""
    return LoadedModel(read_folder(Path(folder), choose_device(device)))


class LoadedModel:
    """A network with its tokenizers."""

    def __init__(self, loaded: Loaded) -> None:
        self.network: Network = loaded.network
        self.tokenizer: Tokenizer = loaded.tokenizers[0]
        self.target_tokenizer: Tokenizer = loaded.tokenizers[1] or loaded.tokenizers[0]
        self.config: dict[str, Any] = loaded.config
        self.generation: dict[str, Any] = loaded.generation

    @property
    def description(self) -> Model:
        """What the network is made of."""
        return self.network.description

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    def defaults(self) -> Options:
        """How this model searches when nobody says otherwise (generation_config.json)."""
        known = {"num_beams": "beam", "length_penalty": "length_penalty"}
        return Options(**{ours: self.generation[theirs] for theirs, ours in known.items() if theirs in self.generation})

    @overload
    def translate(
        self, texts: str, *, beam: int | None = ..., options: Options | None = ..., replace_unknown: bool = ...
    ) -> str: ...
    @overload
    def translate(
        self, texts: list[str], *, beam: int | None = ..., options: Options | None = ..., replace_unknown: bool = ...
    ) -> list[str]: ...
    def translate(
        self,
        texts: str | list[str],
        *,
        beam: int | None = None,
        options: Options | None = None,
        replace_unknown: bool = False,
    ) -> str | list[str]:
        """The best translation of each text; `options` can say more than the beam."""
        options = options or self.defaults()
        options = options if beam is None else replace(options, beam=beam)
        several = [texts] if isinstance(texts, str) else texts
        found = self.translations(several, options, replace_unknown=replace_unknown)
        best = [answers[0].text for answers in found]
        return best[0] if isinstance(texts, str) else best

    def translations(
        self,
        texts: Sequence[str],
        options: Options | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        progress: Progress = lambda done: None,
        alignment: bool = False,
        replace_unknown: bool = False,
    ) -> list[list[Answer]]:
        """The best translations of each text with their scores, best first; each begins with its prefix, if any.

        `alignment` says of each which words belong together; `replace_unknown` puts source words for unknown ones.
        """
        self._require(encoder=True, verb="translate")
        aligner = self.aligner if alignment or replace_unknown else None
        options = options or self.defaults()
        tokenizers = self.tokenizer, self.target_tokenizer
        found = translate(self.network, tokenizers, texts, options, prefixes=prefixes, progress=progress)
        if aligner is None:
            return found
        return aligner.explain(
            texts, found, prefixes=prefixes, stop=options.stop, alignment=alignment, replace_unknown=replace_unknown
        )

    @property
    def aligner(self) -> Aligner:
        """What links words: the heads chosen for this model (generation_config.json), or all that see the source."""
        heads = cross_heads(self.network)
        if not heads:
            raise InputError("this model does not attend to its source, so it aligns no words. Leave out --alignment "
                             "and --replace-unknown.")  # fmt: skip
        chosen: Sequence[Head] = self.generation.get("alignment_heads") or heads
        for layer, head in chosen:
            if (layer, head) not in heads:
                raise DamagedFile(f"this model has no head {head} in layer {layer} that attends to its source "
                                  "(generation_config.json: alignment_heads). Copy the file again.")  # fmt: skip
        return Aligner(self.network, (self.tokenizer, self.target_tokenizer), chosen)

    @property
    def aligners(self) -> tuple[Head, ...]:
        """The heads chosen to align, as layer and head; none where nothing was chosen or there is none."""
        known = self.generation.get("alignment_heads") and cross_heads(self.network)
        return tuple((layer, head) for layer, head in self.aligner.heads) if known else ()

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[Links]:
        """Of each pair, which words belong together: (source word, target word), counted from 0."""
        _require_pairs("align", sources, targets)
        return self.aligner.align(sources, targets)

    def choose_aligner(
        self, sources: Sequence[str], targets: Sequence[str], gold: Sequence[Links] | None = None
    ) -> list[Head]:
        """Align by the heads that do it best on these pairs from now on; `gold` is how they are aligned, if known."""
        _require_pairs("choose_aligner", sources, targets)
        if gold is not None and len(gold) != len(sources):
            raise InputError(f"{len(sources):,} pairs and {len(gold):,} alignments: give one alignment a pair.")
        self.generation.pop("alignment_heads", None)
        aligner = self.aligner
        heads = choose_heads(aligner.network, aligner.tokenizers, sources, targets, gold)
        self.generation["alignment_heads"] = heads
        return heads

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int = 200,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        options: Options | None = None,
    ) -> str:
        """The prompt, continued by drawing token after token; `options`, if given, says all of it instead."""
        drawn = Options(
            max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
            stop=tuple(stop),
        )  # fmt: skip
        return self.continuations([prompt], options or drawn)[0][0].text

    def continuations(
        self, prompts: Sequence[str], options: Options, *, progress: Progress = lambda done: None
    ) -> list[list[Answer]]:
        """The best continuations of each text with their scores, best first, the text itself included."""
        self._require(encoder=False, verb="generate")
        return extend(self.network, self.tokenizer, prompts, options, progress=progress)

    def score(self, source: Sequence[str], target: Sequence[str] | None = None) -> list[float]:
        """The log-probability of each target given its source, or of each text when there is no target."""
        _require_pairs("score", source, target)
        self._require(encoder=target is not None, verb="score pairs" if target is not None else "score plain texts")
        problem = NextToken(_WHOLE) if target is None else Translation(_WHOLE)
        totals = []
        for place, text in enumerate(source):
            corpus = Corpus([text], None if target is None else [target[place]], (f"text {place + 1}",))
            batch = problem.samples(corpus, (self.tokenizer, self.target_tokenizer)).batch([0]).to(self.device)
            with torch.inference_mode():
                totals.append(-float(self.network.loss(batch.inputs, batch.targets)))
        return totals

    def look(self, text: str, target: str | None = None) -> Seen:
        """What every layer and head attends to while reading `text` and saying `target` (or its own words)."""
        if self.network.encoder is not None and target is None:
            target = self.translate(text)
        return trace(self.network, self.tokenizer, self.target_tokenizer, text, target, self.aligners)

    def _require(self, *, encoder: bool, verb: str) -> None:
        if (self.network.encoder is not None) != encoder:
            made = "generate" if encoder else "translate"
            raise InputError(f"this model does not {verb}; it was made to {made}. Try: regard {made}.")


def _require_pairs(what: str, sources: Sequence[str], targets: Sequence[str] | None) -> None:
    if isinstance(sources, str) or isinstance(targets, str) or (targets is not None and len(targets) != len(sources)):
        raise InputError(f"{what} takes lists of texts, as many targets as sources.")
