"""Which keys a query sees, by their slots alone. Padding and packed documents are the attention's business."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Everything:
    """Every key, both ways."""

    causal = False

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Slots of queries (B)T and keys S -> (B)TS of booleans, or None when nothing is hidden."""
        return None


@dataclass(frozen=True)
class Causal:
    """The query's own slot and all before it."""

    causal = True

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Slots of queries (B)T and keys S -> (B)TS of booleans."""
        return keys <= queries[..., None]


@dataclass(frozen=True)
class Window:
    """The last `length` slots, the query's own among them."""

    length: int = 256
    causal = True

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Slots of queries (B)T and keys S -> (B)TS of booleans."""
        behind = queries[..., None] - keys
        return (behind >= 0) & (behind < self.length)


Pattern = Everything | Causal | Window
