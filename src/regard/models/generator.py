"""What a search needs of a network: a `Network`, or several of them that predict tokens together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, Protocol

from torch import Tensor, nn

from regard.layers.contract import Context, Memory, Source


class Generator(Protocol):
    """A network that writes token by token: an encoder-decoder, or a decoder alone."""

    vocabulary: int
    training: bool

    @property
    def shape(self) -> Literal["encoder", "decoder", "encoder-decoder"]:
        """Which stacks it has."""

    @property
    def reads(self) -> Literal["text", "prompt", "source"]:
        """What it reads: a text or a pair as a whole, a prompt to continue, or the source of a translation."""

    @property
    def max_positions(self) -> int | None:
        """How many tokens it can read at once; None when there is no bound."""

    @property
    def incremental(self) -> bool:
        """Whether later tokens never change earlier outputs, so that padding changes nothing."""

    @property
    def constant_memory(self) -> bool:
        """Whether it reads a text of any length in segments, with memory that does not grow with the text."""

    @property
    def window(self) -> int | None:
        """How many of the last tokens a query attends to at most; None when there is no bound."""

    @property
    def state_width(self) -> int:
        """The width of the hidden states that the readout reads."""

    @property
    def readout(self) -> Callable[..., Tensor]:
        """BD -> BN: the logits of hidden states."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Its parameters, which are on one device."""

    def modules(self) -> Iterator[nn.Module]:
        """Its modules."""

    def encode_source(
        self, ids: Tensor, padding: Tensor | None = None, *, context: Context | None = None, memory: Memory = None
    ) -> Source:
        """BS -> the encoder's output."""

    def decode(self, ids: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BT -> BTD: the decoder's hidden states, and its memory for the next call."""

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """The log-probabilities of logits that may have been constrained."""
