"""LSH and local attention of the Reformer: long texts in bands."""
