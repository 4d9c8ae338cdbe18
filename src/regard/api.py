"""What `regard.load` returns: a model one can speak with and look into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, overload

import torch

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.alignment import Aligner, Head, Links, choose_heads, cross_heads
from regard.decode.classify import Said, Text, classify
from regard.decode.embed import Layer, TokenVectors, Vectors, embed, embed_tokens
from regard.decode.fill import Filled, fill_masks, fill_spans
from regard.decode.generate import Answer, Progress, extend, translate
from regard.decode.inputs import require_verb
from regard.decode.options import Options, default_options
from regard.decode.score import Scored, score_hidden, score_pairs, score_texts
from regard.errors import DamagedFile, InputError
from regard.models.device import choose_device
from regard.models.model import Model, Network
from regard.show.generation import beam_tree
from regard.show.lsh import Microscope, microscope
from regard.show.payload import beside as beside
from regard.show.trace import Seen, trace
from regard.store.checkpoint import checkpoint_at, checkpoints, steps_found
from regard.store.folder import read_folder
from regard.store.loading import LONGEST_TEXT, Loaded, fill

_QUIET: Progress = lambda done: None  # noqa: E731


def load(folder: str | Path, *, device: str = "auto", step: int | None = None) -> LoadedModel:
    """A model from its folder, or as it was at a checkpoint of its run; never runs code, never unpickles."""
    loaded = read_folder(Path(folder), choose_device(device))
    if step is not None:
        fill(loaded.network, checkpoint_at(checkpoints(Path(folder)), step).tensors("model"))
    return LoadedModel(loaded)


def steps(folder: str | Path) -> list[int]:
    """The steps of which a run keeps checkpoints, oldest first; `load` takes any of them."""
    return steps_found(checkpoints(Path(folder)))


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
        ours = self.config.get("model_type", "regard") == "regard"
        return default_options(self.generation, ours=ours, translates=self.network.encoder is not None)

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
        progress: Progress = _QUIET,
        alignment: bool = False,
        replace_unknown: bool = False,
        first: int = 1,
    ) -> list[list[Answer]]:
        """The best translations of each text with their scores, best first; each begins with its prefix, if any.

        `alignment` says of each which words belong together; `replace_unknown` puts source words for unknown ones;
        `first` is the number of the first line, where a text must be named.
        """
        self._require("translate")
        aligner = self.aligner if alignment or replace_unknown else None
        options = options or self.defaults()
        tokenizers = self.tokenizer, self.target_tokenizer
        found = translate(self.network, tokenizers, texts, options, prefixes=prefixes, progress=progress, first=first)
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
        max_tokens: int | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        options: Options | None = None,
    ) -> str:
        """The prompt, continued by drawing token after token; `options`, if given, says all of it instead.

        Without `max_tokens`: as many as the model's generation_config.json has it, or 200.
        """
        own = self.defaults()
        limit = own.max_tokens if max_tokens is None else max_tokens
        drawn = Options(
            max_tokens=limit, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
            stop=tuple(stop), never=own.never, not_first=own.not_first, last=own.last, also_end=own.also_end,
        )  # fmt: skip
        return self.continuations([prompt], options or drawn)[0][0].text

    def continuations(
        self, prompts: Sequence[str], options: Options, *, progress: Progress = _QUIET
    ) -> list[list[Answer]]:  # fmt: skip
        """The best continuations of each text with their scores, best first, the text itself included."""
        self._require("generate")
        return extend(self.network, self.tokenizer, prompts, options, progress=progress)

    @overload
    def fill(self, texts: str, *, top: int = ..., progress: Progress = ...) -> Filled: ...
    @overload
    def fill(self, texts: list[str], *, top: int = ..., progress: Progress = ...) -> list[Filled]: ...
    def fill(self, texts: str | list[str], *, top: int = 5, progress: Progress = _QUIET) -> Filled | list[Filled]:
        """Words for each [MASK] of a text; of a model that says spans, spans for <extra_id_0>, <extra_id_1>, ..."""
        self._require("fill")
        if top < 1:
            raise InputError(f"top must be 1 or more, got {top} (--top).")
        several = [texts] if isinstance(texts, str) else texts
        if self.network.decoder is None:
            found = fill_masks(self.network, self.tokenizer, several, top=top, progress=progress)
        else:
            both = self.tokenizer, self.target_tokenizer
            found = fill_spans(self.network, both, several, self.defaults(), top=top, progress=progress)
        return found[0] if isinstance(texts, str) else found

    @overload
    def embed(
        self, texts: Sequence[str], *, pool: str | None = ..., layer: Layer = ..., normalised: bool = ...,
        tokens: Literal[False] = ..., progress: Progress = ...,
    ) -> Vectors: ...  # fmt: skip
    @overload
    def embed(
        self, texts: Sequence[str], *, pool: str | None = ..., layer: Layer = ..., normalised: bool = ...,
        tokens: Literal[True], progress: Progress = ...,
    ) -> list[TokenVectors]: ...  # fmt: skip
    def embed(
        self,
        texts: Sequence[str],
        *,
        pool: str | None = None,
        layer: Layer = None,
        normalised: bool = False,
        tokens: bool = False,
        progress: Progress = _QUIET,
    ) -> Vectors | list[TokenVectors]:
        """A vector for each text, or with `tokens` one for each of its tokens.

        `pool` is "mean", "first", "last" or "max"; `layer` a number, 0 being the embedding, or "mix", the mean of all.
        """
        _require_texts("embed", texts)
        longest: int | None = self.config.get(LONGEST_TEXT)
        if not tokens:
            return embed(
                self.network, self.tokenizer, texts, pool=pool, layer=layer, normalised=normalised, max_length=longest,
                progress=progress,
            )  # fmt: skip
        if pool is not None:
            raise InputError("vectors of tokens are not pooled (--tokens). Leave out --pool.")
        return embed_tokens(
            self.network, self.tokenizer, texts, layer=layer, normalised=normalised, max_length=longest,
            progress=progress,
        )  # fmt: skip

    def classify(self, texts: Sequence[Text], *, progress: Progress = _QUIET) -> list[Said]:
        """What the model says of each text, or pair of texts: its label, its number, or the tags of its words."""
        _require_texts("classify", texts)
        self._require("classify")
        return classify(self.network, self.tokenizer, texts, progress)

    def score(self, source: Sequence[str], target: Sequence[str] | None = None) -> list[float]:
        """The log-probability of each target given its source, or of each text when there is no target."""
        return [found.total for found in self.scores(source, target)]

    def scores(
        self, source: Sequence[str], target: Sequence[str] | None = None, *, progress: Progress = _QUIET
    ) -> list[Scored]:
        """The log-probability of each target given its source, or of each text, as a whole and token by token.

        A model that fills in masks hides one token after the other: the sum is a pseudo-log-likelihood.
        """
        _require_pairs("score", source, target)
        both = self.network.encoder is not None and self.network.decoder is not None
        self._require("score")
        if both != (target is not None):
            what, fits = ("plain texts", "pairs of source and target") if both else ("pairs", "texts alone")
            raise InputError(f"this model does not score {what}. Give {fits}.")
        if target is not None:
            tokenizers = self.tokenizer, self.target_tokenizer
            return score_pairs(self.network, tokenizers, (source, target), progress)
        score = score_texts if self.network.encoder is None else score_hidden
        return score(self.network, self.tokenizer, source, progress)

    def look(
        self,
        text: str,
        target: str | None = None,
        layers: str | Sequence[str] = "*",
        *,
        beam: int | None = None,
        length: int = 0,
    ) -> Seen:
        """What every layer and head attends to while reading `text` and saying `target` (or its own words, by `beam`).

        A language model reads `target` behind the text, and goes on by itself for `length` tokens. `layers` are names
        or patterns, as "decoder.*.cross".
        """
        both = self.network.encoder is not None and self.network.decoder is not None
        if length < 0 or (length and self.network.encoder is not None):
            raise InputError(
                f"only a language model goes on with a text, by 0 or more tokens (length {length}). Leave it out."
            )
        if target is not None and self.network.decoder is None:
            raise InputError("this model says nothing of its text (target). Leave the target out.")
        tokenizers = self.tokenizer, self.target_tokenizer
        options = replace(self.defaults(), beam=1, max_tokens=length) if length else self.defaults()
        options = options if beam is None else replace(options, beam=beam)
        if not length and (target is not None or not both):
            return trace(self.network, tokenizers, text, target, self.aligners, layers=layers, options=options)
        text = text + (target or "")
        tree, answer = beam_tree(self.network, tokenizers, text, options)
        beams, said = tree if options.beam > 1 else None, answer.tokens
        return trace(
            self.network, tokenizers, text, said, self.aligners, layers=layers, beams=beams, options=options
        )  # fmt: skip

    def microscope(self, text: str, target: str | None = None, *, top: int = 64) -> Microscope:
        """How much of the `top` weightiest keys' mass hashing catches, per layer, head and number of rounds (LSH)."""
        if self.network.encoder is not None and self.network.decoder is not None and target is None:
            target = self.translate(text)
        return microscope(self.network, (self.tokenizer, self.target_tokenizer), text, target, top=top)

    def _require(self, verb: str) -> None:
        require_verb(self.description, self.tokenizer, verb)


def _require_texts(what: str, texts: Sequence[Any]) -> None:
    if isinstance(texts, str):
        raise InputError(f"{what} takes a list of texts. Put the text into one.")


def _require_pairs(what: str, sources: Sequence[str], targets: Sequence[str] | None) -> None:
    if isinstance(sources, str) or isinstance(targets, str) or (targets is not None and len(targets) != len(sources)):
        raise InputError(f"{what} takes lists of texts, as many targets as sources.")
