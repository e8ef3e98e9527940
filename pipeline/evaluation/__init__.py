"""Measures, significance, and reports of runs."""
