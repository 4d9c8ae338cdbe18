"""Decoding: one beam search for all models, and what it serves: translate, generate, fill, embed, classify, score."""
