"""Layers, the parts that every model is built from: tensors in, tensors out. They know nothing of texts or files."""
