"""The comparisons that MP-HCNN makes: words, the post's trigrams, those of its URL.

Rao et al. (AAAI 2019), Table 4, which leaves them out one by one; lengths are those of section 4.3.
"""

from typing import Any, NamedTuple

from rerankers.base import TRIGRAMS, URL_TRIGRAMS, WORDS

# Section 3.3: the weights of longer phrases are too sparse to use.
WEIGHTED_WORD_LEVELS, WEIGHTED_TRIGRAM_LEVELS = 2, 3


class Perspective(NamedTuple):
    """What is compared with what.

    Attributes:
        query_input: read of the query.
        post_input: read of the post.
        post_length: positions of a post that are read.
        query_length: positions of a query that are read.
        width: terms under a filter.
        weighted: levels, from the term vectors on, whose matches are scaled by IDF.
    """

    query_input: str
    post_input: str
    post_length: int
    query_length: int
    width: int
    weighted: int


def perspectives_of(config: Any) -> dict[str, Perspective]:
    """The comparisons that the model's settings switch on, by name."""
    trigrams = (config.query_trigrams, config.trigram_width, WEIGHTED_TRIGRAM_LEVELS)
    perspectives = {}
    if config.use_words:
        perspectives["words"] = Perspective(
            WORDS, WORDS, config.post_words, config.query_words, config.word_width,
            WEIGHTED_WORD_LEVELS,
        )  # fmt: skip
    if config.use_post_trigrams:
        perspectives["post_trigrams"] = Perspective(
            TRIGRAMS, TRIGRAMS, config.post_trigrams, *trigrams
        )
    if config.use_url_trigrams:
        perspectives["url_trigrams"] = Perspective(
            TRIGRAMS, URL_TRIGRAMS, config.url_trigrams, *trigrams
        )
    return perspectives
