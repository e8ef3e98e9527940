#!/usr/bin/env python3
"""What the model window does on collections that it was not trained on, in its three forms.

    python scripts/left_out.py
    python scripts/left_out.py --output scripts/results
    python scripts/left_out.py --adapted         # after python -m pipeline.adapt --collection NAME

Each collection of another kind is left out in turn, the microblog years together. A model of the
others ranks the best 100 of BM25 for the training topics of what was left out: with their scores,
in their order, and as a set. The error of the calibration, too, is that of topics and collections
which neither the model nor the calibration has seen; reliability.png shows it (needs matplotlib).

With --adapted, only collections that have adapted word vectors are left out, for the same model,
one that reads these vectors, and that one trained further on four fifths of the own training
topics and measured on the fifth, in turn.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.command.errors import DataError
from pipeline.command.options import option, positive_int, run_command

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pipeline.collections.collection import SearchedCollection
    from pipeline.collections.trec import Qrels, Run
    from pipeline.ranking.retrievers import Candidates
    from pipeline.training.training_set import JudgedCandidates
    from rerankers.models.window import Model
    from rerankers.text.vocabulary import Idf

FOLDS = 5
"""Parts of a collection's own topics."""

BINS = 10
"""Equal parts of [0, 1] in which probabilities are compared with what happened."""


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

    from pipeline.collections import named
    from pipeline.collections.collection import SearchedCollection
    from pipeline.command.runtime import bar, choose_device
    from pipeline.training.fusion import window_training_set
    from pipeline.training.training_set import searched_training_set
    from rerankers import features

    choose_device("cpu", options.threads)
    names = named.training_collections(None, options.data, True)
    found = [named.find(name, options.data) for name in names]
    collections = [each for each in found if isinstance(each, SearchedCollection)]
    data = window_training_set(searched_training_set(names, None), collections).training
    values = features.table(data.candidates.pairs(), _families(), _idf()).values
    owners = np.array([twin.rpartition("/")[0] for twin in data.twins])
    results: list[LeftOut] = []
    groups = [[c for c in collections if c.runs], *([c] for c in collections if not c.runs)]
    if options.adapted:
        groups = [[c] for c in collections if c.adapted_space]
    with bar(len(groups), "leaving out", "group") as progress:
        for group in groups:
            seen = ~np.isin(owners, [collection.name for collection in group])
            model = _trained(data, values, seen)
            if options.adapted:
                reader = _trained(data, values, seen, "adapted")
                results.append(_adapted(model, reader, group[0], data, values))
            else:
                results += [_scored(model, collection) for collection in group]
            progress(1)
    if options.adapted:
        report_adapted(results, options.output)
    else:
        report(results, options.output)


def _families() -> Sequence[str]:
    """All families; those of adapted vectors, which not every model reads, are the last."""
    from rerankers.models.window import Model

    return Model.configurations["adapted"].families.split(",")


def _idf() -> Idf:
    from rerankers import checkpoint

    return checkpoint.idf_from("wordfreq")


def _trained(
    data: JudgedCandidates,
    values: npt.NDArray[np.float32],
    seen: npt.NDArray[np.bool_],
    configuration: str = "general",
    start: Model | None = None,
) -> Model:
    """The model of the topics ``seen`` [Q], of features [P, K]; it extends the trees of another."""
    import numpy as np
    import torch

    from rerankers.models.window import Model
    from rerankers.text.vocabulary import Vocabulary

    words = Vocabulary([], np.zeros((0, 1), np.float32))
    model = Model(Model.configurations[configuration], words)
    if start:
        model.start_from(start)
    query_index = data.candidates.texts().query_index
    rows = np.flatnonzero(seen[query_index])
    read = values[rows, : len(model.names)]
    of_pairs = read, data.relevant()[rows], query_index[rows]
    features, relevant, queries = map(torch.from_numpy, of_pairs)
    model.fit(features, relevant, queries)
    return model


def _scored(model: Model, collection: SearchedCollection) -> LeftOut:
    """A left-out collection's windows, scored in each form."""
    from pipeline.training.fusion import FORMS

    found = _found(collection)
    scores = {
        form: _run(model, replace(found, forms=dict.fromkeys(found.run, form))) for form in FORMS
    }
    return LeftOut(collection.name, _judgments(collection, found), found.run, scores)


def _adapted(
    model: Model,
    reader: Model,
    collection: SearchedCollection,
    data: JudgedCandidates,
    values: npt.NDArray[np.float32],
) -> LeftOut:
    """A left-out collection's windows, scored by three models.

    That is a model without adapted vectors, one that reads them, and the latter trained on the
    collection's other topics.
    """
    import numpy as np

    from pipeline.training.tuning import fold_topics

    found, trained = _found(collection), {}
    for fold in fold_topics(found.run, FOLDS, seed=1):
        names = [f"{collection.name}/{query_id}" for query_id in found.run if query_id not in fold]
        own = _trained(data, values, np.isin(data.twins, names), "adapted", reader)
        run = _run(own, found)
        trained |= {query_id: run[query_id] for query_id in fold}
    scores = {"scores": _run(model, found), "adapted": _run(reader, found), "trained": trained}
    return LeftOut(collection.name, _judgments(collection, found), found.run, scores)


def _found(collection: SearchedCollection) -> Candidates:
    """BM25's windows for the training topics of a collection, with its adapted vectors."""
    from pipeline.ranking.retrievers import retriever_for, with_space
    from pipeline.training.fusion import MOST_TOPICS, WINDOW

    retriever = retriever_for(collection, method="bm25")
    return with_space(
        retriever.search(collection.training_topics[:MOST_TOPICS], WINDOW), collection
    )


def _judgments(collection: SearchedCollection, found: Candidates) -> Qrels:
    grades = collection.training_qrels or {}
    return {topic.query_id: grades[topic.query_id] for topic in found.topics}


def _run(model: Model, candidates: Candidates) -> Run:
    import torch

    from rerankers import features

    table = features.table(candidates.pairs(), model.feature_families, _idf())
    return candidates.run_of(model.head(torch.from_numpy(table.values)).numpy())


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


def report_adapted(results: Sequence[LeftOut], output: Path | None) -> None:
    """Print AP by collection; write the CSV."""
    rows = [
        {"collection": result.collection, "bm25": _ap(result.qrels, result.first_stage)}
        | {name: _ap(result.qrels, run) for name, run in result.scores.items()}
        for result in results
    ]
    _print(rows, output and output / "left_out_adapted.csv")


def _print(rows: Sequence[Mapping[str, object]], path: Path | None) -> None:
    """Print a table, and write it."""
    if not rows:
        raise DataError(
            "found no collection with adapted word vectors; make some by pipeline.adapt"
        )
    print(" | ".join(rows[0]))
    for row in rows:
        print(" | ".join(v if isinstance(v, str) else f"{v:.4f}" for v in row.values()))
    if path:
        _write(path, list(rows[0]), [list(row.values()) for row in rows])


def _write(path: Path, fields: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from indexes.files import atomic_file

    with atomic_file(path) as stream:
        csv.writer(stream).writerows([fields, *rows])
    print(f"wrote {path}", file=sys.stderr)


def _ap(qrels: Qrels, run: Run) -> float:
    from pipeline.evaluation.measures import evaluate, mean

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
    from io import BytesIO

    from matplotlib.figure import Figure

    from indexes.files import write_bytes

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
