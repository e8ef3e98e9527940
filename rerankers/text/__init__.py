"""Reading of texts: words, stems, trigrams, identifiers, word vectors."""
