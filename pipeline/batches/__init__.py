"""Batch jobs: rows of input files, their scores, and Ray clusters."""
