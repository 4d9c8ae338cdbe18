"""Attention pages: traces, summaries, ablations, and the HTML that shows them."""
