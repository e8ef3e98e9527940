"""Pictures, and the tables of Rao et al. (2019) that need runs and posts, not only results.

Functions that a table names as ``report`` give Markdown, those named as ``figure`` a picture.
"""

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from experiments.cells import Result, Setup
from experiments.extras import values_of
from experiments.rendering import Row, markdown_table, titled
from experiments.tables import Table
from indexes.files import write_bytes
from indexes.posts import Post
from pipeline.collections.collection import Collection
from pipeline.collections.trec import Qrels, Run, read_run
from pipeline.errors import DataError
from pipeline.explanation.topic import RankChange, grade_text, rank_changes
from rerankers import checkpoint
from rerankers.explanation import visible
from rerankers.networks.models._mp_hcnn_matches import PairMatches, find_matches, mean_by_word
from rerankers.networks.models.mp_hcnn import Model
from rerankers.networks.network import Network
from rerankers.text.words import STOP_WORDS, URL_PLACEHOLDER, url_text, words

EXTREMES = 5  # Figures 3 and 4: number of topics listed at either end
TOPICS, POSTS = 5, 20  # Table 5: topics with the largest gains, and posts of each
RELEVANT = 2  # Table 6: relevant posts besides the one that MP-HCNN ranks first
PARAPHRASE_COSINE = 0.8  # Least cosine of similar phrases; unrelated ones reach 0.7
PREFIX = 4  # Number of first letters of a word that suffice in a URL


class Year(NamedTuple):
    """QL and MP-HCNN, a table's two systems, on the topics of a year."""

    collection: Collection
    qrels: Qrels
    runs: Mapping[str, Run]  # Of QL and of MP-HCNN
    gains: Mapping[str, Mapping[str, float]]
    """MP-HCNN and MP-HCNN+ -> query_id -> AP minus AP of QL, by decreasing gain of MP-HCNN."""
    weights: Path  # MP-HCNN's checkpoint

    @property
    def neural(self) -> Mapping[str, float]:
        """query_id -> gain of MP-HCNN alone."""
        return next(iter(self.gains.values()))

    def query(self, query_id: str) -> str:
        """Text of a topic."""
        return next((t.text for t in self.collection.topics if t.query_id == query_id), "")

    def changes(self, query_id: str) -> dict[str, RankChange]:
        """doc_id -> change from QL to MP-HCNN, in the order of MP-HCNN."""
        return rank_changes({name: run[query_id] for name, run in self.runs.items()})

    def matches(self, query_id: str, doc_ids: Sequence[str]) -> list[tuple[Post, PairMatches]]:
        """Some posts with MP-HCNN's matches."""
        found = self.collection.find_posts(doc_ids)
        posts = [found[doc_id] for doc_id in doc_ids]
        loaded = cast(Network, checkpoint.load(self.weights))
        texts, urls = [post.text for post in posts], [post.url for post in posts]
        model, query = cast(Model, loaded.model), self.query(query_id)
        matches = find_matches(model, loaded.encoder, query, texts, urls)
        return list(zip(posts, matches, strict=True))


def years(table: Table, results: Sequence[Result], setup: Setup) -> Iterator[Year]:
    """The years with results.

    Raises:
        DataError: no judgments, or no finished cell of one of the two systems.
    """
    for name in dict.fromkeys(result.cell.collection for result in results):
        collection, system = setup.collection(name), table.systems[1]
        base, ours = (Row(table, each, results).own(name) for each in table.systems)
        if collection.qrels is None:
            raise DataError(collection.missing_judgments)
        if not ours or not base:
            raise DataError(
                f"{name}: found no finished cell of MP-HCNN, expected one to compare with QL; "
                "--train computes it"
            )
        ql, neural = (values_of(of, setup)["AP"] for of in (base, ours))
        mixture = values_of(ours, setup, is_mixture=True)["AP"]
        order = np.argsort(ql - neural, kind="stable")
        query_ids = np.array([*collection.qrels])[order].tolist()
        gains = {
            title: dict(zip(query_ids, (values - ql)[order].tolist(), strict=True))
            for title, values in ((system.name, neural), (system.mixture, mixture))
        }
        cells = base[0].cell, ours[0].cell
        runs = {cell.system: read_run(setup.run_file(cell)) for cell in cells}
        yield Year(collection, collection.qrels, runs, gains, setup.checkpoint(cells[1]))


