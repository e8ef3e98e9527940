"""The training loop, its settings, losses and optimizers."""
