"""One file per published model; its name is that of the model."""
