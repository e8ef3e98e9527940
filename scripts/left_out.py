#!/usr/bin/env python3
"""What the model window does on collections that it was not trained on, in its three forms.

    python scripts/left_out.py
    python scripts/left_out.py --output scripts/results
    python scripts/left_out.py --adapted         # after python -m pipeline.adapt --collection NAME

Each collection of another kind is left out in turn, the microblog years together. A model of the
others ranks the best 100 of BM25 for the training topics of what was left out: with their scores,
in their order, and as a set. The error of the calibration, too, is that of topics and collections
which neither the model nor the calibration has seen; reliability.png shows it (needs matplotlib).

With --adapted, each collection with adapted word vectors is left out. Trained on BM25's windows
with scores alone, which takes a tenth of the time: a model without such vectors, one that reads
them, and that one trained further on four fifths of the collection's own training topics and
measured on the fifth, in turn, without and with what judgments say of a post for other topics.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from indexes.files import atomic_file, write_bytes
from pipeline.collections import named
from pipeline.collections.collection import SearchedCollection
from pipeline.command.errors import DataError
from pipeline.command.options import option, positive_int, run_command
from pipeline.command.runtime import bar, choose_device
from pipeline.evaluation.measures import evaluate, mean

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rerankers.models.window import Model

    from pipeline.collections.trec import Qrels, Run
    from pipeline.ranking.retrievers import Candidates
    from rerankers.text.vocabulary import Idf

FOLDS = 5  # Parts of a collection's own topics
BINS = 10  # Equal parts of [0, 1] in which probabilities are compared with what happened


@dataclass(frozen=True)
class Options:
    """How long, and where to."""

    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    output: Path | None = option(
        "folder for left_out.csv, reliability.csv and reliability.png, or left_out_adapted.csv",
        parse=Path,
        metavar="DIR",
    )
    adapted: bool = option("models that read word vectors adapted to the collection", flag=True)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


class LeftOut(NamedTuple):
    """BM25's windows of a collection, by form, and their scores by a model without it."""

    collection: str
    qrels: Qrels
    first_stage: Run
    scores: dict[str, Run]


class Bin(NamedTuple):
    """Pairs of a collection in one part of [0, 1]: their mean probability, their relevant share."""

    collection: str
    form: str
    pairs: int
    probability: float
    relevant: float


TITLES = {"scores": "with scores", "order": "in their order", "nothing": "as a set"}
"""Form -> title of its panel."""


def main(options: Options) -> None:
    """Train without each group of collections, and print what its model does there."""
    import numpy as np

    from pipeline.training.fusion import window_training_set
    from pipeline.training.training_set import searched_training_set
    from rerankers import features

    choose_device("cpu", options.threads)
    names = named.training_collections(None, options.data, True)
    found = [named.find(name, options.data) for name in names]
    collections = [each for each in found if isinstance(each, SearchedCollection)]
    if options.adapted:
        _print(adapted(collections), options.output and options.output / "left_out_adapted.csv")
        return
    data = window_training_set(searched_training_set(names, None), collections).training
    rows = features.table(data.candidates.pairs(), _families("general").split(","), _idf())
    owners = np.array([twin.rpartition("/")[0] for twin in data.twins])
    results: list[LeftOut] = []
    groups = [[c for c in collections if c.runs], *([c] for c in collections if not c.runs)]
    with bar(len(groups), "leaving out", "group") as progress:
        for group in groups:
            seen = ~np.isin(owners, [collection.name for collection in group])
            query_index = data.candidates.texts().query_index
            of_seen = np.flatnonzero(seen[query_index])
            model = _trained(rows.values[of_seen], data.relevant()[of_seen], query_index[of_seen])
            results += [_scored(model, collection) for collection in group]
            progress(1)
    report(results, options.output)


def _families(configuration: str) -> str:
    """Of a configuration of the model; those of adapted vectors come last."""
    from rerankers.models.window import Model

    return str(Model.configurations[configuration].families)


def _idf() -> Idf:
    from rerankers import checkpoint

    return checkpoint.idf_from("wordfreq")


def _trained(
    values: npt.NDArray[np.float32],
    relevant: npt.NDArray[np.bool_],
    query_index: npt.NDArray[np.int64],
    families: str = "",
    start: Model | None = None,
) -> Model:
    """The model of pairs with features [P, K], or their first; it extends the trees of another."""
    import numpy as np
    import torch
    from rerankers.models.window import Model

    from rerankers.text.vocabulary import Vocabulary

    words = Vocabulary([], np.zeros((0, 1), np.float32))
    general = Model.configurations["general"]
    model = Model(replace(general, families=families) if families else general, words)
    if start:
        model.start_from(start)
    read = np.ascontiguousarray(values[:, : len(model.names)])
    model.fit(*map(torch.from_numpy, (read, relevant, query_index)))
    return model


