"""Text becomes batches: corpora, tokenizers, tasks, samples and the order in which they come."""
