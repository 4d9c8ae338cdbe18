"""Hugging Face folders, read and written: one literal table per family."""
