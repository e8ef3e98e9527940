"""Parts of ``scripts/benchmark.py``."""
