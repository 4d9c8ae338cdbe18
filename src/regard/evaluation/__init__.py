"""Models evaluated, compared and checked against the laws."""
