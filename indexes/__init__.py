"""Collections of posts, and ways to search them."""
