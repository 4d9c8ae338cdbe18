"""Models seen."""
