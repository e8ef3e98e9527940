"""Texts to words, trigrams, identifiers and vectors."""
