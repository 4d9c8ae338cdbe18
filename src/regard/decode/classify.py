"""What a model says of texts: a name, a number, or a name for each word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Tokenizer, cut_words, word_numbers
from regard.decode.generate import Progress
from regard.decode.inputs import readings
from regard.errors import InputError
from regard.models.model import Network

UNSAID = "_"  # of a word without a token, such as a control character that the tokenizer leaves out


@dataclass(frozen=True)
class Labelled:
    """The likeliest name of a text, and how likely each is."""

    label: str
    probabilities: dict[str, float] = field(repr=False)


@dataclass(frozen=True)
class Numbered:
    """The number of a text."""

    number: float


@dataclass(frozen=True)
class Tagged:
    """The words of a text, each with its name."""

    words: tuple[tuple[str, str], ...]

    @property
    def tags(self) -> tuple[str, ...]:
        """The names alone."""
        return tuple(tag for _, tag in self.words)


Text = str | tuple[str, str]
"""A text, or two that are judged together."""

Said = Labelled | Numbered | Tagged


def classify(
    network: Network, tokenizer: Tokenizer, texts: Sequence[Text], progress: Progress = lambda done: None
) -> list[Said]:
    """What the model says of each text or pair of texts."""
    readout = network.description.readout
    if readout.says == "names" and readout.tokenwise:
        return list(_tagged(network, tokenizer, texts, progress))
    found: dict[int, Said] = {}
    for places, answers in _answers(network, tokenizer, texts, progress):
        for place, answer in zip(places, answers.softmax(-1) if readout.says == "names" else answers):
            found[place] = _labelled(network, answer) if readout.says == "names" else Numbered(float(answer[0]))
    return [found[place] for place in range(len(texts))]


def names_of(network: Network) -> tuple[str, ...]:
    """The names a model knows; none of one that says numbers."""
    found: tuple[str, ...] = getattr(network.description.readout, "names", ())
    return found


def _labelled(network: Network, probabilities: Tensor) -> Labelled:
    by_name = dict(zip(names_of(network), probabilities.tolist()))
    return Labelled(max(by_name, key=by_name.__getitem__), by_name)


def _tagged(
    network: Network, tokenizer: Tokenizer, texts: Sequence[Text], progress: Progress
) -> Iterator[Tagged]:  # fmt: skip
    """A name for each word: what is said at its first token."""
    names, alone = names_of(network), [text for text in texts if isinstance(text, str)]
    if len(alone) < len(texts):
        raise InputError("this model tags the words of one text, not of two (regard classify). Leave out --pairs.")
    chosen: dict[int, list[int]] = {}
    for places, answers in _answers(network, tokenizer, texts, progress):
        chosen |= dict(zip(places, answers.argmax(-1).tolist()))
    for place, text in enumerate(alone):
        owners = word_numbers(text, tokenizer.encode_in_place(text).spans)
        first = {owner: token for token, owner in reversed(list(enumerate(owners)))}
        tags = [
            names[chosen[place][first[number] + 1]] if number in first else UNSAID  # behind the begin
            for number in range(len(cut_words(text)))
        ]
        yield Tagged(tuple(zip((text[start:end] for start, end in cut_words(text)), tags)))


@torch.inference_mode()
def _answers(
    network: Network, tokenizer: Tokenizer, texts: Sequence[Text], progress: Progress
) -> Iterator[tuple[list[int], Tensor]]:
    """The places of some texts, and what is read out of them."""
    paired = [place for place, text in enumerate(texts) if not isinstance(text, str)]
    if paired and len(paired) < len(texts):
        raise InputError("some are texts and some are pairs of texts. Give one or the other.")
    halves = [[text] if isinstance(text, str) else list(text) for text in texts]
    sides = [tokenizer.encode_batch([half[side] for half in halves]) for side in range(2 if paired else 1)]
    for places, inputs in readings(network, tokenizer, sides, texts=["\t".join(half) for half in halves]):
        states = network.hidden_states(**inputs)  # type: ignore[arg-type]
        yield places, network.readout(states, inputs.get("padding")).float().cpu()
        progress(len(places))
