"""Which keys a query sees, by their slots alone. Padding and packed documents are the attention's business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class Everything:
    """Every key, both ways."""

    causal: ClassVar[bool] = False
    triangle: ClassVar[bool] = False

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Slots of queries (B)T and keys S -> (B)TS of booleans, or None when nothing is hidden."""
        return None


@dataclass(frozen=True)
class Causal:
    """The query's own slot and all before it."""

    causal: ClassVar[bool] = True
    triangle: ClassVar[bool] = True  # the plain shape that fused kernels know

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Slots of queries (B)T and keys S -> (B)TS of booleans."""
        return keys <= queries[..., None]


@dataclass(frozen=True)
class Window:
    """The last `length` slots, the query's own among them."""

    length: int = 256
    causal: ClassVar[bool] = True
    triangle: ClassVar[bool] = False

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Slots of queries (B)T and keys S -> (B)TS of booleans."""
        behind = queries[..., None] - keys
        return (behind >= 0) & (behind < self.length)


Pattern = Everything | Causal | Window
