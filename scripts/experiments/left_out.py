"""Trees on collections outside their training, for some of a collection's training topics.

Collections of other kinds are left out in pairs (:data:`PAIRS`), the microblog years together.
Forms of a cell:

bm25, …                 a first stage of :data:`FIRST_STAGES`, its best 100 posts
scores, order, nothing  ``window`` over BM25's, which are read in this form
eights                  the same in their order, in batches of eight that are ranked together
cosine/scores, …        such a form over another first stage
scores-general, …       with general word frequencies, as where nobody knows the collection's posts
fusion                  ``fusion`` for collections of any kind, over its own searches
adapted                 the form scores by ``window`` with vectors adapted to the collection
trained, judged         this model trained further on four fifths of the topics and measured on the
                        fifth, in turn, without and with judgments for other topics
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np

from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.trec import Qrels, Run
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
"""Collections that are left out together; half the trainings."""

FIRST_STAGES = (*SEARCHES, "engine", "standard", "cosine", "hybrid")
"""Methods of our index, and what engines do; see :mod:`tweetrerank.pipeline.training.memory_retrievers`."""

FOLDS = 5  # Parts of a collection's own topics
UNKNOWN = "-general"  # Ending of forms without frequencies of the collection's posts
BATCH = 8  # Posts of a batch of the form ``eights``

Judged = tuple[Run, Qrels]
_LOCK = Lock()  # Cells share features and models, which take all cores.


def run_of(form: str, name: str, most: int, data: Path | None) -> Run:
    """The ranking of the first training topics of a collection, ``most`` of them, in a form."""
    collection = named.find(name, data)
    topics = collection.training_topics[:most]
    first, _, form = form.rpartition("/")
    with _LOCK:
        if form == "fusion":
            model = _model(form, "general", collection, data)
            union = UnionRetriever.of(collection, model.config)
            found = replace(union.search(topics), rest={})
            return found.run_of(model.score(found.pairs()))
        if form in FIRST_STAGES:
            return _first_stage(collection, form).search(topics, WINDOW).run
        found = _first_stage(collection, first or "bm25").search(topics, WINDOW)
        if (known := form.removesuffix(UNKNOWN)) in (*FORMS, "eights"):
            model, is_whole = (
                _model("window", "general", collection, data),
                known in FORMS,
            )
            if form != known:
                model = replace(model, idf=_idf(GENERAL, collection))
            forms = dict.fromkeys(found.run, known if is_whole else "order")
            pairs = replace(found, forms=forms).pairs()
            return found.run_of(model.score(pairs if is_whole else _in_batches(pairs)))
        found = retrievers.with_resources(found, collection, judged_posts=True)
        model = _model("window", "adapted", collection, data)
        if form == "adapted":
            return found.run_of(model.score(found.pairs()))
        return _trained_further(found, model, form == "judged", collection)


def _first_stage(collection: Collection, name: str) -> Retriever:
    """One of :data:`FIRST_STAGES`."""
    if name in SEARCHES:
        return retriever_for(collection, method=name)
    if name == "engine":
        return IndexRetriever(collection.open_index(), ENGINES)
    return next(each for each in _in_memory(collection.name) if each.name == name)


@cache
def _in_memory(name: str) -> list[MemoryRetriever]:
    return memory_retrievers(named.find(name))


def _in_batches(pairs: Pairs) -> Pairs:
    """The pairs, the list of each query in lists of :data:`BATCH`."""
    of_query = pairs.query_index
    places = np.arange(len(pairs)) - np.searchsorted(of_query, of_query)
    keys = np.stack([of_query, places // BATCH])
    owners, numbers = np.unique(keys, axis=1, return_inverse=True)
    queries = [pairs.queries[query] for query in owners[0].tolist()]
    return replace(
        pairs, queries=queries, query_index=numbers.reshape(-1), resources=()
    )


def _trained_further(
    found: Candidates, start: Trees, is_judged: bool, collection: Collection
) -> Run:
    """Scores by a model that is extended on the topics of the other folds."""
    config = replace(
        start.config, families=start.config.families + f",{JUDGED}" * is_judged
    )
    pairs, scores = found.pairs(), np.zeros(len(found), dtype=np.float32)
    table = features.table(pairs, config.families.split(","), start.idf)
    relevant = JudgedCandidates(found, collection.training_qrels or {}).relevant()
    query_ids = [topic.query_id for topic in found.topics]
    for fold in fold_topics(query_ids, FOLDS, seed=1):
        is_held_out = np.isin(query_ids, fold)[pairs.query_index]
        rows = np.flatnonzero(~is_held_out)
        known = table.values[rows], relevant[rows], pairs.query_index[rows]
        model = replace(
            start, config=config, lists=grow(config, table.names, *known, start)
        )
        scores[is_held_out] = model.evaluate(table.values[is_held_out])
    return found.run_of(scores)


def _idf(source: str, collection: Collection | None = None) -> Idf:
    return checkpoint.idf_from(named_frequencies(source, collection))


def _model(name: str, configuration: str, of: Collection, data: Path | None) -> Trees:
    """A model of the shipped configuration, grown without a collection and its pair."""
    left_out = next((pair for pair in PAIRS if of.name in pair), YEARS)
    source = OF_POSTS if name == "window" else GENERAL
    return replace(_without(name, configuration, left_out, data), idf=_idf(source, of))


@cache
def _without(
    name: str, configuration: str, left_out: tuple[str, ...], data: Path | None
) -> Trees:
    kind = registry.find(name)
    config, (found, table) = kind.configurations[configuration], _features(name, data)
    names = features.names_of(config.families.split(","))
    grow_on = grower(config, found, FeatureTable(names, table.values[:, : len(names)]))
    kept = ~np.isin(found.groups, left_out)
    lists = grow_on(np.flatnonzero(kept[found.candidates.texts.query_index]))
    model: Trees = kind(name=name, config=config, idf=_idf(GENERAL), lists=lists)
    return model


@cache
def _features(name: str, data: Path | None) -> tuple[JudgedCandidates, FeatureTable]:
    """The training set and its features; those of adapted vectors come last."""
    config = registry.find(name).configurations["adapted"]
    names = named.training_collections(None, data, True)
    collections = [named.to_train_on(n, data) for n in names]
    if name == "window":
        found = window_lists(collections, config.topics)
    else:
        found = fusion_lists(config, [each for each in collections if each.index])
    table = features.table(
        found.candidates.pairs(), config.families.split(","), _idf(GENERAL)
    )
    return found, table
