"""Train networks: the loop, its settings, losses, optimizers, examples and sampling."""
