"""The Python interface: `regard.load` returns a model that translates, generates, fills, embeds, classifies, scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, overload

from regard.data.documents import Kind as DocumentKind
from regard.data.sentences import split_sentences, split_to_fit
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.alignment import Aligner, Head, Links, choose_heads, cross_attention_heads
from regard.decode.alternatives import Alternative, WordConfidence, alternatives, text_confidences
from regard.decode.classify import Prediction, Text, classify, predicts_next_sentence
from regard.decode.confidence import Calibration, Confidence, calibrate, confidences, read_calibration
from regard.decode.document import (
    Journal,
    TranslatedDocument,
    digest_of,
    open_document,
    open_journal,
    translate_segments,
)
from regard.decode.document_terms import DocumentTerms
from regard.decode.embed import Layer, TokenVectors, Vectors, embed, embed_tokens
from regard.decode.fill import FilledText, fill_masks, fill_spans
from regard.decode.generate import QUIET, GeneratedText, Progress, translation_requests
from regard.decode.given_texts import (
    require_pairs,
    require_text,
    several_texts,
    terms_of,
    texts_of,
    texts_or_pairs,
)
from regard.decode.inputs import add_special_tokens, capabilities, require_capability
from regard.decode.mbr import MBR
from regard.decode.options import Options
from regard.decode.score import TextScore, score_masked, score_pairs, score_texts
from regard.decode.tags import Weigh
from regard.decode.terms import Constraints
from regard.decode.terms import Glossary as Glossary
from regard.decode.text_generator import Terms, TextGenerator, shown_progress
from regard.decode.text_generator import ensemble as ensemble
from regard.engines.folder import CONVERTED_PRECISION, PROGRAMS, Engine, find_converted
from regard.engines.model import ConvertedModel
from regard.engines.open import open_converted
from regard.errors import DamagedFile, InputError
from regard.layers.lora import Adapter
from regard.layers.packed import InferencePrecision
from regard.models.device import choose_device, set_precision
from regard.models.model import Model, Network, Shape
from regard.progress import waiting
from regard.schema import classes_of, require_parts
from regard.show.generation import beam_tree
from regard.show.lsh import LSHRecall, lsh_recall
from regard.show.payload import side_by_side as side_by_side
from regard.show.trace import AttentionTrace, trace
from regard.store.checkpoint import checkpoint_at, checkpoints_folder, saved_steps
from regard.store.files import disk_errors, sha256, write_output
from regard.store.folder import read_folder, unique_parameters, write_description, write_weights
from regard.store.loading import MAX_TEXT_LENGTH, TRAINED_LENGTH, Loaded


def load(
    folder: str | Path, *, device: str = "auto", step: int | None = None, parts: Sequence[type] = (),
    engine: Engine = "auto", precision: InferencePrecision = "float32", adapters: Sequence[str | Path] = (),
) -> LoadedModel:  # fmt: skip
    """Load a model from its folder, or from a checkpoint of its run; never runs code, never unpickles.

    The folder of an adapter (LoRA) loads the model that it was trained on with it; `adapters` are those of other
    folders, to be folded into this model's weights.

    `parts` are the caller's own description classes (layers, scores, positions, ...) that the model is made of.
    `engine` answers what it can: "torch", "ctranslate2", "onnxruntime", or "auto", a converted model that is proven for
    these weights.
    `precision` is that of linear maps in torch: "float32", "bfloat16" or "int8"; with another than float32, "auto" is
    torch.
    """
    if isinstance(adapters, str):
        raise InputError(f'adapters takes a list: adapters=["{adapters}"] (adapters).')
    if precision != "float32":
        if engine in PROGRAMS:
            raise InputError(CONVERTED_PRECISION)
        engine = "torch"
    trained = None if step is None else checkpoint_at(checkpoints_folder(Path(folder)), step).tensors("model")
    loaded = read_folder(
        Path(folder), choose_device(device), parts=require_parts(parts), adapters=[Path(one) for one in adapters],
        trained=trained,
    )  # fmt: skip
    set_precision(loaded.network, precision)
    model = LoadedModel(loaded)
    model.calibration = read_calibration(Path(folder)) if step is None else None
    found = (
        find_converted(Path(folder), engine)
        if step is None and not loaded.network.adapters and model.device.type == "cpu"
        else None
    )
    if found is not None:
        model.engine = open_converted(found, lambda: LoadedModel(loaded), defaults_from=Path(folder))
    return model


def save(
    network: Network, tokenizer: Tokenizer | tuple[Tokenizer, Tokenizer], folder: str | Path,
) -> LoadedModel:  # fmt: skip
    """Save a network and its tokenizer (source and target tokenizer, if they differ) as a new model folder."""
    if not isinstance(network, Network):
        raise InputError(f"regard.save takes a network, as model.network is; got {type(network).__name__} (network).")
    first, *rest = tokenizer if isinstance(tokenizer, tuple) else (tokenizer,)
    target = rest[0] if rest and rest[0] is not first else None
    for one in (first, *rest):
        if not isinstance(one, Tokenizer):
            raise InputError(f"regard.save takes a tokenizer, as BPE().train(texts) is; got {type(one).__name__}.")
    vocabularies = {first: network.source_vocabulary or network.vocabulary, target or first: network.vocabulary}
    for one, known in vocabularies.items():
        if one.vocabulary > known:
            raise InputError(f"the tokenizer has {one.vocabulary:,} tokens, the network {known:,} (tokenizer). "
                             "Build the network with tokenizer.vocabulary.")  # fmt: skip
    path = Path(folder)
    if (path / "config.json").exists() or (path / "model.safetensors").exists():
        raise InputError(f"{path} holds a model already (folder). Choose another.")
    verb, special = capabilities(network.description, first)[0], target or first
    ids = {"bos_token_id": special.bos, "eos_token_id": special.eos, "pad_token_id": special.pad}
    with disk_errors(path, 0):
        path.mkdir(parents=True, exist_ok=True)
    generation_config = {**ids, "decoder_start_token_id": special.bos}
    write_description(path, network, (first, target), task=verb, generation_config=generation_config)
    write_weights(path, unique_parameters(network))
    return load(path, device="cpu", parts=classes_of(network.description))


def steps(folder: str | Path) -> list[int]:
    """The steps of a run's checkpoints, oldest first; `load(folder, step=...)` takes any of them."""
    return saved_steps(checkpoints_folder(Path(folder)))


