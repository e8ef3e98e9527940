"""Collections of topics and posts, the files that they are read from, and downloads."""
