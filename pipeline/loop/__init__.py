"""What searches and clicks of users teach: their log, interleaving, the comparison of models."""
