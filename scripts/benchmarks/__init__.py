"""Parts of ``scripts/benchmark.py``, each a function ``measure_PART`` that gives its rows."""
