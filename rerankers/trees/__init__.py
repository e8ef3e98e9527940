"""Boosted trees over features: a file per model, and shared ones; no PyTorch."""
