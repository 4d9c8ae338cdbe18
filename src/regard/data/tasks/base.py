"""Base class of tasks, ours and a user's own; and checks of their settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.samples import Samples
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError

ModelShape = Literal["encoder", "decoder", "encoder-decoder"]
Outputs = Literal["tokens", "labels", "tags", "numbers", "vectors"]

Tokenizers = tuple[Tokenizer, Tokenizer | None]
"""The tokenizer of both sides or of the source, and that of the target if it has its own."""


class TaskBase:
    """Base class of a task: what a model is trained to predict from a text.

    A task is a frozen dataclass; its fields are the keys of `text.task` in a recipe. It must provide `samples`. What
    that returns needs no base class, only the attributes of `regard.data.samples.Samples`: above all `lengths`, from
    which batches are planned, and `batch`, which makes the network's inputs (ids, padding, source_ids, ...) and its
    targets, IGNORE_INDEX where there is no loss. `FilteredSamples` and `ChunkSamples` provide the rest. All else
    below has a default. A task of one's own is named by its kind, as any other:

        regard.train(model, text="t.txt", parts=[MyTask], settings=["text.task=my_task"])
    """

    model_shape: ClassVar[ModelShape | None] = None  # None: any
    suggested_model: ClassVar[str] = "transformer"  # a function of the zoo, for an error about the shape
    outputs: ClassVar[Outputs] = "tokens"  # selects the readout
    directions: ClassVar[int] = 1  # 2: each token is predicted from the left and from the right
    aligned: ClassVar[bool] = False  # whether pairs are parallel text, so that the lengths of a pair agree

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels or tags to choose from."""
        return ()

    @property
    def max_positions(self) -> int:
        """The positions that rows may occupy, if they do not start at position 0."""
        return 0

    def with_labels_from(self, corpus: Corpus) -> Self:
        """The task with the labels of the training text."""
        return self

    def tokenizer_text(self, corpus: Corpus) -> Corpus:
        """The part of a corpus that a tokenizer is trained on."""
        return corpus

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, bpe_dropout: float = 0.0  # noqa: B008
    ) -> Samples:  # fmt: skip
        """The samples of a corpus for this task."""
        raise NotImplementedError(f"{type(self).__name__} must define samples")


@dataclass(frozen=True)
class LabelledTask(TaskBase):
    """Base class of tasks on labelled texts; one of more than `max_length` tokens is left out."""

    max_length: int = 256

    def __post_init__(self) -> None:
        require_room("max_length", self.max_length, 3)

    def tokenizer_text(self, corpus: Corpus) -> Corpus:
        return replace(corpus, targets=None)


def require_room(name: str, value: int, least: int = 1) -> None:
    """Refuse a length that has no room for a token."""
    if value < least:
        raise InputError(f"{name} = {value} leaves no room for a token (text.task.{name}). Use {least} or more.")


def require_fraction(name: str, value: float) -> None:
    """Refuse a fraction that is not between 0 and 1."""
    if not 0 < value < 1:
        raise InputError(f"{name} must lie between 0 and 1, got {value} (text.task.{name}).")


def require_one_side(corpus: Corpus, bpe_dropout: float) -> None:
    """Refuse pairs where a task needs plain text."""
    if corpus.targets is not None:
        raise InputError(
            f'{corpus.names[0]} has two sides (text.train). Name one file, or use text.task = "translation".'
        )
    require_no_bpe_dropout(bpe_dropout, "plain text")


def require_no_bpe_dropout(bpe_dropout: float, texts: str) -> None:
    """Refuse BPE-dropout for tasks other than translation."""
    if bpe_dropout:
        raise InputError(f"bpe_dropout is for translations (text.bpe_dropout). Leave it out for {texts}.")


def require_targets(corpus: Corpus) -> Sequence[str]:
    """The targets of a corpus: labels, numbers, tags or partners; refuse a corpus without them."""
    if corpus.targets is None:
        raise InputError(
            f"{corpus.names[0]} has one column (text.train). "
            'Name the text and its target: text.fields = ["text", "label"].'
        )
    return corpus.targets
