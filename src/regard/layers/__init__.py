"""Tensors to tensors: the few parts that every model is made of."""
