"""The systems of the papers as cells, and the figures that their papers print."""
