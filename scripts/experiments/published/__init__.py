"""The systems of the papers as cells, the figures that their papers print, and our own fusion."""
