"""Local attention: patterns that see what is near only, in bands."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.parts.banded import Band
from regard.parts.pattern import Near, Pattern


def local_bands(see: Pattern, length: int, rows: int, realm: Tensor | None, device: torch.device) -> list[Band] | None:
    """A band of the text as it stands; None for a pattern that looks anywhere in it."""
    near = see.near(length)
    if near is None:
        return None
    along = torch.arange(near.whole, device=device, dtype=torch.int32).expand(rows, -1)
    tokens, places = along.clamp_max(length - 1), along[:, None, :length]
    hide = Strangers(see, near, length, realm, device)
    return [Band(tokens, places, near.chunk, near.before, near.after, hide)]


@dataclass(frozen=True)
class Strangers:
    """What is hidden among neighbours: what the pattern does not see, other realms, and what is no token.

    What a pattern finds in chunks it finds by distance and place in the chunk, so that all within a text are alike.
    """

    see: Pattern
    near: Near
    length: int
    realm: Tensor | None  # NT
    device: torch.device

    def __call__(self, rows: slice, chunks: slice) -> Tensor:
        """-> (1|n)cCW."""
        chunk, before, after, whole, joined = self.near
        count = chunks.stop - chunks.start
        if self.realm is None and chunks.start >= before and (chunks.stop + after) * chunk <= self.length:
            chunks = slice(chunks.start, chunks.start + 1)
        slots = torch.arange((chunks.start - before) * chunk, (chunks.stop + after) * chunk, device=self.device)
        own: Tensor = slots[before * chunk : len(slots) - after * chunk].unflatten(0, (-1, chunk))
        around = (slots % whole if joined else slots).unfold(0, (before + 1 + after) * chunk, chunk)[:, None]
        pattern = self.see.sees(own, around)
        seen = ((around >= 0) & (around < self.length))[None]
        seen = seen if pattern is None else seen & pattern
        if self.realm is not None:
            realm = F.pad(self.realm[rows], (0, 1), value=-1)
            asker, answerer = (realm[:, part.clamp(0, self.length)] for part in (own, around))
            seen = seen & (asker[..., None] == answerer)
        hidden = ~(seen | (around == own[..., None]))
        hide = torch.zeros(hidden.shape, device=self.device).masked_fill_(hidden, -torch.inf)
        return hide.expand(-1, count, -1, -1)
