"""Scoring of many pairs by networks: batches, and the fast path of MP-HCNN."""
