"""The candidates, requests and served model that several parts use."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from itertools import cycle
from typing import Any, cast

import numpy as np

from benchmarks import Options
from tweetrerank.pipeline.collections.named import open_collection
from tweetrerank.pipeline.ranking.retrievers import Candidates, retriever_for
from tweetrerank.pipeline.service.scorer import ServedModel
from tweetrerank.pipeline.service.served_models import Models
from tweetrerank.rerankers.trees.boosting import Trees

Row = tuple[str, str]  # (title, figure)

MODEL = "window"  # The service's default
CACHE = 1_000_000_000  # Bytes of the service's cache
LOAD = 100  # Documents in a request
SINGLE = 40  # Number of measured requests of one client, for each size


@cache
def candidates_of(options: Options) -> Candidates:
    """Return the candidates of all topics of a collection.

    They come from the official query-likelihood run if there is one, and otherwise from
    the default search.
    """
    source = open_collection(options.collection, data=options.data)
    method = "ql" if "ql" in source.runs else None
    return retriever_for(source, method).search(source.topics)


def in_turn(
    ways: Mapping[str, Callable[[], Any]],
    rounds: int,
) -> dict[str, list[Any]]:
    """Return the results of each way, one for each round.

    The ways take turns in each round, so that a slow phase of the machine affects all
    of them.
    """
    results = defaultdict(list)
    for _ in range(rounds):
        for name, way in ways.items():
            results[name].append(way())
    return results


def requests(
    options: Options,
    documents: int,
    suffix: str = "",
) -> list[bytes]:
    """Return the bodies of requests in TEI's format.

    The posts are distinct and in random order. If there are fewer candidates than
    ``documents``, one request has all of them. ``suffix`` is added to each query.
    """
    candidates = candidates_of(options)
    posts: list[Any] = []
    for post in candidates.posts.values():
        posts.append({"text": post.text, "url": post.url} if post.url else post.text)
    np.random.default_rng(1).shuffle(posts)
    size = min(documents, len(posts))
    topics = cycle(candidates.topics)
    bodies = []
    for start in range(
        0,
        len(posts) - size + 1,
        size,
    ):
        request = {
            "query": next(topics).text + suffix,
            "texts": posts[start : start + size],
            "raw_scores": True,
        }
        bodies.append(json.dumps(request).encode())
    return bodies


def served_model() -> tuple[ServedModel, Trees]:
    """Return the model that the service would load, and its trees with a cache."""
    model = Models([MODEL], CACHE).default
    return model, cast(Trees, model.checkpoint.remembering(CACHE))
