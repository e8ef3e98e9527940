"""Training on a collection of one's own, and whether it pays on topics held out.

Candidates are those of the search's first stage. λ is tuned on scores of models that had not seen
the topics, and each topic is measured with the λ of the other folds, so the figures are those to
expect on new topics.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.collections.collection import Collection
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Qrels, Run, best_of
from pipeline.defaults import DEFAULT_FUSION, DEFAULT_HITS, UNTUNED_WEIGHT
from pipeline.errors import DataError
from pipeline.evaluation.measures import Evaluator, mean
from pipeline.evaluation.significance import print_comparison
from pipeline.ranking.build import ranker
from pipeline.ranking.checkpoints import ADAPTED_SUFFIX, load_model
from pipeline.ranking.fusion import OFFICIAL
from pipeline.ranking.interpolation import interpolate
from pipeline.ranking.retrievers import retriever_for
from pipeline.ranking.tuning import Tuning, tuning_of
from pipeline.training.folds import Outcome
from pipeline.training.training_set import JudgedCandidates, TrainingSet
from pipeline.training.tuning import HeldOut, fold_topics, read_held_out
from rerankers import checkpoint as checkpoints
from rerankers.features.judged import JUDGED
from rerankers.pairs import NUMBER

_ADDED = re.compile(f",({JUDGED}|{NUMBER}[^,]*)(?=,|$)")
"""What training on an own collection adds to the families."""
FEWEST = 10  # Judged topics from which on a gain on held-out ones counts


def own_training_set(collection: Collection) -> TrainingSet:
    """The first stage's candidates of the judged topics, and the words of all posts."""
    judgments = require_judgments(collection)
    retriever = retriever_for(collection)
    candidates = retriever.search(collection.training_topics, DEFAULT_HITS)
    for name in collection.signals:
        if np.isnan(candidates.pairs().signals.get(NUMBER + name, np.array([np.nan]))).all():
            raise DataError(
                f"{collection.title}: found no number under {name} in the {len(candidates.posts):,}"
                " candidates, expected some; correct `signals`, or build the index again"
            )
    return TrainingSet(
        trained_on=[collection.name],
        left_out=None,
        candidates=f"best {DEFAULT_HITS} by {retriever.name}",
        training=JudgedCandidates(candidates, judgments, collection.judged_only),
        development=None,
        texts=[post.text for post in collection.posts()],
        minimum_count=2,
        collection_file=str(collection.file.resolve()) if collection.file else "",
    )


def require_judgments(collection: Collection) -> Qrels:
    """The judgments; raises DataError if there are too few topics to train and validate on."""
    if (qrels := collection.training_qrels) is None:
        raise DataError(f"{collection.missing_judgments}; training needs them")
    if (found := len(collection.training_topics)) < 2:
        where = f"in {collection.train_topics} " if collection.train_topics else ""
        raise DataError(
            f"{collection.title}: found {found} judged topic{'s' * (found != 1)} {where}to train "
            "on, expected at least 2: one to train on while the other is held out"
        )
    collection.check_judged_posts()
    return qrels


def compare(
    model: str,
    collection: Collection,
    training_set: TrainingSet,
    outcome: Outcome,
    is_mixed: bool,
    beside_default: bool = True,
) -> Tuning:
    """The tuning of a trained model; prints the rankings of the held-out topics beside each other.

    λ is 0, the ranking without the model, if there are fewer than :data:`FEWEST` topics or no gain;
    else it is 1 for a model that is not mixed. ``training_set`` has the first stage's candidates.
    ``beside_default``: the default search is among the rankings.
    """
    found, held_out = training_set.training.candidates, outcome.held_out_run
    judgments, measure = collection.training_qrels or {}, collection.measures[0]
    qrels = {q: grades for q, grades in judgments.items() if q in held_out}
    first = {query_id: found.run.get(query_id, {}) for query_id in qrels}
    topics = [topic for topic in found.topics if topic.query_id in qrels]
    depth = max(map(len, first.values()), default=0)
    runs: dict[str, Run] = {"first stage" + f", best {depth}" * (not beside_default): first}
    if beside_default:
        runs |= _default_run(collection, topics)
    folder = checkpoints.SHIPPED / model / "all"
    if f"shipped {model}" not in runs and (folder / "config.json").exists():
        tuned = tuning_of(folder)
        weight = tuned.weight if tuned else UNTUNED_WEIGHT
        shipped = load_model(model, collection, folder).mixed(weight)
        candidates = dataclasses.replace(found, topics=topics, run=first, memo={})
        runs[f"shipped {model}"] = candidates.scored_by(shipped)
    name, origin = f"{model}/{collection.name}", training_set.candidates
    parts = HeldOut([collection.name], first, held_out, qrels, name, origin)
    if is_mixed:
        tuning = parts.tune(measure, folds=min(5, len(qrels)))
        trained = cross_validated(first, held_out, tuning)
        attempt = f"--reranker {model} --lambda {tuning.weight:g}"
    else:
        trained = best_of({q: held_out[q] for q in qrels}, DEFAULT_HITS)
        tuning = dataclasses.replace(parts, neural=trained).unmixed(measure, outcome.folds)
        attempt = "--checkpoint"
    runs[f"trained {model}"] = trained
    evaluator = Evaluator(qrels, collection.measures)
    print(f"{len(qrels)} held-out topics:")
    figures = [(label, evaluator(run)) for label, run in runs.items()]
    print_comparison(figures)
    best = max(mean(of_run[measure]) for _, of_run in figures[:-1])
    return without_gain(tuning, best, attempt)


