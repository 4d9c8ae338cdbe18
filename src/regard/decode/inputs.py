"""What a model can be asked to do; that follows from what it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from regard.data.tokenize.characters import Characters, spell_texts, spellings
from regard.data.tokenize.encode import Frame, padding_of, rows_of
from regard.data.tokenize.tokenizer import SPECIALS, Tokenizer
from regard.decode.generate import by_length, opened, padded, require_room
from regard.errors import InputError
from regard.models.model import Model, Network


def verbs(model: Model, tokenizer: Tokenizer) -> tuple[str, ...]:
    """The verbs that fit a model, first the one it was made for."""
    if model.readout.says == "vectors":
        return ("embed",)
    if model.readout.says != "words":
        return "classify", "embed"
    if model.decoder is None:
        # Who says each token from its two sides has never seen a mask.
        return ("fill", "score", "embed") if model.readout.sides == 1 else ("embed",)
    if model.encoder is None:
        return "generate", "score", "embed"
    return ("translate", "score", "embed", *(("fill",) if tokenizer.sentinels else ()))


def require_verb(model: Model, tokenizer: Tokenizer, verb: str, what: str | None = None) -> None:
    """Refuse what a model was not made for; `what` says it in other words than the verb."""
    known = verbs(model, tokenizer)
    if verb not in known:
        raise InputError(f"this model does not {what or verb}; it was made to {known[0]}. Try: regard {known[0]}.")


Tokens = Sequence[Sequence[int]]
"""The tokens of some texts."""


def readings(
    network: Network, tokenizer: Tokenizer, sides: Sequence[Tokens], *, texts: Sequence[str] = (), what: str = "text"
) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """The places of some texts, and what the network is given to read them; `sides` are the texts, or two of each.

    A model that reads letters and knows no words needs the `texts` themselves.
    """
    table = _spellings(network, tokenizer)
    around = Frame.of(tokenizer).around(len(sides)) if _framed(network) else 1
    lengths = [sum(map(len, rows)) + around for rows in zip(*sides)]
    for place, rows in enumerate(zip(*sides)):
        require_room(network, length_of(network, tokenizer, rows), f"{what} {place + 1:,}")
    for places in by_length(lengths):
        inputs = inputs_of(network, tokenizer, [[side[place] for place in places] for side in sides])
        if table is not None:
            inputs["ids"] = _looked_up(table, inputs["ids"])
        elif network.description.embed.letters:
            inputs["ids"] = _spelled(network, tokenizer, [texts[place] for place in places])
        yield places, inputs


def _spellings(network: Network, tokenizer: Tokenizer) -> Characters | None:
    """How each token is spelled, for a model that reads letters and has learnt which tokens there are."""
    letters = network.description.embed.letters
    if not letters or tokenizer.vocabulary <= len(SPECIALS):
        return None
    return np.asarray(spellings(tokenizer, letters=letters))


def as_read(network: Network, tokenizer: Tokenizer, ids: Tensor, *, text: str | None = None) -> Tensor:
    """BT -> what the network reads of these tokens: their numbers, or BTC, the letters of each.

    A model that reads letters and knows no words needs the `text` that they are.
    """
    table = _spellings(network, tokenizer) if ids.dim() == 2 else None
    if table is None and text is not None and network.description.embed.letters:
        return _spelled(network, tokenizer, [text]).to(ids.device)
    return ids if table is None else _looked_up(table, ids)


def _spelled(network: Network, tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """-> BTC: the letters of each word, whatever words there are."""
    return torch.from_numpy(spell_texts([*map(tokenizer.words, texts)], network.description.embed.letters)[0])


def _looked_up(table: Characters, ids: Tensor) -> Tensor:
    return torch.from_numpy(table[ids.cpu().numpy()]).to(ids.device)


def inputs_of(network: Network, tokenizer: Tokenizer, sides: Sequence[Tokens]) -> dict[str, Tensor]:
    """What the network is given to read some texts: ids, padding where they differ in length, segments of pairs."""
    device = next(network.parameters()).device
    if not _framed(network):
        rows = [_bare(network, tokenizer, ids) for ids in sides[0]]
        ids, padding = padded(rows, device)
        return {"ids": ids} if padding is None else {"ids": ids, "padding": padding}
    framed = Frame.of(tokenizer).put([rows_of(texts) for texts in sides])
    inputs = {"ids": torch.from_numpy(framed.ids), **padding_of("padding", framed.lengths)}
    if len(sides) > 1 and getattr(network.description.embed, "segments", 0) > 1:  # RoBERTa has one, for all texts
        inputs["segments"] = torch.from_numpy(framed.segments)
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def row_of(network: Network, tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[int, ...]:
    """A text's tokens in their frame."""
    if _framed(network):
        return (tokenizer.begin, *ids, tokenizer.end)
    return _bare(network, tokenizer, ids)


def length_of(network: Network, tokenizer: Tokenizer, texts: Sequence[Sequence[int]]) -> int:
    """How many tokens are read of a text or a pair of texts."""
    if _framed(network):
        return sum(map(len, texts)) + Frame.of(tokenizer).around(len(texts))
    return len(_bare(network, tokenizer, texts[0]))


def _framed(network: Network) -> bool:
    """Whether texts stand between a begin and an end; not those of models that go on with a text or translate it."""
    model = network.description
    return model.decoder is None or model.readout.says != "words"


def _bare(network: Network, tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[int, ...]:
    """A source, with its end behind it; or a prompt, with what opens it."""
    return opened(tokenizer, ids) if network.encoder is None else (*ids, tokenizer.end)
