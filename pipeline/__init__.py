"""From topics to a run file: candidates, neural scores, interpolation, evaluation."""
