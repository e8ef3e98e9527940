"""Experiments on the collections of the papers: cells, systems, tables and figures."""
