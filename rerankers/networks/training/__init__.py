"""Training of networks: loop, settings, losses, optimizers, examples and sampling."""
