"""Decoding: beam search and sampling for all models; translate, generate, fill, embed, classify, score, align."""
