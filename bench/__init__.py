"""Benchmarks: regard and a peer in one process, in turns, on the same text."""
