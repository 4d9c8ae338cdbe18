"""The sizes under which models were published."""

from __future__ import annotations


def sized(
    chosen: tuple[int, ...], width: int | None, depth: int | None, heads: int | None
) -> tuple[int, int, int]:  # fmt: skip
    """Width, depth and heads as a size has them, where nothing else is said; 64 a head in another width."""
    even = chosen[2] if width is None else max(1, width // 64)
    return width or chosen[0], depth or chosen[1], heads or even


# Width, depth, heads of the published sizes (Turc 2019 for those below base), and of T5 its inner and key widths.
GPT2 = {"small": (768, 12, 12), "medium": (1024, 24, 16), "large": (1280, 36, 20), "xl": (1600, 48, 25)}
BERT = {
    "tiny": (128, 2, 2), "mini": (256, 4, 4), "small": (512, 4, 8), "medium": (512, 8, 8), "base": (768, 12, 12),
    "large": (1024, 24, 16),
}  # fmt: skip
T5 = {
    ("1.0", "small"): (512, 6, 8, 2048, 64), ("1.0", "base"): (768, 12, 12, 3072, 64),
    ("1.0", "large"): (1024, 24, 16, 4096, 64), ("1.0", "3b"): (1024, 24, 32, 16384, 128),
    ("1.0", "11b"): (1024, 24, 128, 65536, 128), ("1.1", "small"): (512, 8, 6, 1024, 64),
    ("1.1", "base"): (768, 12, 12, 2048, 64), ("1.1", "large"): (1024, 24, 16, 2816, 64),
    ("1.1", "3b"): (2048, 24, 32, 5120, 64), ("1.1", "11b"): (4096, 24, 64, 10240, 64),
}  # fmt: skip
