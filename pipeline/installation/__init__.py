"""Reranking switched on inside a search engine: what :mod:`pipeline.engine` makes there."""
