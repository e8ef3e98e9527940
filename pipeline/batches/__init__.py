"""Scoring of files of queries and posts, in one process or on a Ray cluster."""
