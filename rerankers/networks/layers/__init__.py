"""Layers that several models share. Each file is about one subject."""
