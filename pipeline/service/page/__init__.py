"""The page to search a collection."""
