"""Read texts: cut them into words, stems and trigrams, and find their word vectors."""
