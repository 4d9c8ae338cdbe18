"""Reading of corpora: files, formats, cache, data report."""
