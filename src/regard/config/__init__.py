"""Configuration: recipes, what they set up, and training runs from them."""
