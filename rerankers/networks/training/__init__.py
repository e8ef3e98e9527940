"""The training loop, its settings, losses, negatives and optimizers."""
