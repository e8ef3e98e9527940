"""Boosted trees over features, which need no PyTorch; one file per model, besides
shared ones.
"""
