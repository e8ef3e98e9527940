"""Collections of topics and posts, and the files that they are read from."""
