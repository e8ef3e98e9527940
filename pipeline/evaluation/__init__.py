"""Measures and significance."""
