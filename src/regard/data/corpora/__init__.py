"""Corpora that ship with the package."""
