"""Rankers and the parts that they are made of. Read ranker.py first."""
