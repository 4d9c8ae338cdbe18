"""Texts become token ids."""
