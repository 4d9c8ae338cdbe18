"""Models judged."""