def gains(table: Table, results: Sequence[Result], setup: Setup) -> str:
    """Figures 3 and 4: wins and losses beside the paper's, and the topics at either end."""
    (year,) = years(table, results, setup)
    rows = [["system", "topics above QL", "below", "paper: above", "below"]]
    for name, values in year.gains.items():
        counts = [sum(sign * gain > 0 for gain in values.values()) for sign in (1, -1)]
        rows.append([name, *map(str, counts), *map(str, table.paper.get(name, ["-", "-"]))])
    order, listed = [*year.neural], [["topic", "", "AP - AP of QL"]]
    for query_id in dict.fromkeys([*order[:EXTREMES], *order[-EXTREMES:]]):
        listed.append([query_id, year.query(query_id), f"{year.neural[query_id]:+.3f}"])
    return f"{markdown_table(rows)}\n\n{markdown_table(listed)}"


def categories(table: Table, results: Sequence[Result], setup: Setup) -> str:
    """Table 5: categories of matches in the best posts of the topics with the largest gains.

    The authors sorted posts by hand; :func:`categories_of` has a rule for each category.
    """
    found = [(year, *of) for year in years(table, results, setup) for of in year.neural.items()]
    best = sorted(found, key=lambda row: -row[2])[:TOPICS]
    posts = [
        categories_of(year.query(query_id), post, pair)
        for year, query_id, _ in best
        for post, pair in year.matches(query_id, [*year.changes(query_id)][:POSTS])
    ]
    total = len(posts)
    rows = [["category", "ours, %", "paper, %"]]
    for (name, paper), count in zip(table.paper.items(), np.sum(posts, axis=0), strict=True):
        rows.append([name, f"{100 * count / total:.0f}", *map(str, paper)])
    topics = ", ".join(f"{query_id} (AP {gain:+.2f})" for _, query_id, gain in best)
    intro = f"The first {POSTS} posts by MP-HCNN of each of the topics {topics}, {total} in all"
    return f"{markdown_table(rows)}\n\n{intro}."


def categories_of(query: str, post: Post, pair: PairMatches) -> list[bool]:
    """Whether each category of the table fits a query and a post, by the rules below it."""
    query_words, post_words = words(query), [word.text for word in pair.post_words]
    content = [word for word in query_words if word not in STOP_WORDS] or query_words
    cosines, link = pair.matches["words"].levels[1], url_text(post.url)
    phrases = product(enumerate(pairwise(pair.query_words)), enumerate(pairwise(post_words)))
    return [
        bool(set(content) & set(post_words)),
        bool(set(pairwise(query_words)) & set(pairwise(post_words))),
        any(
            cosines[i, j] >= PARAPHRASE_COSINE and ours != theirs
            for (i, ours), (j, theirs) in phrases
        ),
        link != URL_PLACEHOLDER and any(word[:PREFIX] in link for word in content),
    ]


def samples(table: Table, results: Sequence[Result], setup: Setup) -> str:
    """Table 6: posts of the topics with the largest gain and loss, MP-HCNN's first one and the
    relevant ones that moved most."""
    rows = [["topic", "post", "judged", "QL: score (rank)", "MP-HCNN", "matches"]]
    for year in years(table, results, setup):
        order = list(year.neural)
        rows += [*_samples_of(year, order[0], 1), *_samples_of(year, order[-1], -1)]
    return markdown_table(rows)


