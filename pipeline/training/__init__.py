"""Build training sets, train models on folds of topics, and tune λ."""
