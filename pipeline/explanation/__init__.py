"""Explain a ranking in the terminal or as an HTML page."""
