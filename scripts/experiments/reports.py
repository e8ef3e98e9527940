"""Functions that a table names: ``finish`` adds marks of significance and measures to results,
``report`` gives Markdown from runs and posts, ``draw_NAME`` draws the ``figure`` of this name."""

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from io import BytesIO
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import normalize

from experiments.cells import BETTER, MIXTURE_BETTER, WORSE, Result, Setup, means, okapi
from experiments.left_out import FIRST_STAGES, Judged
from experiments.tables import CLEAN, Row, Table, markdown_table, titled
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import write_bytes
from tweetrerank.indexes.posts import Post, read_posts
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.folders import default_vectors
from tweetrerank.pipeline.collections.topics import read_topics
from tweetrerank.pipeline.collections.trec import (
    Place,
    Run,
    best_of,
    places,
    read_qrels,
    read_run,
)
from tweetrerank.pipeline.evaluation.measures import evaluate
from tweetrerank.pipeline.evaluation.significance import randomization_test
from tweetrerank.pipeline.explanation.topic import grade_text
from tweetrerank.pipeline.ranking.interpolation import Calibration
from tweetrerank.pipeline.training.cross_validation import HeldOut, calibrate
from tweetrerank.rerankers import checkpoint
from tweetrerank.rerankers.explanation import visible
from tweetrerank.rerankers.networks.base import QUERY
from tweetrerank.rerankers.networks.models._mp_hcnn_matches import (
    PairMatches,
    find_matches,
    mean_by_word,
)
from tweetrerank.rerankers.networks.models.mp_hcnn import Model
from tweetrerank.rerankers.networks.network import Network
from tweetrerank.rerankers.text.vectors import read_vectors
from tweetrerank.rerankers.text.words import (
    STOP_WORDS,
    URL_PLACEHOLDER,
    url_text,
    words,
)
from tweetrerank.rerankers.trees.boosting import Trees

LEVEL = 0.05
BINS = 10  # Equal parts of [0, 1] of the calibration error
PERMUTATIONS = 20_000  # Enough to tell p to within .003 around the level
EXTREMES = 5  # Figures 3 and 4: number of topics listed at either end
TOPICS, POSTS = 5, 20  # Table 5: topics with the largest gains, and posts of each
RELEVANT = 2  # Table 6: relevant posts besides the one that MP-HCNN ranks first
PARAPHRASE_COSINE = 0.8  # Least cosine of similar phrases; unrelated ones reach 0.7
NEAREST = (
    20  # Candidates of a question, by Okapi (section 6.3: by a vector space model)
)
BATCH_SIZE = 256  # Questions per forward pass
QUESTIONS = {
    "stackfaq": False,
    "semeval-cqa-b": True,
}  # Whether candidates are the judged posts
PREFIX = 4  # Number of first letters of a word that suffice in a URL
_HASHTAG = re.compile(r"(?:^|\s)##?\s?\w")

Values = Mapping[str, npt.NDArray[np.float64]]  # Measure -> a value per judged topic


def significance(
    table: Table,
    results: Sequence[Result],
    setup: Setup,
    before: Mapping[str, str] | None = None,
) -> list[Result]:
    """The results with marks against the table's marked systems, or against the system ``before``
    each, that have results and judgments; marked ones without a result are told. By Fisher's
    two-sided paired randomization test over topics, p < .05, uncorrected as in the papers' tables.
    With several seeds, a topic's value is the mean over them."""
    seeds, references = (
        defaultdict(list),
        [*dict.fromkeys([*table.better, *table.worse])],
    )
    for result in results:
        seeds[result.cell.collection, result.cell.system].append(result)
    values = {key: values_of(own, setup) for key, own in seeds.items()}
    for name in (
        dict.fromkeys(collection for collection, _ in seeds) if before is None else ()
    ):
        if missing := [other for other in references if (name, other) not in values]:
            told = f"found no finished cell of {', '.join(missing)}, so no row is compared with it"
            print(f"{table.name}: {name}: {told}; --train computes it", file=sys.stderr)

    def compared(
        ours: Values, others: Mapping[str, Values], sign: int
    ) -> dict[str, tuple[str, ...]]:
        marks: dict[str, tuple[str, ...]] = defaultdict(tuple)
        for (measure, own), (name, of) in product(ours.items(), others.items()):
            if sign * (own.mean() - of[measure].mean()) > 0:
                pair = own.tolist(), of[measure].tolist()
                if randomization_test(*pair, permutations=PERMUTATIONS) < LEVEL:
                    marks[measure] += (name,)
        return dict(marks)

    marks = {}
    for (name, system), own in seeds.items():
        named = references if before is None else [before.get(system, "")]
        others = {o: values[name, o] for o in named if (name, o) in values}
        # Only a mixture is compared with its own neural score.
        alone = {other: of for other, of in others.items() if other != system}
        marks[name, system] = {
            BETTER: compared(values[name, system], alone, 1),
            WORSE: compared(values[name, system], alone, -1),
            MIXTURE_BETTER: compared(values_of(own, setup, is_mixture=True), others, 1),
        }
    return [replace(r, marks=marks[r.cell.collection, r.cell.system]) for r in results]


