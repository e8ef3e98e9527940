"""Boosted trees over features, which need no PyTorch; one file per model, besides shared ones."""

NAMES = ("fusion", "lambdamart", "window")
"""The files of models; a file's name is the model's name on every command line."""
