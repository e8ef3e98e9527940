"""Small neural rerankers for short posts: text in, scores out."""
