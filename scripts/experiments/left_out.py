"""Trees tested on collections that they were not trained on.

They are tested on some of the collections' training topics. The microblog years are
left out of training together, and the other collections in pairs (:data:`PAIRS`). A
cell has one of these forms:

bm25, …                 the best 100 posts of one of :data:`FIRST_STAGES`
scores, order, nothing  ``window`` over BM25's posts, given their scores in this form
eights                  the form ``order``, in batches of eight posts ranked together
cosine/scores, …        one of these forms over another first stage
scores-general, …       a form with general word frequencies, as for unseen collections
fusion                  ``fusion`` for collections of any kind, over its own searches
adapted                 ``scores`` by ``window`` with vectors adapted to the collection
trained, judged         the model of ``adapted`` trained further on four fifths of the
                        topics and measured on the fifth, in turn, without and with
                        features of the judgments for other topics
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np

from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Run
from tweetrerank.pipeline.ranking import retrievers
from tweetrerank.pipeline.ranking.frequencies import named_frequencies
from tweetrerank.pipeline.ranking.fusion_ranker import UnionRetriever
from tweetrerank.pipeline.ranking.retrievers import (
    Candidates,
    IndexRetriever,
    Retriever,
    retriever_for,
)
from tweetrerank.pipeline.training.cross_validation import fold_topics
from tweetrerank.pipeline.training.fusion_lists import fusion_lists
from tweetrerank.pipeline.training.memory_retrievers import (
    ENGINES,
    MemoryRetriever,
    memory_retrievers,
)
from tweetrerank.pipeline.training.training_set import JudgedCandidates
from tweetrerank.pipeline.training.trees import grower
from tweetrerank.pipeline.training.window_lists import FORMS, WINDOW, window_lists
from tweetrerank.rerankers import checkpoint, features, registry
from tweetrerank.rerankers.checkpoint import GENERAL, OF_POSTS
from tweetrerank.rerankers.features import FeatureTable
from tweetrerank.rerankers.features.judged import JUDGED
from tweetrerank.rerankers.pairs import Pairs
from tweetrerank.rerankers.text.vocabulary import Idf
from tweetrerank.rerankers.trees.boosting import Trees
from tweetrerank.rerankers.trees.fusion import SEARCHES
from tweetrerank.rerankers.trees.growth import grow

YEARS = ("mb2011", "mb2012", "mb2013", "mb2014")
PAIRS = (
    ("clef2020-claims-train", "xquad-de-train"),
    ("politifact-tweets-train", "jsquad-train"),
    ("semeval-cqa-b-train", "argkp-train"),
    ("stackfaq-train", "epqa-train"),
    ("twitter-url-train", "banking77-train"),
)
"""Pairs of collections left out together, which halves the number of trainings."""

FIRST_STAGES = (*SEARCHES, "engine", "standard", "cosine", "hybrid")
"""Methods of our index, and methods of search engines (``pipeline.training``)."""

FOLDS = 5  # Number of parts of a collection's topics
UNSEEN = "-general"  # Suffix of forms that do not use the collection's word frequencies
BATCHED = "eights"
BATCH = 8  # Posts in a batch

# Cells share features and models, and the work on these takes all cores.
_LOCK = Lock()


def run_of(
    form: str,
    name: str,
    most: int,
    data: Path | None,
) -> Run:
    """Return the ranking of one form for a collection.

    It is for the first training topics, and at most for ``most`` of them.
    """
    collection = named.find(name, data)
    topics = collection.training_topics[:most]
    first_stage, _, form = form.rpartition("/")
    with _LOCK:
        if form == "fusion":
            return _fusion_run(collection, topics, data)
        if form in FIRST_STAGES:
            return _first_stage(collection, form).search(topics, WINDOW).run
        retriever = _first_stage(collection, first_stage or "bm25")
        candidates = retriever.search(topics, WINDOW)
        reading = form.removesuffix(UNSEEN)
        if reading in FORMS or reading == BATCHED:
            model = _model("window", "general", collection, data)
            if form.endswith(UNSEEN):
                model = replace(model, idf=_idf(GENERAL, collection))
            return _window_run(candidates, model, reading)
        candidates = retrievers.with_resources(
            candidates, collection, judged_posts=True
        )
        model = _model("window", "adapted", collection, data)
        if form == "adapted":
            return candidates.run_of(model.score(candidates.pairs()))
        return _trained_further(candidates, model, form == "judged", collection)


def _fusion_run(
    collection: Collection, topics: Sequence[Topic], data: Path | None
) -> Run:
    model = _model("fusion", "general", collection, data)
    union = UnionRetriever.of(collection, model.config)
    candidates = replace(union.search(topics), rest={})
    return candidates.run_of(model.score(candidates.pairs()))


def _window_run(
    candidates: Candidates,
    model: Trees,
    reading: str,
) -> Run:
    """Score the candidates by a model that reads first-stage scores in one form."""
    form = "order" if reading == BATCHED else reading
    candidates = replace(candidates, forms=dict.fromkeys(candidates.run, form))
    pairs = candidates.pairs()
    if reading == BATCHED:
        pairs = _in_batches(pairs)
    return candidates.run_of(model.score(pairs))


def _first_stage(collection: Collection, name: str) -> Retriever:
    """Return the retriever of one of :data:`FIRST_STAGES`."""
    if name in SEARCHES:
        return retriever_for(collection, method=name)
    if name == "engine":
        return IndexRetriever(collection.open_index(), ENGINES)
    retrievers_in_memory = _in_memory(collection.name)
    return next(source for source in retrievers_in_memory if source.name == name)


@cache
def _in_memory(name: str) -> list[MemoryRetriever]:
    return memory_retrievers(named.find(name))


def _in_batches(pairs: Pairs) -> Pairs:
    """Return the pairs, with the list of each query cut into lists of :data:`BATCH`."""
    query_index = pairs.query_index  # [P], ascending
    places = np.arange(len(pairs)) - np.searchsorted(query_index, query_index)
    keys = np.stack([query_index, places // BATCH])  # [2, P]
    owners, numbers = np.unique(
        keys,
        axis=1,
        return_inverse=True,
    )
    queries = [pairs.queries[query] for query in owners[0].tolist()]
    return replace(
        pairs,
        queries=queries,
        query_index=numbers.reshape(-1),
        resources=(),
    )


def _trained_further(
    candidates: Candidates, start: Trees, is_judged: bool, collection: Collection
) -> Run:
    """Return the scores of each fold by a model trained further on the other folds."""
    config = start.config
    if is_judged:
        config = replace(config, families=f"{config.families},{JUDGED}")
    pairs = candidates.pairs()
    table = features.table(
        pairs,
        config.families.split(","),
        start.idf,
    )
    judged = JudgedCandidates(candidates, collection.training_qrels or {})
    relevant = judged.relevant()
    query_ids = [topic.query_id for topic in candidates.topics]
    scores = np.zeros(len(candidates), dtype=np.float32)
    for fold in fold_topics(query_ids, FOLDS, seed=1):
        is_held_out = np.isin(query_ids, fold)[pairs.query_index]
        rows = np.flatnonzero(~is_held_out)
        lists = grow(
            config,
            table.names,
            table.values[rows],
            relevant[rows],
            pairs.query_index[rows],
            start,
        )
        model = replace(start, config=config, lists=lists)
        scores[is_held_out] = model.evaluate(table.values[is_held_out])
    return candidates.run_of(scores)


def _idf(
    source: str,
    collection: Collection | None = None,
) -> Idf:
    return checkpoint.idf_from(named_frequencies(source, collection))


def _model(
    name: str, configuration: str, collection: Collection, data: Path | None
) -> Trees:
    """Return a model in a shipped configuration.

    It is grown without the collection and those that are left out together with it.
    """
    left_out: tuple[str, ...] = YEARS
    for pair in PAIRS:
        if collection.name in pair:
            left_out = pair
    source = OF_POSTS if name == "window" else GENERAL
    model = _without(name, configuration, left_out, data)
    return replace(model, idf=_idf(source, collection))


@cache
def _without(
    name: str,
    configuration: str,
    left_out: tuple[str, ...],
    data: Path | None,
) -> Trees:
    kind = registry.find(name)
    config = kind.configurations[configuration]
    lists, table = _features(name, data)
    names = features.names_of(config.families.split(","))
    table = FeatureTable(names, table.values[:, : len(names)])
    is_kept = ~np.isin(lists.groups, left_out)  # [Q]
    rows = np.flatnonzero(is_kept[lists.candidates.texts.query_index])
    trees = grower(config, lists, table)(rows)
    model: Trees = kind(
        name=name,
        config=config,
        idf=_idf(GENERAL),
        lists=trees,
    )
    return model


@cache
def _features(
    name: str,
    data: Path | None,
) -> tuple[JudgedCandidates, FeatureTable]:
    """Return the training set and its features.

    The features that adapted vectors need come last, so that they can be cut off.
    """
    config = registry.find(name).configurations["adapted"]
    names = named.training_collections(None, data, True)
    collections = [named.to_train_on(collection, data) for collection in names]
    if name == "window":
        lists = window_lists(collections, config.topics)
    else:
        indexed = [collection for collection in collections if collection.index]
        lists = fusion_lists(config, indexed)
    pairs = lists.candidates.pairs()
    table = features.table(
        pairs,
        config.families.split(","),
        _idf(GENERAL),
    )
    return lists, table
