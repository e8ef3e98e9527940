"""Collections for a notebook."""
