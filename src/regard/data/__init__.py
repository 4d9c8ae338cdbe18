"""Data: from text to batches, by corpora, tokenizers, tasks, samples and the batch sampler."""