def values_of(
    results: Sequence[Result], setup: Setup, *, is_mixture: bool = False
) -> Values:
    """Values per topic of a system, or of its mixture if it has one; means over seeds."""
    collection = setup.collection(results[0].cell.collection)
    file_of = setup.mixture_file if is_mixture else setup.run_file
    files = [path for result in results if (path := file_of(result.cell))]
    if collection.qrels is None or not files:
        return {}
    runs = [
        evaluate(collection.qrels, read_run(path), collection.measures)
        for path in files
    ]
    return {
        m: np.mean([list(run[m].values()) for run in runs], axis=0) for m in runs[0]
    }


def sizes(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """Sizes of the collections, counted over the official run, as measures."""
    known, done = set(read_vectors(default_vectors(setup.data)).words), []
    for result in results:
        collection = setup.collection(result.cell.collection)
        run, qrels = read_run(collection.runs["ql"]), collection.qrels
        posts = {post.doc_id: post for post in collection.posts()}
        pairs = [
            (query_id, posts[doc_id]) for query_id, of in run.items() for doc_id in of
        ]
        distinct = {word for _, post in pairs for word in words(post.text)}
        measures: dict[str, float] = {
            "topics": len(run),
            "query-document pairs": len(pairs),
            "unique words": len(distinct),
            "unique OOV words": len(distinct - known),
            "URLs": sum(bool(post.url) for _, post in pairs),
            "hashtags": sum(bool(_HASHTAG.search(post.text)) for _, post in pairs),
        }
        if qrels is not None:
            relevant = (qrels.get(q, {}).get(post.doc_id, 0) > 0 for q, post in pairs)
            measures["relevant documents"] = sum(relevant)
        done.append(replace(result, measures=measures))
    return done


def clean_questions(
    table: Table, results: Sequence[Result], setup: Setup
) -> list[Result]:
    """The results, and those of the same runs on the clean questions alone. The others change
    neither training nor the choice of the epoch: any ranking is worth the same."""
    done = list(results)
    for result in results:
        clean = CLEAN.get(result.cell.collection, "")
        if result.measures and clean in table.collections:
            collection, run = (
                setup.collection(clean),
                read_run(setup.run_file(result.cell)),
            )
            measures = means(collection.qrels, run, collection.measures)
            cell = replace(result.cell, collection=clean)
            done.append(replace(result, cell=cell, measures=measures))
    return done


def question_curves(
    table: Table, results: Sequence[Result], setup: Setup
) -> list[Result]:
    """The results with AP by α as measures, ``stackfaq 0.05`` and so on (section 6.3). α · cosine
    of question vectors + (1 - α) · Okapi, both scaled to [0, 1] per topic; α is 0, 0.05, …, 1.
    Candidates of the training topics are the judged posts or the nearest."""
    general, done = named.data_directory(setup.data) / "general", []
    for result in results:
        trained = cast(Network, checkpoint.load(setup.checkpoint(result.cell)))
        done.append(replace(result, measures={}))
        for name, judged_only in QUESTIONS.items():
            topics = read_topics(general / name / "topics.train.tsv")
            texts = {
                post.doc_id: post.text
                for post in read_posts(general / name / "posts.jsonl")
            }
            qrels, scores = read_qrels(general / name / "qrels.train.txt"), okapi(texts)
            found = {}
            for query_id, text, *_ in topics:
                found[query_id] = scores(
                    text, qrels.get(query_id, {}) if judged_only else texts
                )
            lexical = best_of(found, NEAREST)
            doc_ids = sorted(
                {doc_id for of_topic in lexical.values() for doc_id in of_topic}
            )
            of_posts = question_vectors(trained, [texts[d] for d in doc_ids])
            vectors = dict(zip(doc_ids, of_posts, strict=True))
            of_topics = question_vectors(trained, [topic.text for topic in topics])
            neural = {
                topic.query_id: {
                    d: float(vector @ vectors[d]) for d in lexical[topic.query_id]
                }
                for topic, vector in zip(topics, of_topics, strict=True)
            }
            for alpha, value in HeldOut(lexical, neural, qrels).tune().curve.items():
                done[-1].measures[f"{name} {alpha:.2f}"] = round(value, 4)
    return done


def question_vectors(
    trained: Network, questions: Sequence[str]
) -> npt.NDArray[np.float32]:
    """Sentence vectors of questions by a CNTN, normalized to length 1: [N, E]. The paper calls its
    model with M = I "just a cosine", which v_qᵀ v_a is for such vectors alone."""
    model, encoder = trained.model, trained.encoder
    inputs = encoder.tokens(model, QUERY, questions)
    parts = np.array_split(np.arange(len(questions)), -(-len(questions) // BATCH_SIZE))
    with torch.inference_mode():
        batches = [
            {n: of.batch(rows, model.device_of()) for n, of in inputs.items()}
            for rows in parts
        ]
        vectors = torch.cat(
            [cast(torch.Tensor, model.encode(batch, QUERY)) for batch in batches]
        )
    return normalize(vectors, dim=1).float().cpu().numpy()


def stages(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with marks against the row before, and the share of all relevant posts found."""

    def recall(result: Result) -> dict[str, float]:
        run, qrels = setup.judged(result.cell)
        run = best_of(run, 1000)
        relevant = [
            (q, d) for q, grades in qrels.items() for d in grades if grades[d] > 0
        ]
        found = sum(doc_id in run.get(query_id, {}) for query_id, doc_id in relevant)
        return {"recall": round(found / max(1, len(relevant)), 4)} if qrels else {}

    before = {system.name: other.name for other, system in pairwise(table.systems)}
    return significance(table, _with(results, recall), setup, before)


def importances(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with the importance of the family that each leaves out."""
    of_families = {}
    for whole in (r.cell for r in results if r.cell.system == table.systems[0].name):
        trees = cast(Trees, checkpoint.load(setup.checkpoint(whole)))
        for name, share in trees.importances().items():
            of_families[f"- {name}", whole.seed] = {"importance": round(share, 4)}
    return _with(results, lambda r: of_families.get((r.cell.system, r.cell.seed), {}))


def calibration(table: Table, results: Sequence[Result], setup: Setup) -> list[Result]:
    """The results with a margin of error, those of models with their calibration error, too. Models
    are calibrated on the other collections."""
    judged = {r.cell: setup.judged(r.cell) for r in results}
    of_form = {
        (cell.reranker, cell.collection): found for cell, found in judged.items()
    }

    @cache
    def without(collection: str, is_fusion: bool) -> Calibration:
        alike = (c for c in judged if (c.reranker == "fusion") == is_fusion)
        models = (cell for cell in alike if first_stage_of(cell.reranker))
        return calibrated(
            [judged[cell] for cell in models if cell.collection != collection]
        )

    def measures(result: Result) -> dict[str, float]:
        ours, own = result.cell, judged[result.cell]
        first = first_stage_of(ours.reranker)
        added = {"±": margin(own, of_form.get((first or "", ours.collection)))}
        if not first:
            return added
        calibration = without(ours.collection, ours.reranker == "fusion")
        return added | {"ECE": calibration_error(own, calibration)}

    return _with(results, measures)


def margin(own: Judged, first: Judged | None) -> float:
    """Half of the 95 % interval over topics of a ranking's gain in AP over its first stage. Of the
    AP itself without one. Normal approximation."""
    (run, qrels), base = own, first[0] if first else {}
    found, before = (evaluate(qrels, each, ["AP"])["AP"] for each in (run, base))
    gains = [value - before[topic] for topic, value in found.items()]
    return round(1.96 * float(np.std(gains, ddof=1)) / len(gains) ** 0.5, 4)


def first_stage_of(form: str) -> str | None:
    """The first stage of a form; None if it is one itself."""
    return None if form in FIRST_STAGES else form.rpartition("/")[0] or "bm25"


def calibrated(rankings: Sequence[Judged]) -> Calibration:
    """Calibration on several rankings."""
    scores = {
        f"{n}/{q}": of for n, (run, _) in enumerate(rankings) for q, of in run.items()
    }
    grades = {
        f"{n}/{q}": of
        for n, (_, qrels) in enumerate(rankings)
        for q, of in qrels.items()
    }
    return calibrate(scores, grades) or Calibration()


def calibration_error(own: Judged, calibration: Calibration) -> float:
    """Expected calibration error of a ranking's probabilities. The mean over pairs of |share of
    relevant pairs - mean probability| of each of :data:`BINS`."""
    (run, qrels), (slope, intercept) = own, calibration
    pairs = [
        (s, qrels[q].get(d, 0) > 0)
        for q, scores in run.items()
        for d, s in scores.items()
    ]
    values, relevant = np.array(pairs, dtype=np.float64).T
    chances = 1 / (1 + np.exp(-(slope * values + intercept)))
    bins = np.minimum((chances * BINS).astype(int), BINS - 1)
    return round(
        float(np.abs(np.bincount(bins, relevant - chances, BINS)).sum()) / len(pairs), 4
    )


def _with(
    results: Sequence[Result], of: Callable[[Result], dict[str, float]]
) -> list[Result]:
    return [
        replace(result, measures=result.measures | of(result)) for result in results
    ]


# Tables of Rao et al. (2019) from runs and posts


class Year(NamedTuple):
    """QL and MP-HCNN, a table's two systems, on the topics of a year."""

    collection: Collection
    topics: Mapping[str, str]  # query_id -> text
    runs: Mapping[str, Run]  # Of QL and of MP-HCNN
    gains: Mapping[str, Mapping[str, float]]
    """MP-HCNN and MP-HCNN+ -> query_id -> AP minus AP of QL, by decreasing gain of MP-HCNN."""
    neural: Mapping[str, float]  # Those of MP-HCNN
    network: Network

    def changes(self, query_id: str) -> dict[str, list[Place]]:
        """doc_id -> places by QL and by MP-HCNN, in the order of MP-HCNN."""
        before, after = (places(run[query_id]) for run in self.runs.values())
        return {doc_id: [before[doc_id], place] for doc_id, place in after.items()}

    def matches(
        self, query_id: str, doc_ids: Sequence[str]
    ) -> list[tuple[Post, PairMatches]]:
        """Some posts with MP-HCNN's matches."""
        found = self.collection.find_posts(doc_ids)
        texts, urls = zip(
            *((found[d].text, found[d].url) for d in doc_ids), strict=True
        )
        model, encoder = cast(Model, self.network.model), self.network.encoder
        pairs = find_matches(model, encoder, self.topics[query_id], texts, urls)
        return [
            (found[doc_id], pair) for doc_id, pair in zip(doc_ids, pairs, strict=True)
        ]


def years(table: Table, results: Sequence[Result], setup: Setup) -> Iterator[Year]:
    """The years with results; DataError without judgments or a finished cell of each system."""
    for name in dict.fromkeys(result.cell.collection for result in results):
        collection, system = setup.collection(name), table.systems[1]
        base, ours = (Row(table, each, results).own(name) for each in table.systems)
        if collection.qrels is None:
            raise DataError(collection.missing_judgments)
        if not ours or not base:
            problem = (
                "found no finished cell of MP-HCNN, expected one to compare with QL"
            )
            raise DataError(f"{name}: {problem}; --train computes it")
        ql, neural = (values_of(of, setup)["AP"] for of in (base, ours))
        mixture = values_of(ours, setup, is_mixture=True)["AP"]
        order = np.argsort(ql - neural, kind="stable")
        values = {
            system.name: (neural - ql)[order],
            system.mixture: (mixture - ql)[order],
        }
        query_ids = np.array([*collection.qrels])[order].tolist()
        gains = {
            n: dict(zip(query_ids, of.tolist(), strict=True))
            for n, of in values.items()
        }
        runs = {
            r.cell.system: read_run(setup.run_file(r.cell)) for r in (base[0], ours[0])
        }
        topics = {topic.query_id: topic.text for topic in collection.topics}
        network = cast(Network, checkpoint.load(setup.checkpoint(ours[0].cell)))
        yield Year(collection, topics, runs, gains, gains[system.name], network)


def gains(table: Table, results: Sequence[Result], setup: Setup) -> str:
    """Figures 3 and 4: wins and losses beside the paper's, and the topics at either end."""
    (year,) = years(table, results, setup)
    rows = [["system", "topics above QL", "below", "paper: above", "below"]]
    for name, values in year.gains.items():
        counts = [sum(sign * gain > 0 for gain in values.values()) for sign in (1, -1)]
        rows.append(
            [name, *map(str, counts), *map(str, table.paper.get(name, ["-", "-"]))]
        )
    order, listed = [*year.neural], [["topic", "", "AP - AP of QL"]]
    for query_id in dict.fromkeys([*order[:EXTREMES], *order[-EXTREMES:]]):
        listed.append(
            [query_id, year.topics[query_id], f"{year.neural[query_id]:+.3f}"]
        )
    return f"{markdown_table(rows)}\n\n{markdown_table(listed)}"


def categories(table: Table, results: Sequence[Result], setup: Setup) -> str:
    """Table 5: categories of matches in the best posts of the topics with the largest gains."""
    found = [
        (year, *of)
        for year in years(table, results, setup)
        for of in year.neural.items()
    ]
    best = sorted(found, key=lambda row: -row[2])[:TOPICS]
    posts = [
        categories_of(year.topics[query_id], post, pair)
        for year, query_id, _ in best
        for post, pair in year.matches(query_id, [*year.changes(query_id)][:POSTS])
    ]
    rows = [["category", "ours, %", "paper, %"]]
    for (name, paper), share in zip(
        table.paper.items(), np.mean(posts, axis=0), strict=True
    ):
        rows.append([name, f"{100 * share:.0f}", *map(str, paper)])
    topics = ", ".join(f"{query_id} (AP {gain:+.2f})" for _, query_id, gain in best)
    intro = f"The first {POSTS} posts by MP-HCNN of each of the topics {topics}"
    return f"{markdown_table(rows)}\n\n{intro}, {len(posts)} in all."


def categories_of(query: str, post: Post, pair: PairMatches) -> list[bool]:
    """Whether each category of the table fits a query and a post, by the rules below it."""
    query_words, post_words = words(query), [word.text for word in pair.post_words]
    content = [word for word in query_words if word not in STOP_WORDS] or query_words
    cosines, link = pair.matches["words"][1].values, url_text(post.url)
    phrases = product(
        enumerate(pairwise(pair.query_words)), enumerate(pairwise(post_words))
    )
    return [
        bool(set(content) & set(post_words)),
        bool(set(pairwise(query_words)) & set(pairwise(post_words))),
        any(
            cosines[i, j] >= PARAPHRASE_COSINE and a != b for (i, a), (j, b) in phrases
        ),
        link != URL_PLACEHOLDER and any(word[:PREFIX] in link for word in content),
    ]


def samples(table: Table, results: Sequence[Result], setup: Setup) -> str:
    """Table 6: posts of the topics with the largest gain and loss, MP-HCNN's first one and the
    relevant ones that moved most."""
    rows = [["topic", "post", "judged", "QL: score (rank)", "MP-HCNN", "matches"]]
    (year,) = years(table, results, setup)
    first, *_, last = year.neural
    return markdown_table(
        [*rows, *_samples_of(year, first, 1), *_samples_of(year, last, -1)]
    )


def _samples_of(year: Year, query_id: str, sign: int) -> Iterator[list[str]]:
    changes, grades = year.changes(query_id), (year.collection.qrels or {})[query_id]
    gains = {
        doc_id: before.rank - after.rank for doc_id, (before, after) in changes.items()
    }
    moved = sorted(gains, key=lambda doc_id: -sign * gains[doc_id])
    relevant = [doc_id for doc_id in moved if grades.get(doc_id, 0) > 0]
    doc_ids = list(dict.fromkeys([next(iter(changes)), *relevant]))[: 1 + RELEVANT]
    title = f"{query_id}: {year.topics[query_id]} (AP {year.neural[query_id]:+.2f})"
    for post, pair in year.matches(query_id, doc_ids):
        text = visible(" ".join(f"{post.text} {post.url}".split())).replace("|", "\\|")
        ranks = [f"{p.score:.2f} (#{p.rank})" for p in changes[post.doc_id]]
        yield [title, text, grade_text(grades.get(post.doc_id)), *ranks, _matches(pair)]
        title = ""


def _matches(pair: PairMatches) -> str:
    """Each query word and its best matches: by words, by phrases and in the URL."""
    words, phrases, *_ = pair.matches["words"]
    best: list[Sequence[float | None]] = [
        words.best().tolist(),
        phrases.best().tolist(),
    ]
    if pair.url:
        best.append(
            mean_by_word(pair.matches["url_trigrams"][1].best(), pair.query_words)
        )
    return ", ".join(
        " ".join([word, *(f"{value:.2f}" for value in values if value is not None)])
        for word, *values in zip(pair.query_words, *best, strict=True)
    )


# Figures


def draw(path: Path, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """Write the table's figure as PNG."""
    from matplotlib.figure import Figure

    content = BytesIO()
    figure = Figure(figsize=(12.0, 4.0) if table.figure == "gains" else (6.0, 4.0))
    globals()[f"draw_{table.figure}"](figure, table, results, setup)
    figure.savefig(content, dpi=150, bbox_inches="tight", format="png")
    write_bytes(path, content.getvalue())


def draw_depths(
    figure: Any, table: Table, results: Sequence[Result], setup: Setup
) -> None:
    """AP by depth, a line per year."""
    rows = [Row(table, system, results) for system in table.systems]
    lines = {
        titled(name): {
            n: ap for n, row in enumerate(rows) if (ap := row.mean("AP", name))
        }
        for name in table.collections
    }
    _lines(figure, lines, "o").set(
        xlabel="convolutional layers N", xticks=range(len(rows))
    )


def draw_curves(
    figure: Any, table: Table, results: Sequence[Result], setup: Setup
) -> None:
    """AP by α, a line per collection of questions."""
    _lines(figure, Row(table, table.systems[0], results).curves(), ".").set(xlabel="α")


def _lines(figure: Any, lines: Mapping[str, Mapping[Any, float]], marker: str) -> Any:
    if not any(lines.values()):
        raise DataError("found no result with judgments, expected some to draw")
    axes = figure.subplots()
    for name, points in lines.items():
        if points:
            axes.plot(list(points), list(points.values()), marker=marker, label=name)
    axes.set(ylabel="AP")
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    return axes


def draw_gains(
    figure: Any, table: Table, results: Sequence[Result], setup: Setup
) -> None:
    """Two bars per topic, by decreasing gain of MP-HCNN."""
    (year,) = years(table, results, setup)
    axes, places = figure.subplots(), np.arange(len(year.neural))
    for shift, (name, values) in zip((-0.2, 0.2), year.gains.items(), strict=True):
        axes.bar(places + shift, list(values.values()), 0.4, label=name)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(places, list(year.neural), rotation=90, fontsize=7)
    axes.set(xlim=(-1, len(places)), xlabel=f"topics of {year.collection.name}")
    axes.set(ylabel="AP - AP of QL")
    axes.legend()
