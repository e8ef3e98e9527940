"""Explanations of a ranking, for the terminal and as HTML."""
