"""Layers that several models share, a file for each subject."""