class LoadedModel(TextGenerator):
    """A network with its tokenizers and configs: the result of `regard.load`."""

    def __init__(self, loaded: Loaded) -> None:
        self.network: Network = loaded.network
        self.tokenizer: Tokenizer = loaded.tokenizers[0]
        self.target_tokenizer: Tokenizer = loaded.tokenizers[1] or self.tokenizer
        self.tokenizers = self.tokenizer, self.target_tokenizer
        self.config: dict[str, Any] = loaded.config
        self.generation_config: dict[str, Any] = loaded.generation_config
        self.engine: ConvertedModel | None = None  # that answers what it can in place of the network
        self.calibration: Calibration | None = None  # of the confidences in its translations

    @property
    def description(self) -> Model:
        """The description that the network was built from."""
        return self.network.description

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The adapters that were folded into its weights."""
        return self.network.adapters

    def __repr__(self) -> str:
        count = sum(parameter.numel() for parameter in self.network.parameters())
        return f"<{self.shape} model, {count:,} parameters, on {self.device}>"

    @property
    def shape(self) -> Shape:
        """Which stacks it has: "encoder", "decoder" or "encoder-decoder"."""
        return self.network.shape

    def translating_into(self, language: str) -> Self:
        """As `TextGenerator.translating_into`; so is its converted model."""
        told = super().translating_into(language)
        told.engine = self.engine and self.engine.translating_into(language)
        return told

    def translations(
        self, texts: Sequence[str], options: Options | None = None, *, prefixes: Sequence[str] | None = None,
        constraints: Sequence[Constraints | None] | None = None, mbr: MBR | None = None,
        progress: Progress | None = None, alignment: bool = False, replace_unknown: bool = False, first_line: int = 1,
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """As `TextGenerator.translations`; a converted model translates what it can."""
        self._require("translate")
        several_texts("translations", texts)
        engine = self._engine_to("translate")
        if engine is None:
            return super().translations(
                texts, options, prefixes=prefixes, constraints=constraints, mbr=mbr, progress=progress,
                alignment=alignment, replace_unknown=replace_unknown, first_line=first_line,
            )  # fmt: skip
        with shown_progress(progress, len(texts), "translating") as advance:
            return engine.translations(
                texts, options, prefixes=prefixes, constraints=constraints, mbr=mbr, progress=advance,
                alignment=alignment, replace_unknown=replace_unknown, first_line=first_line,
            )  # fmt: skip

    def continuations(
        self, prompts: Sequence[str], options: Options, *, constraints: Sequence[Constraints | None] | None = None,
        progress: Progress | None = None,
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """As `TextGenerator.continuations`; a converted model generates what it can."""
        self._require("generate")
        several_texts("continuations", prompts)
        engine = self._engine_to("generate")
        if engine is None:
            return super().continuations(prompts, options, constraints=constraints, progress=progress)
        with shown_progress(progress, len(prompts), "generating") as advance:
            return engine.continuations(prompts, options, constraints=constraints, progress=advance)

    @property
    def embedding_width(self) -> int:
        """The width of the vector of a text."""
        return self.description.embedding_width

    @property
    def classifies_pairs(self) -> bool:
        """Whether it tells if one text follows another, so that it reads pairs."""
        return predicts_next_sentence(self.description)

    def translate_document(
        self,
        document: str | Path,
        out: str | Path | None = None,
        *,
        kind: DocumentKind | None = None,
        language: str | None = None,
        split: bool = True,
        glossary: Terms | None = None,
        must_not: Sequence[str] = (),
        options: Options | None = None,
        progress: Progress | None = None,
    ) -> TranslatedDocument:
        """Translate a file, or a text of this `kind`, sentence by sentence; markup and code stay as they are.

        `out` is written when all is done, and a translation that was killed on the way is resumed. `language` is the
        source's, whose rules say where a sentence ends; without `split` a paragraph is translated as a whole, if it is
        not longer than the texts of the training. A sentence with a source term of the `glossary` uses its target term,
        and none contains the terms of `must_not`; one for which that is impossible is marked.
        """
        self._require("translate")
        opened = open_document(document, kind)
        options = options or self.defaults()
        pieces = self.splitter(language, sentences=split)
        terms = DocumentTerms(Glossary.of(glossary or {}), terms_of(must_not, "must_not"))
        key = [self.fingerprint(), asdict(options), language, split, opened.digest, asdict(terms)]
        journal = nullcontext(Journal()) if out is None else open_journal(Path(out), digest_of(key))
        with journal as finished, shown_progress(progress, opened.sentences(pieces), "translating") as advance:
            found = translate_segments(
                opened.segments, partial(self._lines, options), self.unit_weights(), split=pieces, terms=terms,
                journal=finished, progress=advance,
            )  # fmt: skip
            translated = TranslatedDocument(opened.render(found.segments), found.sentences, found.marked)
            if out is not None:
                write_output(Path(out), translated.content)
        return translated

    def _lines(self, options: Options, texts: list[str], constraints: Sequence[Constraints | None]) -> list[str]:
        """The best translations, each as one line; a text of which none meets its constraints is translated freely."""
        steered = constraints if any(constraints) else None
        found = [several[0] for several in self.translations(texts, options, constraints=steered, progress=QUIET)]
        lines = [one.text.replace("\n", " ") for one in found]
        free = [index for index, one in enumerate(found) if one.impossible is not None]
        if free:
            # Without the terms that it must have; and if that is impossible too, without any.
            allowed = [one.allowed if (one := constraints[index]) and one.requires else None for index in free]
            for index, line in zip(free, self._lines(options, [texts[index] for index in free], allowed)):
                lines[index] = line
        return lines

    def splitter(self, language: str | None = None, *, sentences: bool = True) -> Callable[[str], list[str]]:
        """A function that cuts a text into sentences, and these at clauses, if they are longer than those learnt."""
        most: int | None = self.config.get(TRAINED_LENGTH) or self.network.max_positions

        def count(text: str) -> int:
            return len(add_special_tokens(self.network, self.tokenizer, self.tokenizer.encode(text)))

        def split(text: str) -> list[str]:
            if most is not None and count(text) > most:
                return split_to_fit(text, count, most, language)
            return split_sentences(text, language) if sentences else [text]

        return split

    def fingerprint(self) -> str:
        """A digest of the model: of its description, tokenizers, defaults and parameters."""
        parts = [repr(self.description), *(one.digest for one in self.tokenizers), repr(self.generation_config)]
        weights = (tensor.detach().cpu().contiguous().numpy().tobytes() for tensor in self.network.parameters())
        return sha256(*(part.encode() for part in parts), *weights)

    def unit_weights(self) -> Weigh | None:
        """The attention by which inline tags are placed; None, with a note, for a model without cross-attention."""
        if cross_attention_heads(self.network):
            return self.aligner.unit_weights
        return None

    @property
    def aligner(self) -> Aligner:
        """Word aligner by the alignment heads of generation_config.json, or by all cross-attention heads."""
        heads = cross_attention_heads(self.network)
        if not heads:
            raise InputError("this model has no cross-attention, so it aligns no words. Leave out --alignment "
                             "and --replace-unknown.")  # fmt: skip
        chosen: Sequence[Head] = self.generation_config.get("alignment_heads") or heads
        for layer, head in chosen:
            if (layer, head) not in heads:
                raise DamagedFile(f"this model has no cross-attention head {head} in layer {layer} "
                                  "(generation_config.json: alignment_heads). Copy the file again.")  # fmt: skip
        return Aligner(self.network, self.tokenizers, chosen)

    @property
    def alignment_heads(self) -> tuple[Head, ...]:
        """The chosen alignment heads as (layer, head); empty if none were chosen."""
        known = self.generation_config.get("alignment_heads") and cross_attention_heads(self.network)
        return tuple((layer, head) for layer, head in self.aligner.heads) if known else ()

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[Links]:
        """The word alignment of each pair: (source word, target word), counted from 0."""
        require_pairs("align", sources, targets)
        with waiting(len(sources), "aligning") as advance:
            return self.aligner.align(sources, targets, advance)

    def choose_alignment_heads(
        self, sources: Sequence[str], targets: Sequence[str], gold: Sequence[Links] | None = None
    ) -> list[Head]:
        """Choose and keep the heads that align these pairs best; `gold` are their true alignments, if known."""
        require_pairs("choose_alignment_heads", sources, targets)
        if gold is not None and len(gold) != len(sources):
            raise InputError(f"{len(sources):,} pairs and {len(gold):,} alignments: give one alignment per pair.")
        self.generation_config.pop("alignment_heads", None)
        aligner = self.aligner
        with waiting(len(sources), "aligning") as advance:
            heads = choose_heads(aligner.network, aligner.tokenizers, sources, targets, gold, advance)
        self.generation_config["alignment_heads"] = heads
        return heads

    def confidences(self, text: str, translation: str) -> list[WordConfidence]:
        """The confidence in each word of a translation of `text`, by forced decoding.

        For a language model, `text` is the prompt, and `translation` the generated text, which begins with it.
        """
        for one in (text, translation):
            require_text("confidences", one)
        self._require_decoder("confidences")
        return text_confidences(self.network, self.tokenizers, text, translation)

    def translation_confidences(
        self,
        texts: Sequence[str],
        translations: Sequence[GeneratedText],
        *,
        prefixes: Sequence[str] | None = None,
        calibrated: bool = True,
    ) -> list[Confidence]:
        """The confidence in each translation and in its words: calibrated (calibration.json), or raw probabilities."""
        self._require("translate")
        requests = translation_requests(
            self.network, self.tokenizers, texts, self.defaults(), prefixes=prefixes,
            trained_length=self.config.get(TRAINED_LENGTH),
        )  # fmt: skip
        calibration = self.calibration if calibrated else None
        return confidences(self.network, self.target_tokenizer, requests, translations, calibration)

    def calibrate(self, sources: Sequence[str], references: Sequence[str], *, progress: Progress | None = None) -> None:
        """Calibrate the confidences by pairs that were not trained on; sets `calibration`."""
        require_pairs("calibrate", sources, references)
        noted, self._noted = self._noted, True  # that a validation text is long says nothing to the caller
        best = [hypotheses[0] for hypotheses in self.translations(sources, progress=progress)]
        self._noted = noted
        raw = self.translation_confidences(sources, best, calibrated=False)
        self.calibration = calibrate(raw, [one.text for one in best], references)

    def alternatives(
        self, text: str, translation: str, at: int | str, count: int = 5, *, options: Options | None = None
    ) -> list[Alternative]:
        """The most probable words in place of a word of a translation, each with the text completed.

        `at` is the number of the word, from 0, or the word itself: the first such one.

        Everything before the word stays; what follows it is searched for anew. For a language model, `text` is the
        prompt, and `translation` the generated text, which begins with it.
        """
        for one in (text, translation):
            require_text("alternatives", one)
        self._require_decoder("alternatives")
        options = options or self.defaults()
        return alternatives(self.network, self.tokenizers, text, translation, at, options, count=count)

    @overload
    def fill(self, texts: str, *, top: int = ..., progress: Progress | None = ...) -> FilledText: ...
    @overload
    def fill(self, texts: list[str], *, top: int = ..., progress: Progress | None = ...) -> list[FilledText]: ...
    def fill(
        self, texts: str | list[str], *, top: int = 5, progress: Progress | None = None
    ) -> FilledText | list[FilledText]:
        """Tokens for each [MASK] of a text; from a span-corruption model, spans for <extra_id_0>, <extra_id_1>, ..."""
        self._require("fill")
        if top < 1:
            raise InputError(f"top must be 1 or more, got {top} (--top).")
        several = texts_of("fill", texts)
        with shown_progress(progress, len(several), "filling") as advance:
            if self.network.shape == "encoder":
                found = fill_masks(self.network, self.tokenizer, several, top=top, progress=advance)
            else:
                found = fill_spans(self.network, self.tokenizers, several, self.defaults(), top=top, progress=advance)
        return found[0] if isinstance(texts, str) else found

    @overload
    def embed(
        self, texts: Sequence[str], *, pool: str | None = ..., layer: Layer = ..., normalised: bool = ...,
        tokens: Literal[False] = ..., stateful: bool = ..., progress: Progress | None = ...,
    ) -> Vectors: ...  # fmt: skip
    @overload
    def embed(
        self, texts: Sequence[str], *, pool: str | None = ..., layer: Layer = ..., normalised: bool = ...,
        tokens: Literal[True], stateful: bool = ..., progress: Progress | None = ...,
    ) -> list[TokenVectors]: ...  # fmt: skip
    @overload
    def embed(
        self, texts: Sequence[str], *, pool: str | None = ..., layer: Layer = ..., normalised: bool = ...,
        tokens: bool = ..., stateful: bool = ..., progress: Progress | None = ...,
    ) -> Vectors | list[TokenVectors]: ...  # fmt: skip
    def embed(
        self,
        texts: Sequence[str],
        *,
        pool: str | None = None,
        layer: Layer = None,
        normalised: bool = False,
        tokens: bool = False,
        stateful: bool = False,
        progress: Progress | None = None,
    ) -> Vectors | list[TokenVectors]:
        """One vector per text, or with `tokens` one per token.

        `pool` is "mean", "first", "last" or "max"; `layer` is an index (0: the embedding) or "mix", the mean of all.
        `stateful`: each text is read from the recurrent state after the one before, as the published ELMo does.
        """
        several_texts("embed", texts)
        if tokens and pool is not None:
            raise InputError("vectors of tokens are not pooled (--tokens). Leave out --pool.")
        max_length: int | None = self.config.get(MAX_TEXT_LENGTH)
        with shown_progress(progress, len(texts), "embedding") as advance:
            engine = self._engine_to("embed")
            if engine is not None:
                return engine.embed(
                    texts, pool=pool, layer=layer, normalised=normalised, tokens=tokens, stateful=stateful,
                    progress=advance,
                )  # fmt: skip
            if tokens:
                return embed_tokens(
                    self.network, self.tokenizer, texts, layer=layer, normalised=normalised, max_length=max_length,
                    stateful=stateful, progress=advance,
                )  # fmt: skip
            return embed(
                self.network, self.tokenizer, texts, pool=pool, layer=layer, normalised=normalised,
                max_length=max_length, stateful=stateful, progress=advance,
            )  # fmt: skip

    def classify(self, texts: Sequence[Text], *, progress: Progress | None = None) -> list[Prediction]:
        """The prediction for each text or pair of texts: a label, a number, or a tag per word."""
        texts_or_pairs("classify", texts)
        self._require("classify")
        with shown_progress(progress, len(texts), "classifying") as advance:
            engine = self._engine_to("classify")
            if engine is not None:
                return engine.classify(texts, progress=advance)
            return classify(self.network, self.tokenizer, texts, advance)

    def score(self, source: Sequence[str], target: Sequence[str] | None = None) -> list[float]:
        """The log-probability of each target given its source, or of each text when there is no target."""
        return [found.total for found in self.scores(source, target)]

    def scores(
        self, source: Sequence[str], target: Sequence[str] | None = None, *, progress: Progress | None = None
    ) -> list[TextScore]:
        """The log-probability of each target given its source, or of each text, in total and per token.

        A masked language model gives the pseudo-log-likelihood: each token is masked in turn.
        """
        several_texts("score", source)
        if target is not None:
            require_pairs("score", source, target)
        both = self.network.shape == "encoder-decoder"
        self._require("score")
        if both != (target is not None):
            what, fits = ("plain texts", "pairs of source and target") if both else ("pairs", "texts alone")
            raise InputError(f"this model does not score {what}. Give {fits}.")
        with shown_progress(progress, len(source), "scoring") as advance:
            engine = self._engine_to("score")
            if engine is not None:
                return engine.scores(source, target, progress=advance)
            if target is not None:
                return score_pairs(self.network, self.tokenizers, (source, target), advance)
            score = score_texts if self.network.shape == "decoder" else score_masked
            return score(self.network, self.tokenizer, source, advance)

    def look(
        self,
        text: str,
        target: str | None = None,
        layers: str | Sequence[str] = "*",
        *,
        beam: int | None = None,
        length: int = 0,
        progress: Progress = QUIET,
    ) -> AttentionTrace:
        """The attention weights of all layers and heads for `text` and `target` (or the model's own translation).

        A language model reads `target` after the text, then generates `length` tokens itself. `layers` are names or
        wildcards, such as "decoder.*.cross". Reports progress in generated tokens.
        """
        for one in (text, *([] if target is None else [target])):
            require_text("look", one)
        if not text.strip():
            raise InputError("the text is empty, so there is nothing to attend to (text). Give at least one word.")
        if length < 0 or (length and self.network.shape != "decoder"):
            raise InputError(
                f"only a language model continues a text, by 0 or more tokens (length {length}). Leave it out."
            )
        if target is not None and self.network.shape == "encoder":
            raise InputError("this model has no decoder, so it reads no target. Leave the target out.")
        options = replace(self.defaults(), beam=1, max_tokens=length) if length else self.defaults()
        options = options if beam is None else replace(options, beam=beam)
        shown: str | Sequence[int] | None = target
        beams, heads, ended = None, self.alignment_heads, False
        if length or (target is None and self.network.shape == "encoder-decoder"):
            text = text + (target or "")
            with shown_progress(progress, length or 2 * len(self.tokenizer.encode(text)) + 50, "generating") as done:
                tree, generated = beam_tree(self.network, self.tokenizers, text, options, progress=done)
            shown, beams, ended = generated.tokens, tree if options.beam > 1 else None, generated.ended
        return trace(
            self.network, self.tokenizers, text, shown, heads, layers=layers, beams=beams, options=options, ended=ended
        )

    def lsh_recall(self, text: str, target: str | None = None, *, top: int = 64) -> LSHRecall:
        """LSH recall: the share of the `top` largest weights that hashing finds, by layer, head and hash rounds."""
        for one in (text, *([] if target is None else [target])):
            require_text("lsh_recall", one)
        if self.network.shape == "encoder-decoder" and target is None:
            target = self.translate(text)
        return lsh_recall(self.network, self.tokenizers, text, target, top=top)

    def _engine_to(self, verb: str) -> ConvertedModel | None:
        """The converted model, if it runs this command."""
        return self.engine if self.engine is not None and verb in self.engine.verbs else None

    def _require_decoder(self, what: str) -> None:
        verb = "generate" if self.network.shape == "decoder" else "translate"
        require_capability(self.description, self.tokenizer, verb, what=f"decode, so it has no {what}")

    def _require(self, verb: str) -> None:
        require_capability(self.description, self.tokenizer, verb)
