"""Translation of texts and documents: line by line as `regard translate` does, long lines sentence by sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from regard.data.documents import Segment, read_document
from regard.data.documents.segments import join
from regard.decode.alternatives import word_confidences
from regard.decode.document import carry_marks, lost_atoms, sentences_of
from regard.decode.generate import GeneratedText, Request, translation_requests
from regard.decode.score import forced_log_probabilities
from regard.serve.jobs import compute, on_items, result_of
from regard.serve.models import ServedModel
from regard.serve.refusal import Refusal
from regard.serve.settings import Settings
from regard.store.loading import TRAINED_LENGTH

if TYPE_CHECKING:
    from regard.api import LoadedModel
    from regard.data.documents import Document
    from regard.decode.options import Options

Kind = Literal["text", "markdown", "html", "subtitles"]


@dataclass(frozen=True)
class Wanted:
    """What a request to translate asks for."""

    kind: Kind = "text"
    alternatives: int = 0
    alignment: bool = False
    confidence: bool = False
    split: bool = False
    beam: int | None = None


@dataclass(frozen=True)
class Source:
    """A line, or a sentence of a long one, with the white space around it, which is not translated."""

    segment: Segment
    before: str = ""
    after: str = ""

    @property
    def text(self) -> str:
        """What is translated."""
        return self.segment.text


@dataclass(frozen=True)
class Link:
    """A source, its translation and the word alignment between them."""

    source: str
    target: str
    links: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class WordProbability:
    """A word of a translated text, its span there, and its probability."""

    word: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Translated:
    """One text, translated."""

    text: str
    alternatives: list[str]
    alignment: list[Link] | None
    confidence: list[WordProbability] | None
    sources: list[str]  # as they were translated
    tokens: tuple[int, int]  # read and generated


@dataclass(frozen=True)
class _Cut:
    """A document and its sources, segment by segment."""

    document: Document
    segments: list[list[Source]]

    @property
    def sources(self) -> list[Source]:
        return [source for segment in self.segments for source in segment]


async def translate_texts(
    served: ServedModel, texts: Sequence[str], wanted: Wanted, settings: Settings
) -> list[Translated]:  # fmt: skip
    """Translate texts in one job; the results are those of `regard translate`, line by line."""
    size = sum(map(len, texts))
    cuts = await compute(lambda: [_cut(served, text, wanted) for text in texts], size)
    sources = [source.text for cut in cuts for source in cut.sources]
    if len(sources) > settings.max_lines:
        raise Refusal(400, f"Invalid request: request ({len(sources)}) exceeds line limit ({settings.max_lines})")
    options = served.model.defaults()
    n_best = 1 + wanted.alternatives
    options = replace(options, n_best=n_best, beam=max(n_best, wanted.beam or options.beam))
    asked, found = await _translated(served, sources, options)
    segments = [source.segment for cut in cuts for source in cut.sources]
    lost = lost_atoms(segments, [_line(texts[0]) for texts in found])
    again = [index for index, segment in lost.items() if segment.has_words]
    bare = await _translated(served, [lost[index].text for index in again], options)
    for index, request, several in zip(again, *bare):
        asked[index], found[index] = request, several
    tokens = sum(len(request.source or ()) for request in asked)
    if wanted.alignment:
        found = await on_items(served, _align, [*zip(sources, found)], tokens=tokens, key="align")
    read = [lost.get(index, segment) for index, segment in enumerate(segments)]
    lines = [[_line(one) for one in texts] for texts in found]
    if wanted.kind == "text":  # a line has no marks, and its numbers stay as the model wrote them
        placed = [[Segment(line) for line in some] for some in lines]
    else:
        placed = await on_items(served, _carry, [*zip(segments, read, lines)], tokens=tokens, key="carry")
    probabilities: list[list[float]] = []
    if wanted.confidence:
        best = [Request((*one.prompt, *texts[0].tokens), one.source, 0) for one, texts in zip(asked, found)]
        probabilities = await on_items(served, _forced, best, tokens=2 * tokens, key="force")
    return await compute(
        lambda: _put_together(served, cuts, wanted, asked, found, placed, probabilities), size * n_best
    )


async def _translated(
    served: ServedModel, sources: list[str], options: Options
) -> tuple[list[Request], list[list[GeneratedText]]]:
    """The requests for some sources, and their n-best translations."""
    if not sources:
        return [], []
    model = served.model
    length: int | None = model.config.get(TRAINED_LENGTH)

    def requests() -> list[Request]:
        return translation_requests(model.network, model.tokenizers, sources, options, trained_length=length)

    asked = await compute(requests, sum(map(len, sources)))
    return asked, await result_of(served.generate(asked, options))


def _carry(model: LoadedModel, items: list[tuple[Segment, Segment, list[str]]]) -> list[list[Segment]]:
    """The n-best translations of each sentence with the marks of its source."""
    rows = [(sentence, read, text) for sentence, read, texts in items for text in texts]
    sentences, sources, targets = [list(column) for column in zip(*rows)] or ([], [], [])
    carried = iter(carry_marks(sentences, sources, targets, model.unit_weights()))
    return [[next(carried) for _ in texts] for _, _, texts in items]


def _align(model: LoadedModel, pairs: list[tuple[str, list[GeneratedText]]]) -> list[list[GeneratedText]]:
    texts, found = [text for text, _ in pairs], [several[:1] for _, several in pairs]
    aligned = model.aligner.annotate(texts, found, prefixes=None, stop=(), alignment=True, replace_unknown=False)
    return [[*some, *several[1:]] for some, (_, several) in zip(aligned, pairs)]


def _forced(model: LoadedModel, requests: list[Request]) -> list[list[float]]:
    """The log-probability of each generated token; an empty translation has none."""
    some = [index for index, request in enumerate(requests) if len(request.prompt) > request.special_tokens]
    values = iter(forced_log_probabilities(model.network, [requests[index] for index in some]))
    return [next(values) if index in set(some) else [] for index in range(len(requests))]


def _cut(served: ServedModel, text: str, wanted: Wanted) -> _Cut:
    """The segments of a text, each cut into sentences; a line of plain text only if it is too long or `split` is asked.

    Only in a document with markup placeholders and addresses are carried over: a line is translated as it is.
    """
    document = read_document(text, wanted.kind)
    plain = wanted.kind == "text"
    language = None if served.languages is None else served.languages[0]
    split = served.model.splitter(language, sentences=wanted.split or not plain)
    cut = [sentences_of(segment, split, protected=not plain) for segment in document.segments]
    return _Cut(document, [[Source(one, before, after) for before, one, after in some] for some in cut])


def _put_together(
    served: ServedModel, cuts: Sequence[_Cut], wanted: Wanted, asked: Sequence[Request],
    found: Sequence[list[GeneratedText]], placed: Sequence[list[Segment]], probabilities: Sequence[list[float]],
) -> list[Translated]:  # fmt: skip
    """The translated texts: translations put back between the white space, the segments into their documents."""
    results, first = [], 0
    for cut in cuts:
        count = len(cut.sources)
        own = slice(first, first + count)
        some, requests, values = found[own], asked[own], probabilities[own]
        first += count
        text, *alternatives = [_render(cut, placed[own], rank) for rank in range(1 + wanted.alternatives)]
        links = [
            Link(source.text, _line(texts[0]), texts[0].alignment or ()) for source, texts in zip(cut.sources, some)
        ]
        words = _words(served, cut, some, values, text) if wanted.confidence else None
        read = sum(len(request.source or ()) for request in requests)
        generated = sum(len(one.tokens) for texts in some for one in texts)
        sources = [source.text for source in cut.sources]
        results.append(
            Translated(text, alternatives, links if wanted.alignment else None, words, sources, (read, generated))
        )
    return results


def _line(text: GeneratedText) -> str:
    """A translation as one line, as `regard translate` writes it."""
    return text.text.replace("\n", " ")


def _render(cut: _Cut, placed: Sequence[list[Segment]], rank: int) -> str:
    """The document with the translations of this rank, or with the best where there are fewer."""
    texts = iter(placed)
    translations = []
    for segment in cut.segments:
        parts = []
        for source in segment:
            several = next(texts)
            parts += [Segment(source.before), several[rank if rank < len(several) else 0], Segment(source.after)]
        translations.append(join(parts))
    return cut.document.render(translations)


def _words(
    served: ServedModel, cut: _Cut, found: Sequence[list[GeneratedText]], values: Sequence[list[float]], text: str
) -> list[WordProbability]:
    """The words of a translated text with their probabilities; translations stand in it in their order."""
    words, start = [], 0
    for _, several, row in zip(cut.sources, found, values):
        line = _line(several[0])
        place = text.find(line, start)
        start = start if place < 0 else place
        for one in word_confidences(served.model.target_tokenizer, several[0].tokens, row):
            words.append(WordProbability(one.word, start + one.start, start + one.end, one.probability))
        start += len(line) if place >= 0 else 0
    return words
