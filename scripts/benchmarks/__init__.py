"""Parts of ``scripts/benchmark.py``, and their common modules."""