def _samples_of(year: Year, query_id: str, sign: int) -> Iterator[list[str]]:
    changes, grades = year.changes(query_id), year.qrels[query_id]
    moved = sorted(changes, key=lambda doc_id: -sign * changes[doc_id].gain)
    relevant = [doc_id for doc_id in moved if grades.get(doc_id, 0) > 0]
    doc_ids = list(dict.fromkeys([next(iter(changes)), *relevant]))[: 1 + RELEVANT]
    title = f"{query_id}: {year.query(query_id)} (AP {year.neural[query_id]:+.2f})"
    for post, pair in year.matches(query_id, doc_ids):
        text = visible(" ".join(f"{post.text} {post.url}".split())).replace("|", "\\|")
        places = changes[post.doc_id].places.values()
        ranks = [f"{place.score:.2f} (#{place.rank})" for place in places]
        yield [title, text, grade_text(grades.get(post.doc_id)), *ranks, _matches(pair)]
        title = ""


def _matches(pair: PairMatches) -> str:
    """Each query word and its best matches: by words, by phrases and in the URL."""
    best: list[Sequence[float | None]] = [pair.matches["words"].best(n).tolist() for n in (0, 1)]
    if pair.url:
        best.append(mean_by_word(pair.matches["url_trigrams"].best(1), pair.query_words))
    return ", ".join(
        " ".join([word, *(f"{value:.2f}" for value in values if value is not None)])
        for word, *values in zip(pair.query_words, *best, strict=True)
    )


REPORTS = {report.__name__: report for report in (gains, categories, samples)}


def draw(path: Path, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """Write the table's figure as PNG."""
    from matplotlib.figure import Figure

    sizes = {"gains": (12.0, 4.0), "reliability": (12.0, 5.4)}
    figure = Figure(figsize=sizes.get(table.figure, (6.0, 4.0)))
    FIGURES[table.figure](figure, table, results, setup)
    content = BytesIO()
    figure.savefig(content, dpi=150, bbox_inches="tight", format="png")
    write_bytes(path, content.getvalue())


def _depths(figure: Any, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """AP by depth, a line per year."""
    rows = [Row(table, system, results) for system in table.systems]
    lines = {
        titled(name): {
            n: ap for n, row in enumerate(rows) if (ap := row.mean("AP", name)) is not None
        }
        for name in table.collections
    }
    if not any(lines.values()):
        raise DataError("found no result with judgments, expected some to draw")
    axes = _lines(figure, {name: of for name, of in lines.items() if of}, "o")
    axes.set(xlabel="convolutional layers N", xticks=range(len(table.systems)))


def _curves(figure: Any, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """AP by α, a line per collection of questions."""
    _lines(figure, Row(table, table.systems[0], results).curves(), ".").set(xlabel="α")


def _lines(figure: Any, lines: Mapping[str, Mapping[Any, float]], marker: str) -> Any:
    axes = figure.subplots()
    for name, points in lines.items():
        axes.plot(list(points), list(points.values()), marker=marker, label=name)
    axes.set(ylabel="AP")
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    return axes


def _gains(figure: Any, table: Table, results: Sequence[Result], setup: Setup) -> None:
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


def _reliability(figure: Any, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """Share of relevant posts by their probability: a panel per system, a line per collection."""
    rows = [row for s in table.systems if (row := Row(table, s, results)).curves()]
    for axes, row in zip(figure.subplots(1, len(rows), sharey=True), rows, strict=True):
        axes.plot([0, 1], [0, 1], color="0.7", linestyle="--", label="right")
        for name in table.collections:
            bins = row.curves(name)
            x, y, pairs = (list(bins[key].values()) for key in ("probability", "relevant", "pairs"))
            (line,) = axes.plot(x, y, linewidth=1, label=name)
            axes.scatter(x, y, [4 * count**0.35 for count in pairs], color=line.get_color())
        axes.set(title=row.title, xlabel="probability", aspect="equal")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("share of relevant posts")
    figure.legend(*axes.get_legend_handles_labels(), loc="lower center", ncols=5)


FIGURES = {"depths": _depths, "curves": _curves, "gains": _gains, "reliability": _reliability}
