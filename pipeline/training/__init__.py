"""Training sets, folds of topics, and tuning of λ."""
