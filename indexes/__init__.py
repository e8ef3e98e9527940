"""Collections of posts and their search indexes."""