def calibrated(checkpoint: str, training_set: TrainingSet, outcome: Outcome) -> Tuning:
    """The figures and the calibration of a model of windows, on topics held out in folds."""
    data = training_set.training
    runs = data.candidates.run, outcome.held_out_run
    of = training_set.candidates
    parts = HeldOut(training_set.trained_on, *runs, data.qrels, checkpoint, of)
    # There are thousands of windows.
    return dataclasses.replace(parts.unmixed("AP", outcome.folds), topics=())


def _default_run(collection: Collection, topics: Sequence[Topic]) -> dict[str, Run]:
    """The ranking of the shipped fusion, which searches use without training; {} without it."""
    if not collection.methods:
        return {}
    suffix = ADAPTED_SUFFIX if collection.adapted_space else ""
    folder = checkpoints.SHIPPED / DEFAULT_FUSION / f"all{suffix}"
    if not (folder / "config.json").exists():
        return {}
    shipped = ranker(collection, DEFAULT_FUSION, checkpoint=folder)
    return {f"shipped {DEFAULT_FUSION}": shipped.rank(topics).run}


def shipped_start(model: str, config: Any) -> Path | None:
    """The shipped checkpoint of a fusion to start training from.

    It has the same features but for those of judgments and numbers, which differ from collection to
    collection.
    """
    wanted = dataclasses.replace(config, families=_ADDED.sub("", config.families))
    for folder in sorted((checkpoints.SHIPPED / model).glob("all*")):
        known = json.loads((folder / "config.json").read_text())["config"]
        if type(config)(**known) == wanted:
            return folder
    return None


def without_gain(tuning: Tuning, without: float, attempt: str) -> Tuning:
    """λ = 0, with a message, if a gain is not to be trusted over ``without``.

    That is the best figure of the first stage and of the shipped models. ``attempt``: options of a
    search with the model all the same.
    """
    topics = len(tuning.topics)
    if topics < FEWEST:
        reason = f"found {topics} judged topics, expected {FEWEST} or more to trust a gain"
    elif tuning.cross_validated <= without:
        reason = "no gain on held-out topics"
    else:
        return tuning
    print(f"{reason}: searches keep the ranking without it (λ = 0; try it by {attempt})")
    return dataclasses.replace(tuning, weight=0.0)


def held_out_scores(
    model: str, collection: Collection, checkpoint: Path, most: int | None = None
) -> HeldOut:
    """First-stage and neural scores of the topics to tune λ on, ``most`` of them.

    The neural scores are those of the training's held-out topics. A checkpoint that was not trained
    on the collection, a shipped one, has not seen its topics, and scores them now.
    """
    qrels = require_judgments(collection)
    retriever = retriever_for(collection)
    candidates = retriever.search(collection.training_topics[:most], DEFAULT_HITS)
    if collection.name in checkpoints.load(checkpoint, model).metrics.get("trained_on", []):
        neural = read_held_out(checkpoint, f"--collection {collection.title}")
    else:
        neural = candidates.scored_by(load_model(model, collection, checkpoint))
    topics = [query_id for query_id in candidates.run if query_id in neural]
    if any(candidates.run[q].keys() - neural[q].keys() for q in topics) or len(topics) < 2:
        raise DataError(
            f"{checkpoint}: its scores of held-out topics are not of these topics and posts, which "
            f"have changed since; train again with `python -m pipeline.train {model} --collection "
            f"{collection.title}`"
        )
    lexical = {query_id: candidates.run[query_id] for query_id in topics}
    return HeldOut(
        [collection.name],
        lexical,
        neural,
        {query_id: qrels[query_id] for query_id in topics},
        f"{model}/{checkpoint.name}",
        f"best {DEFAULT_HITS} by {retriever.name}",
    )


def own_config(config: Any, judged: bool, signals: Sequence[str] = ()) -> Any:
    """The configuration of a fusion or of a model of windows for an own collection.

    Without the scores of official runs, which it does not have. With what its judgments say of a
    post for other topics, if ``judged``, and with the numbers ``signals``.
    """
    families = config.families.split(",")
    kept = [name for name in families if not name.startswith(f"signal:{OFFICIAL}")]
    added = [JUDGED] * judged + [NUMBER + name for name in signals]
    return dataclasses.replace(config, families=",".join([*kept, *added]))


def cross_validated(lexical: Run, neural: Run, tuning: Tuning) -> Run:
    """The mixture of each topic by the λ that was chosen without its fold."""
    found: Run = {}
    folds = fold_topics(tuning.topics, tuning.folds, tuning.seed)
    for query_ids, weight in zip(folds, tuning.fold_weights, strict=True):
        part = {query_id: lexical[query_id] for query_id in query_ids}
        found |= interpolate(part, neural, weight)
    return found
