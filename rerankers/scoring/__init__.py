"""Scoring of many pairs: batches, the fast path of MP-HCNN, posts kept from earlier calls."""
