"""``window`` on collections outside its training: BM25's best posts for their training topics.

A collection of another kind is left out alone, the microblog years together. Forms of a cell:

bm25                    the first stage
scores, order, nothing  a model of windows in all forms, which are read in this form
general, adapted        a model of BM25's windows with scores, without and with adapted vectors
trained, judged         the last one trained further on four fifths of the own topics, measured on
                        the fifth, in turn, without and with judgments for other topics
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.collections import named
from pipeline.collections.collection import Collection, SearchedCollection
from pipeline.collections.trec import Qrels, Run
from pipeline.ranking.checkpoints import Calibration
from pipeline.ranking.retrievers import Candidates, retriever_for, with_resources, with_space
from pipeline.training.fusion import FORMS, MOST_TOPICS, WINDOW, window_training_set
from pipeline.training.training_set import JudgedCandidates, searched_training_set
from pipeline.training.trees import grower
from pipeline.training.tuning import calibrate, fold_topics
from rerankers import checkpoint, features
from rerankers.features.judged import JUDGED
from rerankers.text.vocabulary import Idf
from rerankers.trees.fit import grow
from rerankers.trees.window import Model

FOLDS = 5  # Parts of a collection's own topics
BINS = 10  # Equal parts of [0, 1]
GENERAL, ADAPTED = (str(Model.configurations[name].families) for name in ("general", "adapted"))

Judged = tuple[Run, Qrels]
_LOCK = Lock()  # Cells share features and models, which take all cores.


class Windows(NamedTuple):
    """Pairs of judged windows; features of adapted vectors and of judgments come last."""

    values: npt.NDArray[np.float32]  # [P, K]
    relevant: npt.NDArray[np.bool_]  # [P]
    query_index: npt.NDArray[np.int64]  # [P]
    owners: npt.NDArray[np.str_]  # [Q] collections

    def model(
        self, kept: npt.NDArray[np.bool_], families: str, start: Model | None = None
    ) -> Model:
        """A model of some queries [Q], which may extend the trees of another."""
        config = replace(Model.configurations["general"], families=families)
        rows, names = np.flatnonzero(kept[self.query_index]), features.names_of(families.split(","))
        read = np.ascontiguousarray(self.values[rows, : len(names)])
        lists = grow(config, names, read, self.relevant[rows], self.query_index[rows], start)
        return Model(name="window", config=config, idf=_idf(), lists=lists)


def run_of(form: str, name: str, data: Path | None) -> Run:
    """BM25's windows of a collection's training topics, scored in a form."""
    with _LOCK:
        found = _found(name, data)
        if form == "bm25":
            return found.run
        if form in FORMS:
            years = tuple(each.name for each in _collections(data) if each.runs)
            model = _model(years if name in years else (name,), GENERAL, True, data)
            read = replace(found, forms=dict.fromkeys(found.run, form))
            return _ranked(read, model, _table(read))
        own = _windows(name, data)
        reader = _model((name,), GENERAL if form == "general" else ADAPTED, False, data)
        if form in ("general", "adapted"):
            return _ranked(found, reader, own.values)
        families, run = ADAPTED + f",{JUDGED}" * (form == "judged"), Run()
        query_ids = np.array([topic.query_id for topic in found.topics])
        for fold in fold_topics(judgments(named.find(name, data)), FOLDS, seed=1):
            model = own.model(~np.isin(query_ids, fold), families, reader)
            scores = _ranked(found, model, own.values)
            run |= {query_id: scores[query_id] for query_id in fold if query_id in scores}
        return run


def judgments(collection: Collection) -> Qrels:
    """Those of the topics that are searched."""
    assert isinstance(collection, SearchedCollection)
    grades = collection.training_qrels or {}
    return {t.query_id: grades[t.query_id] for t in collection.training_topics[:MOST_TOPICS]}


def _ranked(found: Candidates, model: Model, values: npt.NDArray[np.float32]) -> Run:
    read = np.ascontiguousarray(values[:, : len(model.names)])
    return found.run_of(model.evaluate(read))


def _table(found: Candidates, families: str = GENERAL) -> npt.NDArray[np.float32]:
    """Features [P, K]."""
    return features.table(found.pairs(), families.split(","), _idf()).values


@cache
def _idf() -> Idf:
    return checkpoint.idf_from("wordfreq")


def _collections(data: Path | None) -> list[SearchedCollection]:
    found = [named.find(name, data) for name in named.training_collections(None, data, True)]
    return [each for each in found if isinstance(each, SearchedCollection)]


@cache
def _found(name: str, data: Path | None) -> Candidates:
    collection = named.find(name, data)
    topics = collection.training_topics[:MOST_TOPICS]
    return retriever_for(collection, method="bm25").search(topics, WINDOW)


@cache
def _model(
    left_out: tuple[str, ...], families: str, in_all_forms: bool, data: Path | None
) -> Model:
    if not in_all_forms:
        windows = _all_windows(data)
        return windows.model(~np.isin(windows.owners, left_out), families)
    found, grow_on = _all_forms(data)
    kept = ~np.isin(found.groups, left_out)
    lists = grow_on(np.flatnonzero(kept[found.candidates.texts().query_index]))
    return Model(name="window", config=Model.configurations["general"], idf=_idf(), lists=lists)


@cache
def _all_forms(data: Path | None) -> tuple[JudgedCandidates, Callable[..., list[str]]]:
    """The shipped model's training set, and a function that grows trees on some of its pairs."""
    collections = _collections(data)
    empty = searched_training_set([each.name for each in collections], None)
    most = Model.configurations["general"].topics
    found = window_training_set(empty, collections, most).training
    table = features.table(found.candidates.pairs(), GENERAL.split(","), _idf())
    return found, grower(Model.configurations["general"], found, table)


@cache
def _all_windows(data: Path | None) -> Windows:
    """BM25's windows of all collections, with scores."""
    parts = [_windows(each.name, data) for each in _collections(data)]
    starts = np.cumsum([0, *(len(part.owners) for part in parts)])
    moved = [p._replace(query_index=p.query_index + s) for p, s in zip(parts, starts, strict=False)]
    return Windows(*map(np.concatenate, zip(*moved, strict=True)))


@cache
def _windows(name: str, data: Path | None) -> Windows:
    """BM25's windows of a collection, with its adapted vectors if it has some."""
    collection, found = named.find(name, data), _found(name, data)
    assert isinstance(collection, SearchedCollection)
    known = with_space(with_resources(found, {JUDGED: collection.judged_posts}), collection)
    relevant = JudgedCandidates(found, judgments(collection)).relevant()
    owners = np.full(len(found.topics), name)
    query_index = known.pairs().query_index
    return Windows(_table(known, f"{ADAPTED},{JUDGED}"), relevant, query_index, owners)


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
