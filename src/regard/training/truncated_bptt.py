"""Truncated BPTT: memory carried from one segment of a text to the next, split over the micro-batches of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regard.errors import CannotResume, InputError
from regard.layers.contract import CarriedMemory, leaves, select, with_leaves
from regard.models.model import Model


class Streams:
    """The streams of text that one process reads, and their memory; none where samples come in any order."""

    def __init__(self, count: int, processes: int, model: Model) -> None:
        if count and not model.constant_memory:
            raise InputError(
                "the memory of this model grows with the text, so it cannot be carried (text.task). "
                'Use task = "language_model", or another model, such as sha_rnn.'
            )
        if count % processes:
            raise InputError(
                f"the {count:,} streams of this text cannot be split evenly over {processes:,} processes "
                f"(text.task.streams). Use a multiple of {processes:,}, and no more streams than there are windows."
            )
        self.count = count // processes
        self.carried = CarriedMemory()

    def split(self, parts: int) -> list[CarriedMemory]:
        """The memory of each micro-batch: number i has the streams i, i + parts, i + 2 parts, ..."""
        if not self.count:
            return []
        memory, position = self.carried.memory, self.carried.position
        if memory is None:
            return [CarriedMemory() for _ in range(parts)]
        rows = torch.arange(self.count, device=leaves(memory)[0].device)
        return [CarriedMemory(select(memory, rows[part::parts]), position) for part in range(parts)]

    def merged(self, parts: Sequence[CarriedMemory]) -> CarriedMemory:
        """The inverse of `split`: the memory of all streams, in their order."""
        if not parts:
            return CarriedMemory()
        order = torch.cat([torch.arange(self.count)[part :: len(parts)] for part in range(len(parts))]).argsort()
        trees = zip(*(leaves(part.memory) for part in parts))
        together = [torch.cat(rows).index_select(0, order.to(rows[0].device)) for rows in trees]
        return CarriedMemory(with_leaves(parts[0].memory, together), parts[0].position)

    def tensors(self, gather: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """The memory of the streams of all processes, its tensors numbered."""
        return {str(number): gather(tensor) for number, tensor in enumerate(leaves(self.carried.memory))}

    def load(
        self, tensors: dict[str, Tensor], position: int, like: CarriedMemory, rank: int, processes: int
    ) -> None:  # fmt: skip
        """Restore the streams of this process from `tensors`, as a tree with the structure of `like`."""
        saved, known = [tensors[str(number)] for number in range(len(tensors))], leaves(like.memory)
        if len(saved) != len(known) or any(one.dim() != old.dim() for one, old in zip(saved, known)):
            raise CannotResume(
                "the checkpoint carries the memory of another version of this model. Train it anew, or resume it with "
                "the version that wrote it."
            )
        own = [rows[rank::processes].contiguous().to(old.device) for rows, old in zip(saved, known)]
        self.carried = CarriedMemory(with_leaves(like.memory, own), position)
