"""Topics and judgments from click logs."""
