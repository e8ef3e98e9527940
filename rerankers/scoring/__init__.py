"""Scoring of many pairs: batches, fast paths, precomputed posts."""
