"""The web page to search a collection."""
