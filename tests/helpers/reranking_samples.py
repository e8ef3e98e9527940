"""A small vocabulary, texts and models, shared by the tests of ``rerankers``."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tweetrerank.rerankers import checkpoint, devices, features, registry
from tweetrerank.rerankers.model import Model
from tweetrerank.rerankers.networks.base import Reranker
from tweetrerank.rerankers.networks.inputs import TextEncoder
from tweetrerank.rerankers.networks.network import Network
from tweetrerank.rerankers.pairs import FIRST_STAGE, Pairs
from tweetrerank.rerankers.registry import TREES
from tweetrerank.rerankers.text.vocabulary import Idf, Vocabulary
from tweetrerank.rerankers.text.words import words
from tweetrerank.rerankers.trees.boosting import Trees
from tweetrerank.rerankers.trees.growth import grow

# On matrices as small as these, threads only wait for each other.
devices.set_threads(1)

VECTOR_SIZE = 10

SMALL: dict[str, Any] = {
    # Networks
    "channel_share": 0.05,
    "deep_filters": 6,
    "filters": 6,
    "hidden": 8,
    "local_filters": 5,
    "lstm_units": 6,
    "sentence_size": 7,
    "trigram_buckets": 2000,
    "trigram_filters": 6,
    "trigram_size": 8,
    "word_filters": 6,
    # Trees
    "learning_rate": 0.1,
    "leaves": 4,
    "minimum_leaf": 1,
    "parts": 0,
    "trees": 8,
}
"""Fields that configurations may have, with values that make a model small."""

QUERIES = [
    "bbc world service cuts",
    "water shortages in egypt",
    "protests",
    "café in münchen",
]

POSTS = [
    (
        "RT @bbc: World Service cuts 650 jobs #bbc",
        "http://www.bbc.co.uk/news/world-service-cuts",
    ),
    ("the bbc world service faces deep cuts", ""),
    ("water shortages hit egypt again", "http://guardian.co.uk/world/egypt-water"),
    ("Egypt has no water sooooo sad", ""),
    ("protests in Cairo tonight", "http://t.co/abc123"),
    ("lunch was good today", ""),
    ("I cut my hair, new world me", "http://example.com/a/b?c=d#e"),
    ("nice café in München", "https://cafe.example.de/münchen"),
    ("cuts cuts cuts", ""),
    ("no service on my phone", "http://phone.example.org/"),
    ("water", ""),
    ("service with a smile at the world cafe", ""),
]
"""(text, URL) of each post. The first three words of each query occur in some posts."""

AWKWARD = {
    "empty": "",
    "spaces": " \t\n ",
    "only mentions": "@bob @alice http://t.co/x",
    "only punctuation": "!!! ... ??? -- ''",
    "one letter": "a",
    "emoji": "\U0001f602\U0001f602 \U0001f1ea\U0001f1ec",
    "right to left": "احتجاجات في القاهرة water",
    "NUL bytes": "water\0short\0\0ages\0",
    "long": ("water shortages in egypt " * 500)[:10_000],
    "long word": "w" + "ater" * 2_500,
    "lone surrogate": "water \ud83d shortages",
    "combining marks": "w" + "\u0301" * 2_000,
}
"""An example for each kind of text that a program may misread."""


def vocabulary() -> Vocabulary:
    """Return a vocabulary with random vectors for every second word of the posts."""
    distinct = {word for text, _ in POSTS for word in words(text)}
    known = sorted(distinct)[::2]
    vectors = np.random.default_rng(5).normal(size=(len(known), VECTOR_SIZE))
    return Vocabulary(known, vectors.astype(np.float32), buckets=64)


def encoder() -> TextEncoder:
    """Return an encoder with :func:`vocabulary` and made-up document frequencies."""
    frequencies = {
        "the": 900,
        "in": 800,
        "world": 90,
        "water": 40,
        "service": 30,
        "bbc": 20,
    }
    idf = Idf.from_document_frequencies(frequencies, 1000, "made up")
    return TextEncoder(vocabulary(), idf)


def small_config(name: str, configuration: str, **changes: Any) -> Any:
    """Return a named configuration of a model, with small sizes for tests.

    Changes to fields that the configuration does not have are ignored.
    """
    config = registry.find(name).configurations[configuration]
    fields = {field.name for field in dataclasses.fields(config)}
    sizes = {key: value for key, value in (SMALL | changes).items() if key in fields}
    return dataclasses.replace(config, **sizes)


def small_model(
    name: str,
    configuration: str,
    seed: int = 0,
    **changes: Any,
) -> Reranker:
    """Return a small network with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    config = small_config(name, configuration, **changes)
    model = registry.find(name)(config, vocabulary())
    return model.eval()


