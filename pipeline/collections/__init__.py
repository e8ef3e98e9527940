"""Open collections of topics and posts, and read their files."""
