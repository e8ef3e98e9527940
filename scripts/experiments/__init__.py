"""Experiments on the papers' collections: cells, systems, tables and figures."""
