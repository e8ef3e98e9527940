"""Measures that some tables add to the results of their cells."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from experiments.cell_runs import means
from experiments.cells import Result, Setup
from experiments.tables import CLEAN, Table
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.folders import default_vectors
from tweetrerank.pipeline.collections.trec import read_run
from tweetrerank.rerankers import checkpoint
from tweetrerank.rerankers.text.vectors import read_vectors
from tweetrerank.rerankers.text.words import words
from tweetrerank.rerankers.trees.boosting import Trees

_HASHTAG = re.compile(r"(?:^|\s)##?\s?\w")


def with_measures(
    results: Sequence[Result],
    measures_of: Callable[[Result], dict[str, float]],
) -> list[Result]:
    """Return the results with additional measures."""
    return [
        replace(result, measures=result.measures | measures_of(result))
        for result in results
    ]


def sizes(
    table: Table,
    results: Sequence[Result],
    setup: Setup,
) -> list[Result]:
    """Return the results with the sizes of the collections as their measures.

    The sizes are counted over the official query-likelihood run.
    """
    vocabulary = set(read_vectors(default_vectors(setup.data)).words)
    return [
        replace(result, measures=_sizes(result, setup, vocabulary))
        for result in results
    ]


def _sizes(
    result: Result,
    setup: Setup,
    vocabulary: set[str],
) -> dict[str, float]:
    collection = setup.collection(result.cell.collection)
    run = read_run(collection.runs["ql"])
    posts = {post.doc_id: post for post in collection.posts()}
    candidates: list[Post] = []
    relevant = 0
    qrels = collection.qrels
    for query_id, scores in run.items():
        candidates += [posts[doc_id] for doc_id in scores]
        grades = (qrels or {}).get(query_id, {})
        relevant += sum(grades.get(doc_id, 0) > 0 for doc_id in scores)
    distinct: set[str] = set()
    for post in candidates:
        distinct.update(words(post.text))
    measures: dict[str, float] = {
        "topics": len(run),
        "query-document pairs": len(candidates),
        "unique words": len(distinct),
        "unique OOV words": len(distinct - vocabulary),
        "URLs": sum(bool(post.url) for post in candidates),
        "hashtags": sum(bool(_HASHTAG.search(post.text)) for post in candidates),
    }
    if qrels is not None:
        measures["relevant documents"] = relevant
    return measures


def clean_questions(
    table: Table, results: Sequence[Result], setup: Setup
) -> list[Result]:
    """Return the results, and those of the same runs on the clean questions alone.

    Clean questions need no separate training. The questions that they leave out
    change neither the training nor the choice of the epoch, because every ranking of
    their answers has the same measures.
    """
    extended = list(results)
    for result in results:
        name = CLEAN.get(result.cell.collection, "")
        if not result.measures or name not in table.collections:
            continue
        collection = setup.collection(name)
        run = read_run(setup.run_file(result.cell))
        measures = means(collection.qrels, run, collection.measures)
        cell = replace(result.cell, collection=name)
        extended.append(replace(result, cell=cell, measures=measures))
    return extended


def importances(
    table: Table,
    results: Sequence[Result],
    setup: Setup,
) -> list[Result]:
    """Return the results with the importance of the feature family that each row lacks.

    The importance is the family's share in the trees of the first row, which has all
    families.
    """
    complete = table.systems[0].name
    importance_of: dict[tuple[str, int], dict[str, float]] = {}
    for result in results:
        cell = result.cell
        if cell.system != complete:
            continue
        trees = cast(Trees, checkpoint.load(setup.checkpoint(cell)))
        for name, share in trees.importances().items():
            importance_of[f"- {name}", cell.seed] = {"importance": round(share, 4)}

    def importance(result: Result) -> dict[str, float]:
        return importance_of.get((result.cell.system, result.cell.seed), {})

    return with_measures(results, importance)
