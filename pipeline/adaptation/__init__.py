"""Word vectors learnt from a sentence transformer, without judgments."""
