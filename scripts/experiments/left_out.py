"""``window`` on collections outside its training: BM25's best posts for their training topics.

A collection of another kind is left out alone, the microblog years together. Forms of a cell:

bm25                    the first stage
scores, order, nothing  a model of windows in all forms, which are read in this form
general, adapted        a model of BM25's windows with scores, without and with adapted vectors
trained, judged         the last one trained further on four fifths of the own topics, measured on
                        the fifth, in turn, without and with judgments for other topics
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.collections import named
from pipeline.collections.collection import Collection, SearchedCollection
from pipeline.collections.trec import Qrels, Run
from pipeline.ranking.checkpoints import Calibration
from pipeline.ranking.retrievers import Candidates, retriever_for, with_resources, with_space
from pipeline.training.fusion import FORMS, MOST_TOPICS, WINDOW, window_training_set
from pipeline.training.training_set import JudgedCandidates, searched_training_set
from pipeline.training.tuning import calibrate, fold_topics
from rerankers import checkpoint, features
from rerankers.features.judged import JUDGED
from rerankers.models.window import Model
from rerankers.text.vocabulary import Vocabulary

FOLDS = 5  # Parts of a collection's own topics
BINS = 10  # Equal parts of [0, 1]
GENERAL, ADAPTED = (str(Model.configurations[name].families) for name in ("general", "adapted"))

Judged = tuple[Run, Qrels]
_LOCK = Lock()  # Cells share features and models, which take all cores.


class Windows(NamedTuple):
    """Pairs of judged windows; features of adapted vectors and of judgments come last."""

    values: Tensor  # [P, K] features
    relevant: Tensor  # [P]
    query_index: Tensor  # [P]
    owners: list[str]  # Collection of each query

    def model(self, kept: Sequence[bool], families: str, start: Model | None = None) -> Model:
        """A model of some queries [Q], which may extend the trees of another."""
        config = replace(Model.configurations["general"], families=families)
        model = Model(config, Vocabulary([], np.zeros((0, 1), np.float32)))
        if start:
            model.start_from(start)
        rows = torch.tensor(kept)[self.query_index]
        model.fit(_read(self.values[rows], model), self.relevant[rows], self.query_index[rows])
        return model


def run_of(form: str, name: str, data: Path | None) -> Run:
    """BM25's windows of a collection's training topics, scored in a form."""
    with _LOCK:
        found, own = _windows(name, data)
        if form == "bm25":
            return found.run
        if form in FORMS:
            years = tuple(each.name for each in _collections(data) if each.runs)
            model = _model(years if name in years else (name,), GENERAL, True, data)
            read = replace(found, forms=dict.fromkeys(found.run, form))
            return _ranked(read, model, _table(read, GENERAL))
        reader = _model((name,), GENERAL if form == "general" else ADAPTED, False, data)
        if form in ("general", "adapted"):
            return _ranked(found, reader, own.values)
        families, run = ADAPTED + f",{JUDGED}" * (form == "judged"), Run()
        for fold in fold_topics(judgments(named.find(name, data)), FOLDS, seed=1):
            kept = [topic.query_id not in fold for topic in found.topics]
            scores = _ranked(found, own.model(kept, families, reader), own.values)
            run |= {query_id: scores[query_id] for query_id in fold if query_id in scores}
        return run


def judgments(collection: Collection) -> Qrels:
    """Those of the topics that are searched."""
    assert isinstance(collection, SearchedCollection)
    grades = collection.training_qrels or {}
    return {t.query_id: grades[t.query_id] for t in collection.training_topics[:MOST_TOPICS]}


def _ranked(found: Candidates, model: Model, values: Tensor) -> Run:
    return found.run_of(model.head(_read(values, model)).numpy())


def _read(values: Tensor, model: Model) -> Tensor:
    """The features that a model reads, the first ones."""
    return values[:, : len(model.names)].contiguous()


def _table(found: Candidates, families: str) -> Tensor:
    idf = checkpoint.idf_from("wordfreq")
    return torch.from_numpy(features.table(found.pairs(), families.split(","), idf).values)


def _collections(data: Path | None) -> list[SearchedCollection]:
    found = [named.find(name, data) for name in named.training_collections(None, data, True)]
    return [each for each in found if isinstance(each, SearchedCollection)]


@cache
def _model(left_out: tuple[str, ...], families: str, in_forms: bool, data: Path | None) -> Model:
    windows = _all_windows(in_forms, data)
    return windows.model([owner not in left_out for owner in windows.owners], families)


@cache
def _all_windows(in_forms: bool, data: Path | None) -> Windows:
    """Windows of all collections: several first stages' in each form, or BM25's with scores."""
    collections = _collections(data)
    if in_forms:
        empty = searched_training_set([each.name for each in collections], None)
        judged = window_training_set(empty, collections).training
        owners = [twin.rpartition("/")[0] for twin in judged.twins]
        return _judged(judged, judged.candidates, GENERAL, owners)
    parts, start = [], 0
    for _, part in (_windows(each.name, data) for each in collections):
        parts.append(part._replace(query_index=part.query_index + start))
        start += len(part.owners)
    columns = map(torch.cat, zip(*(part[:3] for part in parts), strict=True))
    return Windows(*columns, [owner for part in parts for owner in part.owners])


@cache
def _windows(name: str, data: Path | None) -> tuple[Candidates, Windows]:
    """BM25's windows of a collection, with its adapted vectors if it has some."""
    collection = named.find(name, data)
    assert isinstance(collection, SearchedCollection)
    topics = collection.training_topics[:MOST_TOPICS]
    found = retriever_for(collection, method="bm25").search(topics, WINDOW)
    known = with_space(with_resources(found, {JUDGED: collection.judged_posts}), collection)
    judged = JudgedCandidates(found, judgments(collection))
    return found, _judged(judged, known, f"{ADAPTED},{JUDGED}", [name] * len(topics))


def _judged(
    judged: JudgedCandidates, known: Candidates, families: str, owners: list[str]
) -> Windows:
    query_index = torch.from_numpy(known.texts().query_index)
    relevant = torch.from_numpy(judged.relevant())
    return Windows(_table(known, families), relevant, query_index, owners)


def reliability(own: Judged, others: Sequence[Judged]) -> dict[str, float]:
    """Expected calibration error, and each bin's pairs, mean probability and relevant share.

    Probabilities are calibrated on other collections. Measures of a bin end in its lower bound.
    """
    scores = {f"{n}/{q}": of for n, (run, _) in enumerate(others) for q, of in run.items()}
    grades = {f"{n}/{q}": of for n, (_, qrels) in enumerate(others) for q, of in qrels.items()}
    slope, intercept = calibrate(scores, grades) or Calibration()
    run, qrels = own
    pairs = [(s, qrels[q].get(d, 0) > 0) for q, scores in run.items() for d, s in scores.items()]
    values, relevant = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    chances = 1 / (1 + np.exp(-(slope * values + intercept)))
    bins = np.minimum((chances * BINS).astype(int), BINS - 1)
    counts, *sums = (np.bincount(bins, each, BINS) for each in (None, chances, relevant))
    measures: dict[str, float] = {}
    error = 0.0
    for bin_, (count, chance, share) in enumerate(zip(counts.tolist(), *sums, strict=True)):
        if count:
            of_bin = {"pairs": count, "probability": chance / count, "relevant": share / count}
            measures |= {f"{k} {bin_ / BINS:.1f}": round(float(v), 6) for k, v in of_bin.items()}
            error += abs(chance - share)
    return {"ECE": round(error / len(pairs), 4), **measures}
