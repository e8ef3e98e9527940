"""Models of boosted trees over features, which need no PyTorch.

Each model has a separate file: ``fusion``, ``lambdamart`` and ``window``. The models
share the other files.
"""
