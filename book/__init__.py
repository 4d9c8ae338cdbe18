"""Builds the book (`make docs`): hooks of mkdocs, reference pages from the code, attention pages from stored data."""
