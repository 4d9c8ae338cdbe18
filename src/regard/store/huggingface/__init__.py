"""Hugging Face's format of model folders: one module per family, and what they share."""