def _scored(model: Model, collection: SearchedCollection) -> LeftOut:
    """A left-out collection's windows, scored in each form."""
    from pipeline.training.fusion import FORMS

    found, qrels = _found(collection)
    scores = {
        form: _run(model, replace(found, forms=dict.fromkeys(found.run, form))) for form in FORMS
    }
    return LeftOut(collection.name, qrels, found.run, scores)


def _found(collection: SearchedCollection) -> tuple[Candidates, Qrels]:
    """BM25's windows for the training topics of a collection, and their judgments."""
    from pipeline.ranking.retrievers import retriever_for
    from pipeline.training.fusion import MOST_TOPICS, WINDOW

    topics, grades = collection.training_topics[:MOST_TOPICS], collection.training_qrels or {}
    found = retriever_for(collection, method="bm25").search(topics, WINDOW)
    return found, {topic.query_id: grades[topic.query_id] for topic in topics}


def _run(model: Model, candidates: Candidates) -> Run:
    import torch

    from rerankers import features

    table = features.table(candidates.pairs(), model.feature_families, _idf())
    return candidates.run_of(model.head(torch.from_numpy(table.values)).numpy())


class Windows(NamedTuple):
    """BM25's windows of a collection, with scores: features [P, K], relevance [P], query [P]."""

    collection: SearchedCollection
    candidates: Candidates
    qrels: Qrels
    values: npt.NDArray[np.float32]
    relevant: npt.NDArray[np.bool_]
    query_index: npt.NDArray[np.int64]

    @classmethod
    def read(cls, collection: SearchedCollection) -> Windows:
        """Those of a collection, with its adapted vectors if it has some."""
        from pipeline.ranking.retrievers import with_resources, with_space
        from pipeline.training.training_set import JudgedCandidates
        from rerankers import features
        from rerankers.features.judged import JUDGED

        found, qrels = _found(collection)
        known = with_resources(found, {JUDGED: collection.judged_posts})
        pairs = with_space(known, collection).pairs()
        values = features.table(pairs, [*_families("adapted").split(","), JUDGED], _idf()).values
        relevant = JudgedCandidates(found, qrels).relevant()
        return cls(collection, found, qrels, values, relevant, pairs.query_index)

    def ap(self, model: Model, query_ids: Sequence[str]) -> dict[str, float]:
        """Topic -> AP, of some topics ranked by a model."""
        import torch

        read = torch.from_numpy(self.values[:, : len(model.names)].copy())
        run = self.candidates.run_of(model.head(read).numpy())
        qrels = {query_id: self.qrels[query_id] for query_id in query_ids}
        return dict(evaluate(qrels, run, ["AP"])["AP"])


def adapted(collections: Sequence[SearchedCollection]) -> list[dict[str, object]]:
    """AP of BM25, and of each of four models, on each collection that has adapted vectors."""
    import numpy as np

    from pipeline.training.tuning import fold_topics
    from rerankers.features.judged import JUDGED

    with bar(len(collections), "features", "collection") as progress:
        windows = []
        for collection in collections:
            windows.append(Windows.read(collection))
            progress(1)
    rows: list[dict[str, object]] = []
    for own in windows:
        if own.collection.adapted_space is None:
            continue
        others = [each for each in windows if each is not own]
        starts = np.cumsum([0, *(len(each.candidates.topics) for each in others)])
        queries = [each.query_index + start for each, start in zip(others, starts, strict=False)]
        parts = [each.values for each in others], [each.relevant for each in others], queries
        seen = [np.concatenate(part) for part in parts]
        general, reader = (_trained(*seen, _families(name)) for name in ("general", "adapted"))
        figures = {"scores": own.ap(general, [*own.qrels]), "adapted": own.ap(reader, [*own.qrels])}
        names = np.array([topic.query_id for topic in own.candidates.topics])
        for fold in fold_topics(own.qrels, FOLDS, seed=1):
            of_fold = ~np.isin(names, fold)[own.query_index]
            kept = own.values[of_fold], own.relevant[of_fold], own.query_index[of_fold]
            for name, more in (("trained", ""), ("with judged", f",{JUDGED}")):
                model = _trained(*kept, _families("adapted") + more, reader)
                figures[name] = figures.get(name, {}) | own.ap(model, fold)
        row: dict[str, object] = {
            "collection": own.collection.name,
            "bm25": _ap(own.qrels, own.candidates.run),
        }
        row |= {name: round(mean(of), 4) for name, of in figures.items()}
        rows.append(row)
    return rows


