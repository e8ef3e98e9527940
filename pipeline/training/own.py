"""Training on a collection of one's own, and whether it pays on topics held out.

Candidates are those of the search's first stage. λ is tuned on scores of models that had not seen
the topics, and each topic is measured with the λ of the other folds, so the figures are those to
expect on new topics.
"""

from __future__ import annotations

import dataclasses

from pipeline.checkpoints import Tuning, load_reranker, tuned_weight
from pipeline.collections.collection import SearchedCollection
from pipeline.collections.trec import Qrels, Run
from pipeline.command.errors import DataError
from pipeline.command.ranking import DEFAULT_HITS, UNTUNED_WEIGHT
from pipeline.evaluation.measures import Evaluator, mean
from pipeline.evaluation.significance import print_comparison
from pipeline.interpolation import interpolate
from pipeline.reranking import retriever_for
from pipeline.training.folds import Outcome
from pipeline.training.training_set import JudgedCandidates, TrainingSet
from pipeline.training.tuning import HeldOut, fold_topics
from rerankers import checkpoint as checkpoints

FEWEST = 10
"""Judged topics from which on a gain on held-out ones counts."""


def own_training_set(collection: SearchedCollection) -> TrainingSet:
    """The first stage's candidates of the judged topics, and the words of all posts."""
    judgments = require_judgments(collection)
    retriever = retriever_for(collection)
    candidates = retriever.search(collection.training_topics, DEFAULT_HITS)
    return TrainingSet(
        trained_on=[collection.name],
        left_out=None,
        candidates=f"best {DEFAULT_HITS} by {retriever.name}",
        training=JudgedCandidates(candidates, judgments),
        development=None,
        texts=[post.text for post in collection.posts()],
        minimum_count=2,
    )


def require_judgments(collection: SearchedCollection) -> Qrels:
    """The judgments; raises DataError if there are too few topics to train and validate on."""
    if collection.qrels is None:
        raise DataError(f"{collection.missing_judgments}; training needs them")
    if (found := len(collection.training_topics)) < 2:
        where = f"in {collection.training_path} " if collection.training_path else ""
        raise DataError(
            f"{collection.title}: found {found} judged topic{'s' * (found != 1)} {where}to train "
            "on, expected at least 2: one to train on while the other is held out"
        )
    return collection.qrels


def tune_and_compare(
    model: str, collection: SearchedCollection, training_set: TrainingSet, outcome: Outcome
) -> Tuning:
    """The tuned λ; prints the rankings of the held-out topics beside each other.

    λ is 0, the first stage's ranking, if there are fewer than :data:`FEWEST` topics or no gain.
    """
    candidates, neural = training_set.training.candidates, outcome.held_out_run
    qrels = {q: grades for q, grades in training_set.training.qrels.items() if q in neural}
    lexical = {query_id: candidates.run[query_id] for query_id in qrels}
    name = f"{model}/{collection.name}"
    held_out = HeldOut([collection.name], lexical, neural, qrels, name, training_set.candidates)
    tuning = held_out.tune(folds=min(5, len(qrels)))
    runs: dict[str, Run] = {"first stage": lexical}
    shipped = checkpoints.SHIPPED / model / "all"
    if (shipped / "config.json").exists():
        weight, _ = tuned_weight(shipped, tuning.normalization) or (UNTUNED_WEIGHT, "")
        scores = load_reranker(model, collection, shipped).score(candidates)
        runs[f"shipped {model}"] = interpolate(lexical, scores, weight, tuning.normalization)
    runs[f"trained {model}"] = cross_validated(lexical, neural, tuning)
    evaluator = Evaluator(qrels, collection.measures)
    print(f"{len(qrels)} held-out topics:")
    print_comparison([(label, evaluator(run)) for label, run in runs.items()])
    reason = _why_not(len(qrels), mean(evaluator(lexical)["AP"]), tuning.cross_validated)
    if reason:
        print(
            f"{reason}: searches keep the first stage's ranking (λ = 0; the tuned one is "
            f"{tuning.weight:g}, try it by --lambda {tuning.weight:g})"
        )
        tuning = dataclasses.replace(tuning, weight=0.0)
    return tuning


def _why_not(topics: int, before: float, after: float) -> str:
    """Why a search should not use the model; "" if it should."""
    if topics < FEWEST:
        return f"found {topics} judged topics, expected {FEWEST} or more to trust a gain"
    if after <= before:
        return "no gain on held-out topics"
    return ""


def cross_validated(lexical: Run, neural: Run, tuning: Tuning) -> Run:
    """The mixture of each topic by the λ that was chosen without its fold."""
    found: Run = {}
    folds = fold_topics(tuning.topics, tuning.folds, tuning.seed)
    for query_ids, weight in zip(folds, tuning.fold_weights, strict=True):
        part = {query_id: lexical[query_id] for query_id in query_ids}
        found |= interpolate(part, neural, weight, tuning.normalization)
    return found
