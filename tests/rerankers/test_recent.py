"""Kept posts of models over features: the same scores, in bounded memory, of one source of IDF."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs, encoder

from rerankers import checkpoint, features
from rerankers.pairs import Pairs
from rerankers.text.vocabulary import Idf
from rerankers.trees.recent import RecentPosts

FAMILIES = ("given", "lexical", "overlap", "phrases", "links", "hashtags", "quality", "feedback",
            "meaning:general")  # fmt: skip
IDF = encoder().idf
OTHER_IDF = Idf.from_document_frequencies({"bbc": 3, "cuts": 1}, 10, "counted elsewhere")
EVERY = [*POSTS, *((text, text) for text in AWKWARD.values()), ("", "")]
PAIRS = all_pairs([*QUERIES, "zzz new"], EVERY)


def values(pairs: Pairs, idf: Idf = IDF, known: RecentPosts | None = None) -> list[object]:
    table = features.table(pairs, FAMILIES, idf, known).values
    return np.nan_to_num(table, nan=-1.0).tolist()


def of_query(number: int) -> Pairs:
    return PAIRS.take(np.flatnonzero(PAIRS.query_index == number))


@pytest.mark.parametrize("max_bytes", [0, 40_000, 10**6])
def test_features_are_those_of_posts_that_are_read(max_bytes: int) -> None:
    """With new and known posts, and with posts that are dropped."""
    kept = RecentPosts(max_bytes)
    for number in [*range(len(QUERIES)), 0]:
        pairs = of_query(number)
        half = pairs.take(np.arange(len(pairs) // 2))
        for part in (half, pairs):
            assert values(part, known=kept) == values(part)
            assert kept.bytes <= max_bytes
    assert (kept.hits > 0) == (kept.bytes > 0) == (max_bytes > 0)


def test_posts_of_another_source_are_not_used() -> None:
    kept, pairs = RecentPosts(10**6), of_query(0)
    for idf in (IDF, OTHER_IDF, IDF):
        assert values(pairs, idf, kept) == values(pairs, idf)
    assert not kept.hits
    words = kept.words(OTHER_IDF)
    older = kept.reader(pairs, kept.words(IDF))
    assert words is not kept.words(IDF)
    kept.words(OTHER_IDF)
    older(np.arange(len(EVERY)))  # of a call that began before
    assert not kept.bytes


def test_threads_share_the_posts() -> None:
    kept, expected = RecentPosts(40_000), [values(of_query(n)) for n in range(len(QUERIES))]
    with ThreadPoolExecutor(4) as pool:
        numbers = [*range(len(QUERIES))] * 5
        found = pool.map(lambda number: values(of_query(number), known=kept), numbers)
        assert [*found] == expected * 5
    assert 0 < kept.bytes <= kept.max_bytes


def test_a_model_keeps_posts() -> None:
    ready = checkpoint.load(checkpoint.SHIPPED / "window" / "all")
    scorer = ready.remembering(10**6)
    pairs = of_query(0)
    for hits in (0, len(EVERY)):
        assert scorer.score(pairs).tolist() == ready.score(pairs).tolist()
        assert scorer.counts[:2] == (hits, len(EVERY))
    assert 0 < scorer.counts.bytes <= 10**6
