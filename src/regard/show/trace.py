"""What a model attends to, as numbers with names."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.decode.frames import as_read, row_of
from regard.errors import InputError
from regard.models.model import Network
from regard.parts.contract import Record
from regard.show.page import page
from regard.store.files import write_file
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Seen:
    """Tokens and the weights of every layer and head: each tensor is heads, queries, keys."""

    source_tokens: list[str]
    target_tokens: list[str]
    weights: dict[str, Tensor] = field(repr=False)
    aligners: tuple[tuple[int, int], ...] = ()  # the layers and heads that align best, where they are known

    @property
    def encoder_attentions(self) -> tuple[Tensor, ...]:
        """Per layer (1, heads, source, source)."""
        return self._attentions("encoder", "self")

    @property
    def decoder_attentions(self) -> tuple[Tensor, ...]:
        """Per layer (1, heads, target, target)."""
        return self._attentions("decoder", "self")

    @property
    def cross_attentions(self) -> tuple[Tensor, ...]:
        """Per layer (1, heads, target, source)."""
        return self._attentions("decoder", "cross")

    @property
    def telling(self) -> dict[str, Tensor]:
        """The weights to look at first: of the heads that align best, or all of them where none is known to."""
        if not self.aligners:
            return self.weights
        chosen: dict[str, Tensor] = {}
        for layer in sorted({layer for layer, _ in self.aligners}):
            heads = [head for of, head in self.aligners if of == layer]
            names = [name for name in self.weights if name.startswith(f"decoder.{layer}.") and name.endswith("cross")]
            chosen |= {name: self.weights[name][heads] for name in names}
        return chosen

    def alignment(self) -> Tensor:
        """Target by source: how much each target token attends to each source token; the mean of what tells most."""
        crossing = [weights for name, weights in self.telling.items() if name.endswith("cross")]
        if not crossing:
            raise InputError("this model does not attend to a source, so there is no alignment.")
        return torch.cat(crossing).mean(dim=0)

    def save(self, path: str | Path) -> None:
        """Write one HTML file that needs nothing else."""
        write_file(Path(path), self.html().encode())

    def html(self) -> str:
        """The page that `save` writes."""
        return page(self.source_tokens, self.target_tokens, self.weights)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html())}" width="100%" height="600" frameborder="0"></iframe>'

    def _attentions(self, side: str, kind: str) -> tuple[Tensor, ...]:
        return tuple(w[None] for name, w in self.weights.items() if name.startswith(side) and name.endswith(kind))


def trace(
    network: Network,
    tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    text: str,
    target: str | None,
    aligners: tuple[tuple[int, int], ...] = (),
) -> Seen:
    """Read a text (and say a target) once, with a record of what every layer attends to."""
    record = Record()
    inputs, source, said = read_once(network, (tokenizer, target_tokenizer), text, target)
    with torch.inference_mode():
        network.states(**inputs, record=record)
    weights = {name: record.matrix(name)[0].cpu() for name in record.rows}
    return Seen(tokenizer.token_texts(source), target_tokenizer.token_texts(said), weights, aligners)


def read_once(
    network: Network, tokenizers: tuple[Tokenizer, Tokenizer], text: str, target: str | None
) -> tuple[dict[str, Any], list[int], list[int]]:
    """What a network is given to read a text (and say a target) once; the tokens of the source and of what is said."""
    tokenizer, target_tokenizer = tokenizers
    device = next(network.parameters()).device
    inputs: dict[str, Any] = {}
    if network.encoder is None or network.decoder is None:
        ids = [*row_of(network, tokenizer, tokenizer.encode(text))]
        source, said = ([], ids) if network.encoder is None else (ids, [])
    else:
        source = [*tokenizer.encode(text), tokenizer.end]
        inputs["source_ids"] = torch.tensor([source], device=device)
        said = target_tokenizer.encode(target or "")
        ids = [target_tokenizer.begin, *said]
        said = [*said, target_tokenizer.end]
    inputs["ids"] = as_read(network, tokenizer, torch.tensor([ids], device=device))
    return inputs, source, said
