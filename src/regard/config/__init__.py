"""Recipes, and how a recipe becomes a run."""
