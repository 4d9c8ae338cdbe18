"""Models learn."""
