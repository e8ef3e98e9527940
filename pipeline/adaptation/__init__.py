"""Word vectors that are learnt from a sentence transformer, without judgments."""
