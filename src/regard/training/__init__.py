"""Training: settings, optimizers, the step, the loop, and what protects a run."""
