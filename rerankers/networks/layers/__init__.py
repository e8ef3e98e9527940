"""Layers shared by models."""
