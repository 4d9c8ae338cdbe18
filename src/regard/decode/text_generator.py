"""A model that writes text, translating or continuing it: one network, an ensemble, or one fused with another."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, Self, overload

import torch

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.alignment import Aligner
from regard.decode.constraints import ConstraintCompiler
from regard.decode.ensemble import CombinedNetwork, Ensemble, ShallowFusion
from regard.decode.generate import GeneratedText, Progress, constrained_requests, continue_prompts, translate
from regard.decode.given_texts import require_text, several_texts, terms_of, texts_of
from regard.decode.long_lines import cut_long_lines
from regard.decode.mbr import MBR, Metric
from regard.decode.options import Options, default_options
from regard.decode.requests import prompt_requests, translation_requests
from regard.decode.requests import require_possible as require_possible
from regard.decode.stream import stream_text
from regard.decode.target_language import lacks_language, with_language
from regard.decode.terms import Constraints, Glossary
from regard.errors import InputError, Note
from regard.models.generator import Generator
from regard.progress import waiting
from regard.store.loading import TRAINED_LENGTH

Terms = Glossary | Mapping[str, str]
"""A glossary, or a dictionary of source terms and target terms."""


class TextGenerator:
    """What writes text token by token, with the tokenizers and configs that it needs."""

    network: Generator
    tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    tokenizers: tuple[Tokenizer, Tokenizer]
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    _noted = False  # that a text is longer than those of the training

    def defaults(self) -> Options:
        """The model's default decoding options (generation_config.json)."""
        ours = self.config.get("model_type", "regard") == "regard"
        return default_options(self.generation_config, ours=ours, translates=self.network.shape != "decoder")

    @property
    def device(self) -> torch.device:
        """The device of the network's parameters."""
        return next(self.network.parameters()).device

    def translating_into(self, language: str) -> Self:
        """The same model, told to translate into this language: "fr" or its code in the model, as "fra_Latn"."""
        self._require("translate")
        told = copy(self)
        told.tokenizers, told.generation_config = with_language(self.tokenizers, self.generation_config, language)
        told.tokenizer, told.target_tokenizer = told.tokenizers
        return told

    @overload
    def translate(
        self, texts: str, *, beam: int | None = ..., options: Options | None = ..., replace_unknown: bool = ...,
        must: Sequence[str] = ..., must_not: Sequence[str] = ..., glossary: Terms | None = ...,
        mbr: Metric | None = ..., mbr_candidates: int | None = ..., target_language: str | None = ...,
    ) -> str: ...  # fmt: skip
    @overload
    def translate(
        self, texts: list[str], *, beam: int | None = ..., options: Options | None = ..., replace_unknown: bool = ...,
        must: Sequence[str] = ..., must_not: Sequence[str] = ..., glossary: Terms | None = ...,
        mbr: Metric | None = ..., mbr_candidates: int | None = ..., target_language: str | None = ...,
    ) -> list[str]: ...  # fmt: skip
    def translate(
        self, texts: str | list[str], *, beam: int | None = None, options: Options | None = None,
        replace_unknown: bool = False, must: Sequence[str] = (), must_not: Sequence[str] = (),
        glossary: Terms | None = None, mbr: Metric | None = None, mbr_candidates: int | None = None,
        target_language: str | None = None,
    ) -> str | list[str]:  # fmt: skip
        """The best translation of each text, by beam search; `options` sets the other decoding options.

        A translation contains the terms of `must` and none of `must_not`, and the target terms of a `glossary` whose
        source terms occur in its text; where that is impossible, an error says so. `mbr` chooses among samples, or with
        a `beam` among its hypotheses, by minimum Bayes risk. `target_language` is for models of several languages.
        """
        several = texts_of("translate", texts)
        risk = minimum_risk(mbr, mbr_candidates)
        told = self if target_language is None else self.translating_into(target_language)
        plain = options or told.defaults()
        if told is not self:
            plain = replace(plain, forced_bos=told.defaults().forced_bos)
        plain = plain if beam is None else replace(plain, beam=beam)
        if risk is not None and beam is None and options is None:
            plain = risk.sampling(plain)
        constraints = line_constraints(several, must=must, must_not=must_not, glossary=glossary)
        found = told.translations(
            several, plain, replace_unknown=replace_unknown, constraints=constraints, mbr=risk,
        )  # fmt: skip
        best = [require_possible(hypotheses[0], f"text {number:,}").text for number, hypotheses in enumerate(found, 1)]
        return best[0] if isinstance(texts, str) else best

    def translations(
        self, texts: Sequence[str], options: Options | None = None, *, prefixes: Sequence[str] | None = None,
        constraints: Sequence[Constraints | None] | None = None, mbr: MBR | None = None,
        progress: Progress | None = None, alignment: bool = False, replace_unknown: bool = False, first_line: int = 1,
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """The n-best translations of each text with their scores; each starts with its target prefix, if any.

        `constraints` are what each translation must be like; where none is found, one empty translation says why
        (`impossible`). `alignment` adds word alignments; `replace_unknown` replaces unknown words by source words;
        `first_line` is the line number of the first text, for error messages.
        """
        self._require("translate")
        several_texts("translations", texts)
        options = options or self.defaults()
        if lacks_language(self.tokenizers, options.forced_bos):
            self._note_once("this model translates into several languages, and none is named. Name one, as in "
                            "--target-language fr, or as tgt_lang in tokenizer_config.json.")  # fmt: skip
        cut = None if mbr is not None else cut_long_lines(
            self.network, self.tokenizer, texts, self.tokenizer.encode_batch(texts), options,
            trained_length=self.config.get(TRAINED_LENGTH), prefixes=prefixes, constraints=constraints,
            first_line=first_line, note=self._note_once,
        )  # fmt: skip
        if cut is not None:
            found = self._translated(
                cut.pieces, options, prefixes=cut.per_piece(prefixes, ""), alignment=alignment,
                constraints=cut.per_piece(constraints, None), progress=progress and cut.progress(progress),
                replace_unknown=replace_unknown,
            )  # fmt: skip
            return cut.put_together(found, options)
        return self._translated(
            texts, options, prefixes=prefixes, constraints=constraints, mbr=mbr, progress=progress, alignment=alignment,
            replace_unknown=replace_unknown, first_line=first_line,
        )  # fmt: skip

    def _translated(
        self, texts: Sequence[str], options: Options, *, prefixes: Sequence[str] | None = None,
        constraints: Sequence[Constraints | None] | None = None, mbr: MBR | None = None,
        progress: Progress | None = None, alignment: bool = False, replace_unknown: bool = False, first_line: int = 1,
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """The n-best translations of each text, each as a whole."""
        aligner = self.aligner if alignment or replace_unknown else None
        searched = options if mbr is None else mbr.candidate_options(options)
        with shown_progress(progress, len(texts), "translating") as advance:
            found = translate(
                self.network, self.tokenizers, texts, searched, prefixes=prefixes, constraints=constraints,
                compiler=self.compiler, progress=advance, first_line=first_line,
                trained_length=self.config.get(TRAINED_LENGTH), note=self._note_once,
            )  # fmt: skip
        if mbr is not None:
            sampled = options.temperature > 0
            found = [mbr.rank(candidates, sampled=sampled)[: options.n_best] for candidates in found]
        if aligner is None:
            return found
        with waiting(len(texts), "aligning") as advance:
            return aligner.annotate(
                texts, found, prefixes=prefixes, stop=options.stop, alignment=alignment,
                replace_unknown=replace_unknown, progress=advance,
            )  # fmt: skip

    def generate(
        self, prompt: str, *, max_tokens: int | None = None, temperature: float = 1.0, top_k: int = 0,
        top_p: float = 1.0, min_p: float = 0.0, typical: float = 1.0, epsilon: float = 0.0, seed: int = 0,
        stop: Sequence[str] = (), must: Sequence[str] = (), must_not: Sequence[str] = (), regex: str | None = None,
        options: Options | None = None,
    ) -> str:  # fmt: skip
        """The prompt and its continuation, sampled token by token; `options` replaces the other decoding options.

        The continuation contains the terms of `must`, which takes a temperature of 0, and none of `must_not`; all of it
        matches `regex`. `max_tokens` defaults to that of generation_config.json, or else 200.
        """
        require_text("generate", prompt)
        sampling = Options(
            max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical=typical,
            epsilon=epsilon, seed=seed, stop=terms_of(stop, "stop"),
        ).with_tokens_of(self.defaults())  # fmt: skip
        constraints = Constraints(terms_of(must, "must"), (), terms_of(must_not, "must_not"), regex)
        found = self.continuations([prompt], options or sampling, constraints=[constraints])[0][0]
        return require_possible(found, "the text").text

    def continuations(
        self, prompts: Sequence[str], options: Options, *, constraints: Sequence[Constraints | None] | None = None,
        progress: Progress | None = None,
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """The n-best continuations of each prompt with their scores; their text includes the prompt.

        `constraints` are what each continuation must be like; where none is found, one empty text says why.
        """
        self._require("generate")
        several_texts("continuations", prompts)
        with shown_progress(progress, len(prompts), "generating") as advance:
            return continue_prompts(
                self.network, self.tokenizer, prompts, options, constraints=constraints, compiler=self.compiler,
                progress=advance,
            )  # fmt: skip

    def stream(
        self, text: str, *, max_tokens: int | None = None, temperature: float | None = None, top_k: int = 0,
        top_p: float = 1.0, min_p: float = 0.0, typical: float = 1.0, epsilon: float = 0.0, seed: int = 0,
        stop: Sequence[str] = (), must_not: Sequence[str] = (), regex: str | None = None,
        options: Options | None = None,
    ) -> Iterator[str]:  # fmt: skip
        """The translation or the continuation of a text, piece by piece as it is generated.

        The pieces together are the text that `translate` with a beam of 1 gives, or what `generate` adds to the prompt.
        `temperature` is 0 for a translation and 1 for a continuation, unless set; `options` replaces them all.
        """
        require_text("stream", text)
        translates = self.network.shape != "decoder"
        self._require("translate" if translates else "generate")
        warmth = temperature if temperature is not None else 0.0 if translates else 1.0
        plain = replace(self.defaults(), beam=1, n_best=1) if translates else Options()
        plain = replace(
            plain, max_tokens=plain.max_tokens if max_tokens is None else max_tokens, temperature=warmth, top_k=top_k,
            top_p=top_p, min_p=min_p, typical=typical, epsilon=epsilon, seed=seed, stop=terms_of(stop, "stop"),
        ).with_tokens_of(self.defaults())  # fmt: skip
        chosen = options or plain
        if translates:
            requests = translation_requests(self.network, self.tokenizers, [text], chosen)
        else:
            requests = prompt_requests(self.network, self.tokenizer, [text], chosen)
        constraints = Constraints((), (), terms_of(must_not, "must_not"), regex)
        (request,) = constrained_requests(requests, [constraints])
        return stream_text(self.network, self.target_tokenizer, request, chosen, self.compiler)

    def fuse(self, language_model: TextGenerator, weight: float = 0.2) -> CombinedModel:
        """Shallow fusion (Gulcehre 2015): the translator with a language model of the same target vocabulary."""
        _require_models([language_model], "fuse")
        if self.network.shape != "encoder-decoder" or language_model.network.shape != "decoder":
            raise InputError("shallow fusion takes a translator and a language model (fusion). Name one of each.")
        if not 0 <= weight <= 100:
            raise InputError(f"fusion_weight must be 0 to 100, got {weight}.")
        require_same_vocabulary([self, language_model], "the language model (fusion)")
        return CombinedModel([self, language_model], ShallowFusion(weight))

    @cached_property
    def compiler(self) -> ConstraintCompiler:
        """Compiles constraints for the target tokenizer, each once."""
        return ConstraintCompiler(self.target_tokenizer, self.network.vocabulary)

    @property
    def aligner(self) -> Aligner:
        """The word aligner of a single model."""
        raise InputError("several models together align no words. Leave out --alignment and --replace-unknown, "
                         "or use one model.")  # fmt: skip

    def _require(self, verb: str) -> None:
        """Refuse a command that the model was not made for."""
        fits = "generate" if self.network.shape == "decoder" else "translate"
        if verb != fits:
            raise InputError(f"these models do not {verb}; they were made to {fits}. Try: regard {fits}.")

    def _note_once(self, text: str) -> None:
        """The first note about a text that is too long stands for all."""
        if not self._noted:
            warnings.warn(text, Note, stacklevel=2)
        self._noted = True


class CombinedModel(TextGenerator):
    """Several models that write one text together, as `regard.ensemble` and `fuse` return it."""

    def __init__(self, models: Sequence[TextGenerator], combination: Ensemble | ShallowFusion) -> None:
        first = models[0]
        self.models, self.network = tuple(models), CombinedNetwork([model.network for model in models], combination)
        self.tokenizer, self.target_tokenizer, self.tokenizers = (
            first.tokenizer,
            first.target_tokenizer,
            first.tokenizers,
        )
        self.config, self.generation_config = first.config, first.generation_config

    def __repr__(self) -> str:
        return f"<{len(self.models)} models together>"


def ensemble(models: Sequence[TextGenerator], weights: Sequence[float] | None = None) -> CombinedModel:
    """Models that predict each token together: the (weighted) mean of their probabilities.

    They may be of any family, as long as they share their vocabularies. The defaults are those of the first.
    """
    if not models:
        raise InputError("an ensemble needs a model (models). Give one or more.")
    _require_models(models, "ensemble")
    shares = tuple(map(float, weights)) if weights is not None else (1.0,) * len(models)
    if len(shares) != len(models):
        raise InputError(f"{len(models)} models and {len(shares)} weights: give one weight per model (weights).")
    if not all(0 < share < float("inf") for share in shares) or not 0 < sum(shares) < float("inf"):
        raise InputError(f"weights must be above 0 and have a sum, got {', '.join(map(str, shares))} (weights).")
    shapes = sorted({model.network.shape for model in models})
    if len(shapes) > 1 or shapes == ["encoder"]:
        raise InputError(f"an ensemble is of translators or of language models, got {' and '.join(shapes)} (models).")
    require_same_vocabulary(models, "model {number}")
    return CombinedModel(models, Ensemble(shares))


def _require_models(models: Sequence[object], what: str) -> None:
    """Refuse what is no loaded model, such as its folder."""
    for one in models:
        if not isinstance(one, TextGenerator):
            raise InputError(f"{what} takes models that are loaded, got {one!r:.60}. Give it regard.load(folder).")


def require_same_vocabulary(models: Sequence[TextGenerator], what: str) -> None:
    """Refuse models whose tokens do not mean the same."""
    first = models[0]
    for number, model in enumerate(models[1:], 2):
        name = what.format(number=number)
        if model.target_tokenizer.digest != first.target_tokenizer.digest:
            raise InputError(f"{name} has another target vocabulary than the first: {model.network.vocabulary:,} and "
                             f"{first.network.vocabulary:,} tokens. Train them with the same tokenizer.")  # fmt: skip
        both_read = model.network.shape == first.network.shape == "encoder-decoder"
        if both_read and model.tokenizer.digest != first.tokenizer.digest:
            raise InputError(
                f"{name} reads another source vocabulary than the first. Train them with the same tokenizer."
            )
        if model.network.vocabulary != first.network.vocabulary:
            raise InputError(f"{name} predicts {model.network.vocabulary:,} tokens, the first "
                             f"{first.network.vocabulary:,}. Use models of one size of vocabulary.")  # fmt: skip
        if model.device != first.device:
            raise InputError(f"{name} is on {model.device}, the first on {first.device}. Load them on one device.")


def line_constraints(
    texts: Sequence[str], *, must: Sequence[str] = (), must_not: Sequence[str] = (), regex: str | None = None,
    glossary: Terms | None = None,
) -> list[Constraints] | None:  # fmt: skip
    """The constraints of each text; None if there are none."""
    given = Constraints(terms_of(must, "must"), (), terms_of(must_not, "must_not"), regex)
    if glossary is None:
        return [given] * len(texts) if given else None
    terms = Glossary.of(glossary)
    return [terms.constraints(text, given) for text in texts]


def minimum_risk(metric: Metric | None, candidates: int | None) -> MBR | None:
    """The settings of minimum Bayes risk, if it is asked for."""
    if metric is None:
        if candidates is not None:
            raise InputError("mbr_candidates is for minimum Bayes risk. Set mbr, or leave it out.")
        return None
    return MBR(metric) if candidates is None else MBR(metric, candidates)


def shown_progress(progress: Progress | None, total: int, what: str) -> AbstractContextManager[Progress]:
    """The caller's progress, or else one that is shown to those who wait."""
    return waiting(total, what) if progress is None else nullcontext(progress)