def report(results: Sequence[LeftOut], output: Path | None) -> None:
    """Print AP and the calibration's error by collection; write the CSVs and the plot."""
    rows, bins = [], []
    for result in results:
        row: dict[str, object] = {"collection": result.collection}
        row["bm25"] = _ap(result.qrels, result.first_stage)
        for form, run in result.scores.items():
            others = [each for each in results if each.collection != result.collection]
            row[form] = _ap(result.qrels, run)
            of_form = [
                Bin(result.collection, form, *sums) for sums in reliability(result, others, form)
            ]
            row[f"{form}: calibration error"] = round(calibration_error(of_form), 4)
            bins += of_form
        rows.append(row)
    _print(rows, output and output / "left_out.csv")
    if output:
        _write(output / "reliability.csv", Bin._fields, bins)
        draw(output / "reliability.png", bins)


def _print(rows: Sequence[Mapping[str, object]], path: Path | None) -> None:
    if not rows:
        raise DataError("found no adapted word vectors; make some by python -m pipeline.adapt")
    print(" | ".join(rows[0]))
    for row in rows:
        print(" | ".join(v if isinstance(v, str) else f"{v:.4f}" for v in row.values()))
    if path:
        _write(path, list(rows[0]), [list(row.values()) for row in rows])


def _write(path: Path, fields: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with atomic_file(path) as stream:
        csv.writer(stream).writerows([fields, *rows])
    print(f"wrote {path}", file=sys.stderr)


def _ap(qrels: Qrels, run: Run) -> float:
    return round(mean(evaluate(qrels, run, ["AP"])["AP"]), 4)


def reliability(
    result: LeftOut, others: Sequence[LeftOut], form: str
) -> list[tuple[int, float, float]]:
    """Pairs, mean probability and share of relevant posts of each of :data:`BINS` that has pairs.

    Probabilities are by the logistic calibration of ``others``.
    """
    import numpy as np

    from pipeline.ranking.checkpoints import Calibration
    from pipeline.training.tuning import calibrate

    scores: Run = {}
    qrels: Qrels = {}
    for other in others:
        for name, run in other.scores.items():
            for query_id, of_topic in run.items():
                key = f"{other.collection}/{name}/{query_id}"
                scores[key], qrels[key] = of_topic, other.qrels[query_id]
    slope, intercept = calibrate(scores, qrels) or Calibration()
    pairs = [
        (score, result.qrels[query_id].get(doc_id, 0) > 0)
        for query_id, of_topic in result.scores[form].items()
        for doc_id, score in of_topic.items()
    ]
    values, relevant = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    chances = 1 / (1 + np.exp(-(slope * values + intercept)))
    bins = np.minimum((chances * BINS).astype(int), BINS - 1)
    counts, *sums = (np.bincount(bins, each, BINS) for each in (None, chances, relevant))
    return [
        (int(count), round(chance / count, 6), round(share / count, 6))
        for count, chance, share in zip(counts, *sums, strict=True)
        if count
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error: mean distance of probability and share over the pairs."""
    gaps = sum(each.pairs * abs(each.probability - each.relevant) for each in bins)
    return gaps / sum(each.pairs for each in bins)


def draw(path: Path, bins: Sequence[Bin]) -> None:
    """Write the reliability plot as PNG: a panel for each form, a line for each collection."""
    from matplotlib.figure import Figure

    forms = list(dict.fromkeys(each.form for each in bins))
    figure = Figure(figsize=(12, 5.4), layout="constrained")
    for axes, form in zip(figure.subplots(1, len(forms), sharey=True), forms, strict=True):
        axes.plot([0, 1], [0, 1], color="0.7", linestyle="--", label="right")
        for name in dict.fromkeys(each.collection for each in bins):
            own = [each for each in bins if (each.collection, each.form) == (name, form)]
            x, y = [each.probability for each in own], [each.relevant for each in own]
            (line,) = axes.plot(x, y, linewidth=1, label=name)
            axes.scatter(x, y, [4 * each.pairs**0.35 for each in own], color=line.get_color())
        axes.set(title=TITLES[form], xlabel="probability", aspect="equal")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("share of relevant posts")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    content = BytesIO()
    figure.savefig(content, dpi=150, format="png")
    write_bytes(path, content.getvalue())
    print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    run_command(Options, main, "scripts/left_out.py", __doc__)
