"""Options, errors and runtime of commands."""
