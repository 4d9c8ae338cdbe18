"""LSH and local attention of the Reformer (Kitaev 2020)."""
