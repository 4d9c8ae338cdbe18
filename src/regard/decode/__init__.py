"""Models speak: one search for all of them."""
