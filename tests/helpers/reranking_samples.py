"""Small vocabulary, texts and models, shared by the tests of ``rerankers``."""

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

# Fields that any model may have -> a value that makes it small.
SMALL: dict[str, Any] = {
    "word_filters": 6,
    "trigram_filters": 6,
    "filters": 6,
    "deep_filters": 6,
}
SMALL |= {
    "lstm_units": 6,
    "local_filters": 5,
    "sentence_size": 7,
    "hidden": 8,
    "trigram_size": 8,
}
SMALL |= {"channel_share": 0.05, "trigram_buckets": 2000}
SMALL |= {"trees": 8, "parts": 0, "leaves": 4, "minimum_leaf": 1, "learning_rate": 0.1}

QUERIES = [
    "bbc world service cuts",
    "water shortages in egypt",
    "protests",
    "café in münchen",
]

# (text, URL) of posts; the first three words of each query are spread over them.
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


def vocabulary() -> Vocabulary:
    """A word in two of the posts has a random vector; the others are unknown."""
    known = sorted({word for text, _ in POSTS for word in words(text)})[::2]
    vectors = np.random.default_rng(5).normal(size=(len(known), VECTOR_SIZE))
    return Vocabulary(known, vectors.astype(np.float32), buckets=64)


def encoder() -> TextEncoder:
    """Reads texts with :func:`vocabulary` and made-up document frequencies."""
    frequencies = {
        "the": 900,
        "in": 800,
        "world": 90,
        "water": 40,
        "service": 30,
        "bbc": 20,
    }
    return TextEncoder(
        vocabulary(), Idf.from_document_frequencies(frequencies, 1000, "made up")
    )


def small_config(name: str, configuration: str, **changes: Any) -> Any:
    """A named configuration with sizes for tests; changes of fields that it lacks are left out."""
    config = registry.find(name).configurations[configuration]
    fields = {field.name for field in dataclasses.fields(config)}
    sizes = {key: value for key, value in (SMALL | changes).items() if key in fields}
    return dataclasses.replace(config, **sizes)


def small_model(
    name: str, configuration: str, seed: int = 0, **changes: Any
) -> Reranker:
    """A small network with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    return registry.find(name)(
        small_config(name, configuration, **changes), vocabulary()
    ).eval()


def network(
    model: Reranker, reader: Any = None, name: str = "mp_hcnn", **more: Any
) -> Network:
    reader = reader or encoder()
    known = {"config": model.config, "idf": reader.idf, "vocabulary": reader.vocabulary}
    return Network(name=name, model=model, **known, **more)


def saved(folder: Path, name: str, configuration: str) -> Path:
    """The folder of a small untrained network, which reads with real frequencies of words."""
    reader = TextEncoder(vocabulary(), checkpoint.idf_from("wordfreq"))
    checkpoint.save(folder, network(small_model(name, configuration), reader, name))
    return folder


def scores_of(model: Reranker, pairs: Pairs, batch_size: int = 256) -> np.ndarray:
    return network(model, batch_size=batch_size).score(pairs)


def fitted(
    name: str, config: Any, pairs: Pairs, relevant: np.ndarray, **more: Any
) -> Trees:
    table = features.table(pairs, config.families.split(","), encoder().idf)
    lists = grow(config, table.names, table.values, relevant, pairs.query_index, **more)
    return registry.find(name)(name=name, config=config, idf=encoder().idf, lists=lists)


def small(name: str, configuration: str, seed: int = 0, **changes: Any) -> Model:
    """A small model of any kind; trees are fitted to random labels of all pairs."""
    if name not in TREES:
        return network(small_model(name, configuration, seed, **changes), name=name)
    config, pairs = small_config(name, configuration, **changes), all_pairs()
    return fitted(
        name, config, pairs, np.random.default_rng(seed).random(len(pairs)) < 0.4
    )


def every_model() -> list[tuple[str, str]]:
    return [
        (name, key)
        for name in registry.names()
        for key in registry.find(name).configurations
    ]


def all_pairs(
    queries: Sequence[str] = QUERIES, posts: Sequence[tuple[str, str]] = POSTS
) -> Pairs:
    """Every query with every post, query by query."""
    query_index, post_index = np.divmod(
        np.arange(len(queries) * len(posts)), len(posts)
    )
    texts, urls = ([post[part] for post in posts] for part in (0, 1))
    return Pairs(list(queries), texts, urls, query_index, post_index)


def pairs_that_rm3_orders() -> tuple[Pairs, np.ndarray]:
    """Pairs of 12 topics with 30 posts; is each relevant [P]: a topic's best ten by ``rm3``. The
    signals ``first_stage`` and ``ql`` are noise. A third of the other posts have no ``rm3``."""
    random = np.random.default_rng(4)
    posts = [
        (f"post {n} storm", f"http://x.org/{n}" if n % 3 else "") for n in range(30)
    ]
    pairs = all_pairs([f"storm {topic}" for topic in range(12)], posts)
    ranks = np.concatenate([random.permutation(30) for _ in range(12)])
    rm3 = (3.0 * pairs.query_index - 0.5 * ranks).astype(np.float32)
    rm3[ranks % 3 == 2] = np.nan
    relevant = (ranks < 15) & (ranks % 3 < 2)
    noise = random.random((2, len(pairs))).astype(np.float32)
    signals = {"rm3": rm3, "ql": noise[0], FIRST_STAGE: noise[1]}
    return dataclasses.replace(pairs, signals=signals), relevant
