"""Model folders and checkpoints on disk, in our format and in the published ones."""
