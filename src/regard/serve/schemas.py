"""Requests and replies of the HTTP interface as pydantic models, from which /openapi.json is made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from regard.serve.body import form_switch

Switch = Annotated[bool, BeforeValidator(form_switch, json_schema_input_type=bool)]
Ids = Annotated[list[int], Field(min_length=1)]


class Asked(BaseModel):
    """A request; a parameter that is not known is refused, never ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Given(BaseModel):
    """A reply, or a part of one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# Errors


class ErrorDetails(Given):
    """What was wrong, in OpenAI's shape."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(Given):
    """An error of the routes under /v1."""

    error: ErrorDetails


class PlainError(Given):
    """An error of all other routes, in LibreTranslate's shape."""

    error: str


# /v1/completions


class StreamOptions(Asked):
    """What a stream holds besides its text."""

    include_usage: bool = False


class CompletionRequest(Asked):
    """A text to continue, or the source that an encoder-decoder translates."""

    model: str
    prompt: str | list[str] | Ids | list[Ids] = Field(
        description="A text, several texts, or token ids, to which special tokens are added. "
        "For an encoder-decoder: the source."
    )
    max_tokens: int | None = Field(
        None,
        ge=0,
        description="New tokens. By default 16; for an encoder-decoder, as many as `regard translate` allows.",
    )
    temperature: float | None = Field(
        None, ge=0, le=100,
        description="0 is greedy search. By default 1; an encoder-decoder searches with its own beam by default.",
    )  # fmt: skip
    top_p: float | None = Field(None, ge=0, le=1, description="Nucleus sampling.")
    top_k: int | None = Field(None, ge=0, le=1 << 31, description="Sample from the k most likely tokens.")
    min_p: float | None = Field(None, ge=0, le=1, description="Sample from tokens at least so likely as the best.")
    n: int | None = Field(None, ge=1, description="Choices per prompt.")
    best_of: int | None = Field(None, ge=1, description="Sample so many, return the n most likely.")
    beam: int | None = Field(None, ge=1, description="Beam search with so many beams, instead of sampling.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(None, ge=0, description="Log-probabilities of each token and of so many others.")
    echo: bool | None = Field(None, description="Repeat the prompt; with max_tokens 0 and logprobs it is scored.")
    stop: str | list[str] | None = Field(None, description="Texts that end a choice; they are not returned.")
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = Field(None, description="Added to the logits, by token id: -100 to 100.")
    seed: int | None = Field(None, ge=-(1 << 63), le=(1 << 63) - 1)
    suffix: str | None = Field(None, description="What follows the gap to fill, for models that fill.")
    user: str | None = Field(None, description="Accepted, not used.")


class Logprobs(Given):
    """The log-probabilities of a choice's tokens; the first token of a text may have none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class Choice(Given):
    """One completion of one prompt."""

    text: str
    index: int
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"] | None


class Usage(Given):
    """Counted tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class InputUsage(Given):
    """Counted tokens of a request that generates none."""

    prompt_tokens: int
    total_tokens: int


class CompletionReply(Given):
    """The completions of all prompts; a stream sends objects of the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


# /v1/embeddings, /v1/score, /v1/fill, /v1/classify, /v1/models


class EmbeddingRequest(Asked):
    """Texts to embed."""

    model: str
    input: str | list[str] = Field(description="A text, or several.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: little-endian 32-bit floats. By default float."
    )
    dimensions: int | None = Field(None, ge=1, description="Only the first so many numbers of each vector.")
    user: str | None = Field(None, description="Accepted, not used.")


class Embedding(Given):
    """The vector of one text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingReply(Given):
    """The vectors of all texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: InputUsage


class ScoreRequest(Asked):
    """Texts whose log-probability is asked; an encoder-decoder scores targets, given their sources."""

    model: str
    input: str | list[str] = Field(description="Texts, or the sources of targets.")
    target: str | list[str] | None = Field(None, description="As many as inputs, for an encoder-decoder only.")


class TokenScore(Given):
    """A token and its log-probability in nats."""

    token: str
    logprob: float


class Score(Given):
    """The log-probability of one text in nats."""

    object: Literal["score"]
    index: int
    score: float
    tokens: list[TokenScore]


class ScoreReply(Given):
    """The scores of all texts."""

    object: Literal["list"]
    data: list[Score]
    model: str
    usage: InputUsage


class FillRequest(Asked):
    """Texts with masks: [MASK], <mask>, or <extra_id_0>, <extra_id_1>, ... of a span-corruption model."""

    model: str
    input: str | list[str]
    top: int | None = Field(None, ge=1, description="Candidates per mask; by default 5.")


class MaskCandidate(Given):
    """A candidate for one mask."""

    text: str
    tokens: list[int]
    probability: float


class Filled(Given):
    """A text with its masks filled, and the candidates for each mask, best first."""

    object: Literal["fill"]
    index: int
    text: str
    masks: list[list[MaskCandidate]]


class FillReply(Given):
    """The filled texts."""

    object: Literal["list"]
    data: list[Filled]
    model: str
    usage: InputUsage


TextPair = Annotated[list[str], Field(min_length=2, max_length=2)]


class ClassifyRequest(Asked):
    """Texts, or pairs of texts, to classify."""

    model: str
    input: str | list[str] | list[TextPair] = Field(description="A text, several, or several pairs.")


class Classified(Given):
    """A label with the probabilities of all labels, a number, or a tag per word."""

    object: Literal["classification"]
    index: int
    label: str | None = None
    probabilities: dict[str, float] | None = None
    number: float | None = None
    words: list[tuple[str, str]] | None = None


class ClassifyReply(Given):
    """The predictions for all texts."""

    object: Literal["list"]
    data: list[Classified]
    model: str
    usage: InputUsage


class ModelCard(Given):
    """A model that is served here."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    capabilities: list[str]
    languages: list[str] | None
    engine: str


class ModelList(Given):
    """The models that are served here."""

    object: Literal["list"]
    data: list[ModelCard]


# LibreTranslate


class TranslateRequest(Asked):
    """Text to translate, as JSON or as a form."""

    q: str | list[str] = Field(description="A text, or several (JSON only). Every line is translated on its own.")
    source: str = Field(description="The code of the source language, or auto.")
    target: str = Field(description="The code of the target language.")
    format: Literal["text", "html"] | None = None
    alternatives: int | None = Field(None, ge=0, description="So many more translations of each text.")
    beam: int | None = Field(None, ge=1, description="Beam search with so many beams, instead of the model's own.")
    api_key: str | None = None
    secret: str | None = Field(None, description="Accepted, not used.")
    alignment: Switch = Field(False, description="Add word alignments: (source word, target word) per line.")
    confidence: Switch = Field(False, description="Add the probability of each word of the translation.")
    attention: Switch = Field(False, description="Add the address of a page that shows the attention (one line only).")
    split: Switch = Field(False, description="Cut every line into sentences, and translate these.")
    model: str | None = Field(None, description="The model that translates; by default the first of the pair.")


class DetectedLanguage(Given):
    """A language, and how sure the detector is, in percent."""

    language: str
    confidence: float


class Word(Given):
    """A word of a translation, its place in it, and its probability."""

    word: str
    start: int
    end: int
    probability: float


class AlignedLine(Given):
    """One source as it was translated, its translation, and the links (source word, target word) between them."""

    source: str
    target: str
    links: list[tuple[int, int]]


class TranslateReply(Given):
    """The translations; for a list of texts, every value is a list."""

    translatedText: str | list[str]  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None  # noqa: N815
    alignment: list[AlignedLine] | list[list[AlignedLine]] | None = None
    confidence: list[Word] | list[list[Word]] | None = None
    attention: str | list[str] | None = None


class DetectRequest(Asked):
    """Text whose language is asked, as JSON or as a form."""

    q: str
    api_key: str | None = None


class Language(Given):
    """A language, and those that it can be translated into."""

    code: str
    name: str
    targets: list[str]


class TranslateFileForm(Asked):
    """A file to translate."""

    file: Any = Field(
        description="A .txt or .html file in UTF-8.", json_schema_extra={"type": "string", "format": "binary"}
    )
    source: str
    target: str
    api_key: str | None = None
    model: str | None = None


class TranslateFileReply(Given):
    """Where the translated file is."""

    translatedFileUrl: str  # noqa: N815


class Health(Given):
    """The server is up, and its models are loaded."""

    status: Literal["ok"]


class LanguageName(Given):
    """A language."""

    code: str
    name: str


class FrontendLanguages(Given):
    """The languages that a front end shows first."""

    source: LanguageName
    target: LanguageName


class FrontendSettings(Given):
    """What LibreTranslate's front ends ask for."""

    apiKeys: bool  # noqa: N815
    charLimit: int  # noqa: N815
    filesTranslation: bool  # noqa: N815
    frontendTimeout: int  # noqa: N815
    keyRequired: bool  # noqa: N815
    language: FrontendLanguages
    suggestions: bool
    supportedFilesFormat: list[str]  # noqa: N815
