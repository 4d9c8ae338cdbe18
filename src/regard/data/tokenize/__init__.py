"""Tokenizers, their training, and encoding of texts as token ids or characters."""
