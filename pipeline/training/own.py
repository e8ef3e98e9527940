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
from pipeline.collections.trec import Run, best_of
from pipeline.defaults import DEFAULT_FUSION, DEFAULT_HITS, UNTUNED_WEIGHT
from pipeline.errors import DataError
from pipeline.evaluation.measures import Evaluator, mean
from pipeline.evaluation.significance import print_comparison
from pipeline.ranking.build import ranker
from pipeline.ranking.checkpoints import ADAPTED_SUFFIX, load_model
from pipeline.ranking.fusion import OFFICIAL
from pipeline.ranking.retrievers import Candidates, retriever_for
from pipeline.ranking.tuning import Tuning, tuning_of
from pipeline.training.folds import Outcome
from pipeline.training.training_set import JudgedCandidates, TrainingSet
from pipeline.training.tuning import HeldOut, cross_validated, read_held_out
from rerankers import checkpoint as checkpoints
from rerankers.features.judged import JUDGED
from rerankers.pairs import NUMBER
from rerankers.reranker import Reads

_ADDED = re.compile(f",({JUDGED}|{NUMBER}[^,]*)(?=,|$)")
"""What training on an own collection adds to the families."""
FEWEST = 10  # Judged topics from which on a gain on held-out ones counts


def own_training_set(collection: Collection, most: int | None = None) -> TrainingSet:
    """The first stage's candidates of the judged topics, ``most`` of them.

    Raises:
        DataError: there are too few judged topics to train and validate on.
    """
    if (judgments := collection.training_qrels) is None:
        raise DataError(f"{collection.missing_judgments}; training needs them")
    topics = collection.training_topics
    if len(topics) < 2:
        where = f"in {collection.train_topics} " if collection.train_topics else ""
        raise DataError(
            f"{collection.title}: found {len(topics)} judged topic{'s' * (not topics)} {where}to "
            "train on, expected at least 2: one to train on while the other is held out"
        )
    collection.check_judged_posts()
    retriever = retriever_for(collection)
    candidates = retriever.search(topics[:most], DEFAULT_HITS)
    for name in collection.signals:
        if np.isnan(candidates.pairs().signals.get(NUMBER + name, np.array([np.nan]))).all():
            raise DataError(
                f"{collection.title}: found no number under {name} in the {len(candidates.posts):,}"
                " candidates, expected some; correct `signals`, or build the index again"
            )
    return TrainingSet(
        [collection.name],
        None,
        f"best {DEFAULT_HITS} by {retriever.name}",
        JudgedCandidates(candidates, judgments, collection.judged_only),
        collection_file=str(collection.file.resolve()) if collection.file else "",
    )


def compare(
    model: str, reads: Reads, collection: Collection, first_stage: TrainingSet, outcome: Outcome
) -> Tuning:
    """The tuning of a trained model; prints the rankings of the held-out topics beside each other.

    λ is 0, the ranking without the model, if there are fewer than :data:`FEWEST` topics or no gain;
    else it is 1 for a model that is not mixed. ``first_stage`` has the first stage's candidates, a
    model's windows if it reads lists.
    """
    found, held_out = first_stage.training.candidates, outcome.held_out_run
    judgments, measure = collection.training_qrels or {}, collection.measures[0]
    qrels = {q: grades for q, grades in judgments.items() if q in held_out}
    first = {query_id: found.run.get(query_id, {}) for query_id in qrels}
    topics = [topic for topic in found.topics if topic.query_id in qrels]
    candidates = dataclasses.replace(found, topics=topics, run=first, memo={})
    runs = _beside(model, reads, collection, candidates)
    name, origin = f"{model}/{collection.name}", first_stage.candidates
    parts = HeldOut(first, held_out, qrels, [collection.name], name, origin)
    if reads == "posts":
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


def _beside(
    model: str, reads: Reads, collection: Collection, candidates: Candidates
) -> dict[str, Run]:
    """The rankings that a trained model is compared with: the first stage and the shipped models'.

    The default search, the shipped fusion, is one of them unless the model reads lists.
    """
    depth = max(map(len, candidates.run.values()), default=0)
    runs = {f"first stage, best {depth}" if reads == "lists" else "first stage": candidates.run}
    shipped = checkpoints.SHIPPED / DEFAULT_FUSION
    shipped /= f"all{ADAPTED_SUFFIX}" if collection.adapted_space else "all"
    if reads != "lists" and collection.methods and (shipped / "config.json").exists():
        default = ranker(collection, DEFAULT_FUSION, checkpoint=shipped)
        runs[f"shipped {DEFAULT_FUSION}"] = default.rank(candidates.topics).run
    folder = checkpoints.SHIPPED / model / "all"
    if f"shipped {model}" not in runs and (folder / "config.json").exists():
        tuned = tuning_of(folder)
        weight = tuned.weight if tuned else UNTUNED_WEIGHT
        mixed = load_model(model, collection, folder).mixed(weight)
        runs[f"shipped {model}"] = candidates.scored_by(mixed)
    return runs


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
    data = own_training_set(collection, most)
    candidates, qrels = data.training.candidates, data.training.qrels
    if collection.name in checkpoints.load(checkpoint, model).metrics.get("trained_on", []):
        neural = read_held_out(checkpoint, f"--collection {collection.title}")
    else:
        neural = candidates.scored_by(load_model(model, collection, checkpoint))
    lexical = {
        query_id: scores for query_id, scores in candidates.run.items() if query_id in neural
    }
    if any(scores.keys() - neural[q].keys() for q, scores in lexical.items()) or len(lexical) < 2:
        raise DataError(
            f"{checkpoint}: its scores of held-out topics are not of these topics and posts, which "
            f"have changed since; train again with `python -m pipeline.train {model} --collection "
            f"{collection.title}`"
        )
    judged = {query_id: qrels[query_id] for query_id in lexical}
    source = f"{model}/{checkpoint.name}"
    return HeldOut(lexical, neural, judged, [collection.name], source, data.candidates)


def own_config(config: Any, judged: bool, signals: Sequence[str] = ()) -> Any:
    """The configuration of a fusion or of a model of windows for an own collection.

    Without the scores of official runs, which it does not have. With what its judgments say of a
    post for other topics, if ``judged``.
    """
    families = config.families.split(",")
    kept = [name for name in families if not name.startswith(f"signal:{OFFICIAL}")]
    added = [JUDGED] * judged + [NUMBER + name for name in signals]
    return dataclasses.replace(config, families=",".join([*kept, *added]))
