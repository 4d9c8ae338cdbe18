"""Engines: other programs that run a converted model, chosen where they answer as torch does."""
