"""Several networks that predict the next token together: an ensemble, or shallow fusion with a language model.

To a search they are one network. Its hidden states are those of all members side by side, and its memory is a tuple of
theirs, so beams are reordered and dropped as always. Members may be of any family; they share a target vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from regard.layers.contract import Context, Memory, Source
from regard.models.generator import Generator


@dataclass(frozen=True)
class MemberSources(Source):
    """The sources of all members; the fields of the first stand for all where only lengths matter."""

    members: tuple[Source | None, ...] = ()


@dataclass(frozen=True)
class Ensemble:
    """The weighted mean of the members' probabilities."""

    weights: tuple[float, ...]
    normalized = True

    def combine(self, log_probabilities: Sequence[Tensor]) -> Tensor:
        """RN each -> RN."""
        total = sum(self.weights)
        shares = torch.tensor([weight / total for weight in self.weights], device=log_probabilities[0].device)
        return (torch.stack(list(log_probabilities), dim=-1) + shares.log()).logsumexp(dim=-1)


@dataclass(frozen=True)
class ShallowFusion:
    """The log-probability of a translator plus that of a language model times a weight (Gulcehre 2015)."""

    weight: float
    normalized = False  # a sum of scores, as the paper has it

    def combine(self, log_probabilities: Sequence[Tensor]) -> Tensor:
        """RN each -> RN."""
        translator, language_model = log_probabilities
        return translator + self.weight * language_model


class CombinedNetwork(nn.Module):
    """Networks that a search drives as one; how their predictions are combined is a slot."""

    def __init__(self, members: Sequence[Generator], combination: Ensemble | ShallowFusion) -> None:
        super().__init__()
        self.members, self.combination = tuple(members), combination
        self._modules |= {str(number): member for number, member in enumerate(members) if isinstance(member, nn.Module)}
        self.vocabulary = members[0].vocabulary

    @property
    def state_width(self) -> int:
        """The width of all members' hidden states together."""
        return sum(member.state_width for member in self.members)

    @property
    def shape(self) -> Literal["encoder", "decoder", "encoder-decoder"]:
        """Which stacks the first member has."""
        return self.members[0].shape

    @property
    def reads(self) -> Literal["text", "prompt", "source"]:
        """What the first member reads."""
        return self.members[0].reads

    @property
    def max_positions(self) -> int | None:
        """How many tokens all members can read at once."""
        return min((most for member in self.members if (most := member.max_positions) is not None), default=None)

    @property
    def incremental(self) -> bool:
        """Whether padding changes nothing in any member."""
        return all(member.incremental for member in self.members)

    @property
    def constant_memory(self) -> bool:
        """Whether all members read a text of any length in segments."""
        return all(member.constant_memory for member in self.members)

    @property
    def window(self) -> int | None:
        """How many of the last tokens a query of any member attends to at most."""
        windows = [member.window for member in self.members]
        bounded = [window for window in windows if window is not None]
        return max(bounded) if len(bounded) == len(windows) else None

    @property
    def readout(self) -> Callable[..., Tensor]:
        """The combined log-probabilities of the members' hidden states."""
        return self._combined

    def encode_source(
        self, ids: Tensor, padding: Tensor | None = None, *, context: Context | None = None, memory: Memory = None
    ) -> Source:
        """BS -> the sources of all members with an encoder."""
        found = [
            None if member.shape == "decoder" else member.encode_source(ids, padding, context=context, memory=memory)
            for member in self.members
        ]
        first = found[0]
        assert first is not None
        return MemberSources(first.states, first.padding, first.final_state, first.embedded, tuple(found))

    def decode(self, ids: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BT -> BTD: the hidden states of all members side by side, and the tuple of their memories."""
        memories = [None] * len(self.members) if memory is None else memory
        states, kept = [], []
        for number, member in enumerate(self.members):
            # What is recorded, for the coverage penalty, is the attention of the first member.
            own = replace(context, source=self._source(context, number), record=None if number else context.record)
            some, remembered = member.decode(ids, own, memories[number])
            states.append(some)
            kept.append(remembered)
        return torch.cat(states, dim=-1), tuple(kept)

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """...N -> ...N: normalized again after constraints, unless the scores are a sum."""
        return logits.log_softmax(dim=-1) if self.combination.normalized else logits

    def _combined(self, states: Tensor) -> Tensor:
        parts = states.split([member.state_width for member in self.members], dim=-1)
        found = [member.log_probabilities(member.readout(part).float()) for member, part in zip(self.members, parts)]
        return self.combination.combine(found)

    def _source(self, context: Context, number: int) -> Source | None:
        return context.source.members[number] if isinstance(context.source, MemberSources) else None