def network(
    model: Reranker,
    reader: TextEncoder | None = None,
    name: str = "mp_hcnn",
    **more: Any,
) -> Network:
    reader = reader or encoder()
    return Network(
        name=name,
        model=model,
        config=model.config,
        idf=reader.idf,
        vocabulary=reader.vocabulary,
        **more,
    )


def saved(folder: Path, name: str, configuration: str) -> Path:
    """Save a small untrained network with real word frequencies; return its folder."""
    reader = TextEncoder(vocabulary(), checkpoint.idf_from("wordfreq"))
    model = small_model(name, configuration)
    checkpoint.save(folder, network(model, reader, name))
    return folder


def scores_of(
    model: Reranker,
    pairs: Pairs,
    batch_size: int = 256,
) -> np.ndarray:
    return network(model, batch_size=batch_size).score(pairs)


def fitted(
    name: str,
    config: Any,
    pairs: Pairs,
    relevant: np.ndarray,
    **more: Any,
) -> Trees:
    """Return trees fitted to features of pairs.

    ``more`` are further arguments for :func:`grow`.
    """
    families = config.families.split(",")
    table = features.table(pairs, families, encoder().idf)
    lists = grow(
        config,
        table.names,
        table.values,
        relevant,
        pairs.query_index,
        **more,
    )
    return registry.find(name)(
        name=name,
        config=config,
        idf=encoder().idf,
        lists=lists,
    )


def small(
    name: str,
    configuration: str,
    seed: int = 0,
    **changes: Any,
) -> Model:
    """Return a small model of any kind. Trees are fitted to random labels."""
    if name not in TREES:
        model = small_model(
            name,
            configuration,
            seed,
            **changes,
        )
        return network(model, name=name)
    config = small_config(name, configuration, **changes)
    pairs = all_pairs()
    relevant = np.random.default_rng(seed).random(len(pairs)) < 0.4
    return fitted(
        name,
        config,
        pairs,
        relevant,
    )


def every_model() -> list[tuple[str, str]]:
    """Return the name and the configuration of every model."""
    cases = []
    for name in registry.names():
        for configuration in registry.find(name).configurations:
            cases.append((name, configuration))
    return cases


def all_pairs(
    queries: Sequence[str] = QUERIES,
    posts: Sequence[tuple[str, str]] = POSTS,
) -> Pairs:
    """Return the pairs of every query with every post, query by query."""
    numbers = np.arange(len(queries) * len(posts))
    query_index, post_index = np.divmod(numbers, len(posts))
    texts = [text for text, _ in posts]
    urls = [url for _, url in posts]
    return Pairs(
        list(queries),
        texts,
        urls,
        query_index,
        post_index,
    )


def pairs_that_rm3_orders() -> tuple[Pairs, np.ndarray]:
    """Return the pairs of 12 topics with 30 posts, and whether each is relevant [P].

    The ten posts of a topic that are best by the signal ``rm3`` are relevant. The
    signals ``first_stage`` and ``ql`` are noise. A third of the other posts have no
    ``rm3``.
    """
    rng = np.random.default_rng(4)
    posts = []
    for number in range(30):
        url = f"http://x.org/{number}" if number % 3 else ""
        posts.append((f"post {number} storm", url))
    pairs = all_pairs([f"storm {topic}" for topic in range(12)], posts)
    ranks = np.concatenate([rng.permutation(30) for _ in range(12)])
    rm3 = (3.0 * pairs.query_index - 0.5 * ranks).astype(np.float32)
    rm3[ranks % 3 == 2] = np.nan
    relevant = (ranks < 15) & (ranks % 3 < 2)
    noise = rng.random((2, len(pairs))).astype(np.float32)
    signals = {"rm3": rm3, "ql": noise[0], FIRST_STAGE: noise[1]}
    return dataclasses.replace(pairs, signals=signals), relevant
