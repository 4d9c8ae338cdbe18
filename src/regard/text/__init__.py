"""Text becomes batches: corpora, tokenizers, what is to be learnt, and in which order."""
