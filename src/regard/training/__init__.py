"""Training: settings, steps, the loop, validation, distributed strategies, logs."""
