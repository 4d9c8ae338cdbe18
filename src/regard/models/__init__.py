"""Parts become models; `zoo` is the page to read first."""
