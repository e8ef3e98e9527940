"""Tables of the learned fusion: gain and cost of its stages, gain of its feature families."""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from experiments.cells import RUN, Cell, Result, Setup
from experiments.systems import (
    ALL_FAMILIES,
    FUSION_ABLATIONS,
    FUSION_STAGES,
    JUDGED_YEARS,
    ONE_OBJECTIVE,
    WITHOUT,
)
from experiments.tables.base import (
    ResultTable,
    markdown_table,
    mean,
    mean_of,
    results_of,
    shown,
    titled,
)
from experiments.tables.significance import marked
from indexes.files import atomic_file
from pipeline.collections import named
from pipeline.collections.named import open_collection
from pipeline.collections.trec import Qrels, Run, best_of, read_run
from pipeline.command.runtime import choose_device, provenance
from pipeline.explanation.contributions import shares
from pipeline.ranking.checkpoints import Loading, load_scorer, precomputed_for
from pipeline.ranking.fusion import Fusion, UnionRetriever
from pipeline.ranking.retrievers import Candidates, retriever_for
from pipeline.ranking.scorers import ModelScorer
from rerankers import checkpoint
from rerankers.models._feature_model import FeatureModel

RECALL, IMPORTANCE = "recall", "importance"
"""Additional measures: recall of a stage; importance of the family that a row leaves out."""

FROM_TEXTS, PRECOMPUTED = "ms for 1000", "ms for 1000, posts precomputed"
"""Additional measures: times of reranking, see :func:`milliseconds`."""

DEPTH = 1000
"""Depth of recall."""

TOPICS = 20
"""Number of timed topics, the first ones of a collection."""

REPEATS = 10
"""Number of timed repetitions; the quickest one counts, as other load only adds time."""

Score = Callable[[Candidates], Run]


class Stages(ResultTable):
    """A row per stage, compared with the one before."""

    systems = FUSION_STAGES
    collections = JUDGED_YEARS
    only_judged = True
    notes = f"""\
▲▼: significantly better or worse than the row above, by Fisher's two-sided paired randomization
test over topics, p < .05, not corrected. Recall is the share of all relevant posts of the judgments
that are among the first {DEPTH} of their topic. {FROM_TEXTS} candidates: reranking time from texts
to scores on all cores, with the neural score that a fusion reads and without searches; also with
posts precomputed by pipeline.index --precompute."""

    def markdown(self, results: Sequence[Result]) -> str:
        """Measures and recall of each year, seconds of training, milliseconds of reranking."""
        columns = [
            (name, measure)
            for name in self.present(results)
            for measure in (*named.find(name).measures, RECALL)
        ]
        titles = [f"{titled(name)} {measure}" for name, measure in columns]
        rows = [["stage", *titles, "training, s", FROM_TEXTS, PRECOMPUTED]]
        for system in self.systems:
            found = results_of(system, results)
            cells = [_marked_mean(results_of(system, found, name), m) for name, m in columns]
            seconds = mean([result.seconds for result in found if result.seconds])
            times = [mean_of(found, measure) for measure in (FROM_TEXTS, PRECOMPUTED)]
            rows.append(
                [system.name, *cells, shown(seconds, ".0f"), *(shown(t, ".1f") for t in times)]
            )
        return markdown_table(rows)

    def finish(self, results: Sequence[Result], setup: Setup) -> list[Result]:
        """The results with recall, times, and marks against the stage before."""
        measured = [_with_costs(result, setup) for result in results]
        done = results_of(self.systems[0], measured)
        for before, system in pairwise(self.systems):
            both = [*results_of(before, measured), *results_of(system, measured)]
            done += results_of(system, marked(both, [before.name], setup))
        return done


def _marked_mean(found: Sequence[Result], measure: str) -> str:
    value = mean_of(found, measure)
    if value is None:
        return "-"
    mark = "▲" * bool(found[0].better_than.get(measure))
    mark += "▼" * bool(found[0].worse_than.get(measure))
    return f"{value:.4f}{mark}"


def recall(qrels: Qrels, run: Run, depth: int = DEPTH) -> float:
    """Share of all relevant posts of all topics among the first ``depth`` of their topic, or 0."""
    relevant = {(q, d) for q, grades in qrels.items() for d, grade in grades.items() if grade > 0}
    found = {(q, d) for q, scores in best_of(run, depth).items() for d in scores}
    return len(relevant & found) / max(1, len(relevant))


def _with_costs(result: Result, setup: Setup) -> Result:
    cell = result.cell
    qrels = setup.collection(cell.collection).qrels
    added = {}
    if qrels is not None:
        added[RECALL] = round(recall(qrels, read_run(setup.run_file(cell))), 4)
    if cell.kind != RUN:
        added |= milliseconds(cell, setup)
    return dataclasses.replace(result, measures=result.measures | added)


