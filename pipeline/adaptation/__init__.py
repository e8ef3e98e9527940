"""Word vectors of a collection, learnt from a sentence transformer without judgments."""
