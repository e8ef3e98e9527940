"""Measures of rankings, and the significance of differences between them."""