def milliseconds(cell: Cell, setup: Setup) -> Mapping[str, float]:
    """Milliseconds for 1000 candidates, from texts to scores of the cell's model.

    ``FROM_TEXTS``, and ``PRECOMPUTED`` with posts precomputed by ``pipeline.index``. Neural scores
    that a fusion reads are included, searches are not. Measured once, on all cores while no cell
    is computed, and kept beside the results.
    """
    path = setup.directory / "timings" / f"{cell.key}.json"
    if path.exists():
        times: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))["times"]
        return times
    with TemporaryDirectory() as directory:
        candidates, *scorers = _scorers(cell, setup, Path(directory))
        names = (FROM_TEXTS, PRECOMPUTED)
        times = {n: _quickest(s, candidates) for n, s in zip(names, scorers, strict=True)}
    with atomic_file(path) as stream:
        stream.write(json.dumps({"times": times, **provenance()}, indent=1) + "\n")
    return times


def _scorers(cell: Cell, setup: Setup, directory: Path) -> tuple[Candidates, Score, Score]:
    """Candidates, their scoring from texts, and with posts precomputed in a folder."""
    collection = open_collection(cell.collection, data=setup.data)
    device = choose_device(setup.device)

    def load(name: str, folder: Path) -> ModelScorer:
        return load_scorer(name, collection, folder, Loading(device))

    reranker = load(cell.reranker, setup.checkpoint(cell))
    if cell.is_fusion:
        now = Fusion.load(collection, reranker, load)
        candidates = UnionRetriever(collection, now.retriever.rankers).search(
            collection.topics[:TOPICS]
        )
        ready = now.precomputed_for(list(candidates.posts.values()), directory)
        return candidates, lambda c: now.score(now.read(c)), lambda c: ready.score(ready.read(c))
    candidates = retriever_for(collection, "ql").search(collection.topics[:TOPICS])
    posts = list(candidates.posts.values())
    precomputed = precomputed_for(reranker, posts, directory / "precomputed")
    return candidates, reranker.score, precomputed.score


def _quickest(score: Score, candidates: Candidates) -> float:
    """Milliseconds for 1000 candidates."""
    seconds = []
    for _ in range(REPEATS):
        fresh = dataclasses.replace(candidates, memo={})
        started = time.perf_counter()
        score(fresh)
        seconds.append(time.perf_counter() - started)
    count = sum(map(len, candidates.run.values()))
    return round(1e6 * min(seconds) / max(1, count), 1)


class Families(ResultTable):
    """A row per feature family: the fusion without it, on held-out training topics."""

    systems = (ALL_FAMILIES, *FUSION_ABLATIONS, ONE_OBJECTIVE)
    collections = ("mb2013",)
    notes = """\
AP and P@30 of held-out training topics: five folds by topic, without the topics of the test year.
A ranker's family is left out together with the candidates that no other ranker finds. Importance is
a family's share of the gain of all splits, in the trees over all families."""

    def markdown(self, results: Sequence[Result]) -> str:
        """Measures with their differences to all families; importance in percent."""
        measures = named.find(self.collections[0]).measures
        columns = [column for measure in measures for column in (measure, "difference")]
        rows = [["families", *columns, "importance, %"]]
        whole = results_of(ALL_FAMILIES, results)
        for system in self.systems:
            found = results_of(system, results)
            row = [system.name]
            for measure in measures:
                ours, base = mean_of(found, measure), mean_of(whole, measure)
                difference = ""
                if ours is not None and base is not None and system is not ALL_FAMILIES:
                    difference = f"{ours - base:+.4f}"
                row += [shown(ours), difference]
            importance = mean_of(found, IMPORTANCE)
            rows.append([*row, "" if importance is None else f"{100 * importance:.1f}"])
        return markdown_table(rows)

    def finish(self, results: Sequence[Result], setup: Setup) -> list[Result]:
        """The results with the importance of the family that each leaves out."""
        by_seed = {}
        for whole in results_of(ALL_FAMILIES, results):
            model = cast(FeatureModel, checkpoint.load(setup.checkpoint(whole.cell)).model)
            by_seed[whole.cell.seed] = shares(model.importances())
        done = []
        for result in results:
            family = result.cell.system.removeprefix(WITHOUT)
            share = by_seed.get(result.cell.seed, {}).get(family)
            added = {} if share is None else {IMPORTANCE: round(share, 4)}
            done.append(dataclasses.replace(result, measures=result.measures | added))
        return done
