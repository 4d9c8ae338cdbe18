"""What is remembered of texts that are read on from step to step: dealt to the parts of a step, and put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regard.errors import InputError
from regard.layers.contract import Past, leaves, refilled, select
from regard.models.model import Model


class Lanes:
    """The lanes that one process reads; none where samples come in any order."""

    def __init__(self, count: int, processes: int, model: Model) -> None:
        if count and not model.constant_memory:
            raise InputError(
                "what this model remembers grows with the text, so it cannot be carried on (text.task). "
                'Use task = "language_model", or another model, as sha_rnn.'
            )
        if count % processes:
            raise InputError(
                f"the {count:,} lanes that the text fills cannot be dealt evenly to {processes:,} processes "
                f"(text.task.rows). Use a multiple of {processes:,}, and no more lanes than there are windows."
            )
        self.count = count // processes
        self.past = Past()

    def dealt(self, parts: int) -> list[Past]:
        """What each part of a step goes on from: as lanes are dealt round, so is what is remembered of them."""
        if not self.count:
            return []
        if self.past.memory is None:
            return [Past() for _ in range(parts)]
        rows = torch.arange(self.count, device=leaves(self.past.memory)[0].device)
        return [Past(select(self.past.memory, rows[part::parts]), self.past.read) for part in range(parts)]

    def gathered(self, pasts: Sequence[Past]) -> Past:
        """The opposite of `dealt`: what the parts remember, lane by lane."""
        if not pasts:
            return Past()
        order = torch.cat([torch.arange(self.count)[part :: len(pasts)] for part in range(len(pasts))]).argsort()
        trees = zip(*(leaves(past.memory) for past in pasts))
        together = [torch.cat(parts).index_select(0, order.to(parts[0].device)) for parts in trees]
        return Past(refilled(pasts[0].memory, together), pasts[0].read)

    def tensors(self, everyone: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """All that is remembered, of every process, by number."""
        return {str(number): everyone(tensor) for number, tensor in enumerate(leaves(self.past.memory))}

    def fill(self, tensors: dict[str, Tensor], read: int, like: Past, rank: int, processes: int) -> None:
        """The opposite of `tensors`: the lanes of this process, in a tree like another."""
        kept = [tensors[str(number)] for number in range(len(tensors))]
        own = [part[rank::processes].contiguous().to(was.device) for part, was in zip(kept, leaves(like.memory))]
        self.past = Past(refilled(like.memory, own), read)
