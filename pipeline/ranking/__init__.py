"""Rankers, and what they are made of: read ranker.py first."""
