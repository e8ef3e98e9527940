"""Tables of Rao et al. (2019) that need runs and posts, not only results; and all figures.

Functions that a table names as ``report`` give Markdown, those named as ``figure`` a picture.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

from experiments.cells import Cell, Result, Setup
from experiments.extras import values_of
from experiments.rendering import curves_of, markdown_table, mean_of, results_of, shown, titled
from experiments.tables import Table, published
from indexes.files import write_bytes
from indexes.posts import Post
from pipeline.collections.collection import Collection, default_vectors
from pipeline.collections.trec import Qrels, ranked, read_run
from pipeline.command.errors import DataError
from pipeline.evaluation.measures import Evaluator
from pipeline.explanation.rank_changes import grade_text, places, visible
from rerankers import checkpoint
from rerankers.models._mp_hcnn_matches import PairMatches, find_matches, mean_by_word
from rerankers.models.mp_hcnn import Model
from rerankers.text.vectors import read_vectors
from rerankers.text.words import STOP_WORDS, URL_PLACEHOLDER, url_text, words

Report = Callable[[Table, Sequence[Result], Setup], str]
Draw = Callable[[Any, Table, Sequence[Result], Setup], None]


# Table 2

_HASHTAG = re.compile(r"(?:^|\s)##?\s?\w")


def statistics(table: Table, results: Sequence[Result], setup: Setup) -> str:
    """Sizes of the collections: a row per number, a column per year, the paper's in parentheses."""
    names = [result.cell.collection for result in results]
    known = set(read_vectors(default_vectors(setup.data)).words)
    counts = {name: _count(setup.collection(name), known) for name in names}
    rows = [["", *names]]
    for number, figures in published("rao2019_table2").items():
        texts = [f"{shown(counts[n][number], ',')} ({figures[n][0]:,.0f})" for n in names]
        rows.append([number, *texts])
    return markdown_table(rows)


def _count(collection: Collection, known: set[str]) -> dict[str, int | None]:
    run, qrels = read_run(collection.runs["ql"]), collection.qrels
    posts = {post.doc_id: post for post in collection.posts()}
    pairs = [(query_id, posts[doc_id]) for query_id, scores in run.items() for doc_id in scores]
    distinct = {word for _, post in pairs for word in words(post.text)}
    relevant = None
    if qrels is not None:
        relevant = sum(qrels.get(query_id, {}).get(post.doc_id, 0) > 0 for query_id, post in pairs)
    return {
        "topics": len(run),
        "query-document pairs": len(pairs),
        "relevant documents": relevant,
        "unique words": len(distinct),
        "unique OOV words": len(distinct - known),
        "URLs": sum(bool(post.url) for _, post in pairs),
        "hashtags": sum(bool(_HASHTAG.search(post.text)) for _, post in pairs),
    }


# Topic by topic, MP-HCNN against QL: Figures 3 and 4, Tables 5 and 6


class Year(NamedTuple):
    """MP-HCNN beside QL on one year."""

    collection: Collection
    qrels: Qrels
    cell: Cell  # MP-HCNN's
    gains: Mapping[str, Mapping[str, float]]
    """MP-HCNN and MP-HCNN+ -> query_id -> AP minus AP of QL."""

    @property
    def neural(self) -> Mapping[str, float]:
        """query_id -> gain of MP-HCNN alone."""
        return self.gains[self.cell.system]

    def order(self) -> list[str]:
        """Topics by decreasing gain of MP-HCNN."""
        return sorted(self.neural, key=self.neural.__getitem__, reverse=True)

    def matches(
        self, query_id: str, doc_ids: Sequence[str], setup: Setup
    ) -> tuple[str, list[tuple[Post, PairMatches]]]:
        """The query, and some posts with MP-HCNN's matches."""
        by_id = self.collection.find_posts(doc_ids)
        posts = [by_id[doc_id] for doc_id in doc_ids]
        (query,) = (t.text for t in self.collection.topics if t.query_id == query_id)
        loaded = checkpoint.load(setup.checkpoint(self.cell))
        texts, urls = [post.text for post in posts], [post.url for post in posts]
        matches = find_matches(cast(Model, loaded.model), loaded.encoder, query, texts, urls)
        return query, list(zip(posts, matches, strict=True))


def years(table: Table, results: Sequence[Result], setup: Setup) -> Iterator[Year]:
    """The gains on each collection of the table, whose systems are QL and MP-HCNN.

    Raises:
        DataError: no judgments, or no finished cell of one of the two systems.
    """
    ql, system = table.systems
    for name in dict.fromkeys(result.cell.collection for result in results):
        collection = setup.collection(name)
        qrels = collection.qrels
        if qrels is None:
            raise DataError(collection.missing_judgments)
        ours, base = results_of(system, results, name), results_of(ql, results, name)
        if not ours or not base:
            raise DataError(
                f"{name}: found no finished cell of MP-HCNN, expected one to compare with QL; "
                "--train computes it"
            )
        evaluator, gains = Evaluator(qrels, ["AP"]), {}
        reference = values_of(base, evaluator, setup)["AP"]
        for title, is_mixture in ((system.name, False), (system.mixture, True)):
            if values := values_of(ours, evaluator, setup, is_mixture=is_mixture):
                differences = (values["AP"] - reference).tolist()
                gains[title] = dict(zip(evaluator.query_ids, differences, strict=True))
        yield Year(collection, qrels, ours[0].cell, gains)


EXTREMES = 5  # Number of topics listed at either end
WINS = {"mb2011": (26, 13), "mb2012": (35, 19)}  # Published, MP-HCNN above and below QL (5.2)


def gains(table: Table, results: Sequence[Result], setup: Setup) -> str:
    """Figures 3 and 4: wins and losses beside the paper's, and the topics at either end."""
    (year,) = years(table, results, setup)
    rows = [["system", "topics above QL", "below", "paper: above", "below"]]
    for name, values in year.gains.items():
        counts = (sum(sign * gain > 0 for gain in values.values()) for sign in (1, -1))
        paper = WINS[year.collection.name] if name == year.cell.system else ("-", "-")
        rows.append([name, *map(str, (*counts, *paper))])
    texts = {topic.query_id: topic.text for topic in year.collection.topics}
    order = year.order()
    listed = [["topic", "", "AP - AP of QL"]]
    for query_id in dict.fromkeys([*order[:EXTREMES], *order[-EXTREMES:]]):
        listed.append([query_id, texts.get(query_id, ""), f"{year.neural[query_id]:+.3f}"])
    return f"{markdown_table(rows)}\n\n{markdown_table(listed)}"


TOPICS, POSTS = 5, 20  # Table 5: topics with the largest gains, and posts of each
PARAPHRASE_COSINE = 0.8  # Least cosine of similar phrases; unrelated ones reach 0.7
PREFIX = 4  # Number of first letters of a word that suffice in a URL

CATEGORIES = {
    "exact word match": 100,
    "exact phrase match": 44,
    "partial paraphrase match": 59,
    "partial URL match": 29,
}
"""Table 5: published percentages of 100 posts, sorted by hand."""


def categories(table: Table, results: Sequence[Result], setup: Setup) -> str:
    """Table 5: categories of matches in the best posts of the topics with the largest gains."""
    by_gain = [
        (gain, query_id, year)
        for year in years(table, results, setup)
        for query_id, gain in year.neural.items()
    ]
    best = sorted(by_gain, key=lambda row: row[0], reverse=True)[:TOPICS]
    counts: Counter[str] = Counter()
    for _, query_id, year in best:
        neural = read_run(setup.run_file(year.cell))[query_id]
        doc_ids = [doc_id for doc_id, _ in ranked(neural)[:POSTS]]
        query, posts = year.matches(query_id, doc_ids, setup)
        for post, pair in posts:
            counts.update(["posts", *categories_of(query, post, pair)])
    total = counts["posts"]
    rows = [["category", "ours, %", "paper, %"]]
    for category, paper in CATEGORIES.items():
        rows.append([category, f"{100 * counts[category] / max(1, total):.0f}", str(paper)])
    topics = ", ".join(f"{query_id} (AP {gain:+.2f})" for gain, query_id, _ in best)
    intro = f"The first {POSTS} posts by MP-HCNN of each of the topics {topics}, {total} in all"
    return f"{markdown_table(rows)}\n\n{intro}."


def categories_of(query: str, post: Post, pair: PairMatches) -> list[str]:
    """Categories of matches between a query and a post, by the rules below the table."""
    query_words, link = words(query), url_text(post.url)
    content = [word for word in query_words if word not in STOP_WORDS] or query_words
    post_words = [word.text for word in pair.post_words]
    levels = pair.matches["words"].levels
    holds = (
        bool(set(content) & set(post_words)),
        bool(set(pairwise(query_words)) & set(pairwise(post_words))),
        len(levels) > 1
        and any(
            levels[1][i, j] >= PARAPHRASE_COSINE and ours != theirs
            for i, ours in enumerate(pairwise(pair.query_words))
            for j, theirs in enumerate(pairwise(post_words))
        ),
        link != URL_PLACEHOLDER and any(word[:PREFIX] in link for word in content),
    )
    return [name for name, is_held in zip(CATEGORIES, holds, strict=True) if is_held]


RELEVANT = 2  # Table 6: relevant posts besides the one that MP-HCNN ranks first


def samples(table: Table, results: Sequence[Result], setup: Setup) -> str:
    """Table 6: posts of the topics with the largest gain and loss, MP-HCNN's first one and the
    relevant ones that moved most."""
    rows = [["topic", "post", "judged", "QL: score (rank)", "MP-HCNN", "matches"]]
    for year in years(table, results, setup):
        first, *_, last = year.order()
        rows += [*_sample_rows(year, first, True, setup), *_sample_rows(year, last, False, setup)]
    return markdown_table(rows)


def _sample_rows(year: Year, query_id: str, is_gain: bool, setup: Setup) -> Iterator[list[str]]:
    neural = read_run(setup.run_file(year.cell))[query_id]
    before, after = places(read_run(year.collection.runs["ql"])[query_id]), places(neural)
    grades = year.qrels[query_id]
    relevant = sorted(
        (doc_id for doc_id in neural if grades.get(doc_id, 0) > 0),
        key=lambda doc_id: before[doc_id].rank - after[doc_id].rank,
        reverse=is_gain,
    )
    first = min(after, key=lambda doc_id: after[doc_id].rank)
    doc_ids = list(dict.fromkeys([first, *relevant]))[: 1 + RELEVANT]
    query, posts = year.matches(query_id, doc_ids, setup)
    title = f"{query_id}: {query} (AP {year.neural[query_id]:+.2f})"
    for post, pair in posts:
        text = visible(" ".join(f"{post.text} {post.url}".split())).replace("|", "\\|")
        both = before[post.doc_id], after[post.doc_id]
        ranks = [f"{score:.2f} (#{rank})" for rank, score in both]
        yield [title, text, grade_text(grades.get(post.doc_id)), *ranks, _matches(pair)]
        title = ""


def _matches(pair: PairMatches) -> str:
    """Each query word and its best matches: by words, by phrases and in the URL."""
    columns: list[Sequence[float | None]] = []
    for name, level in (("words", 0), ("words", 1), ("url_trigrams", 1)):
        matches = pair.matches.get(name)
        if matches is None or level >= len(matches.levels):
            continue
        if name == "words":
            columns.append(matches.best(level).tolist())
        elif pair.url:
            columns.append(mean_by_word(matches.best(level), pair.query_words))
    described = []
    for place, word in enumerate(pair.query_words):
        values = [column[place] for column in columns if place < len(column)]
        described.append(" ".join([word, *(f"{v:.2f}" for v in values if v is not None)]))
    return ", ".join(described)


# Pictures

SIZES = {"bars": (12.0, 4.0), "reliability": (12.0, 5.4)}  # Inches; the others are (6, 4)


def draw(path: Path, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """Write the table's figure as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZES.get(table.figure, (6, 4)))
    FIGURES[table.figure](figure, table, results, setup)
    content = BytesIO()
    figure.savefig(content, dpi=150, bbox_inches="tight", format="png")
    write_bytes(path, content.getvalue())


def depths(figure: Any, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """AP by depth, a line per year."""
    axes = figure.subplots()
    for name in table.collections:
        values = [mean_of(results_of(system, results, name), "AP") for system in table.systems]
        points = [(depth, ap) for depth, ap in enumerate(values) if ap is not None]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=titled(name))
    if not axes.lines:
        raise DataError("found no result with judgments, expected some to draw")
    axes.set_xticks(range(len(table.systems)))
    axes.set(xlabel="convolutional layers N", ylabel="AP")
    axes.grid(axis="y", alpha=0.3)
    axes.legend()


def curves(figure: Any, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """AP by α, a line per collection of questions."""
    axes = figure.subplots()
    for name, curve in curves_of(results).items():
        axes.plot(list(curve), list(curve.values()), marker=".", label=name)
    axes.set(xlabel="α", ylabel="AP")
    axes.grid(axis="y", alpha=0.3)
    axes.legend()


def bars(figure: Any, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """Two bars per topic, by decreasing gain of MP-HCNN."""
    (year,) = years(table, results, setup)
    axes, order = figure.subplots(), year.order()
    for shift, (name, values) in zip((-0.2, 0.2), year.gains.items(), strict=True):
        positions = [position + shift for position in range(len(order))]
        axes.bar(positions, [values[query_id] for query_id in order], 0.4, label=name)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(order)), order, rotation=90, fontsize=7)
    axes.set_xlim(-1, len(order))
    axes.set(xlabel=f"topics of {year.collection.name}", ylabel="AP - AP of QL")
    axes.legend()


def reliability(figure: Any, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """Share of relevant posts by their probability: a panel per system, a line per collection."""
    systems = [s for s in table.systems if any(curves_of(results_of(s, results)))]
    for axes, system in zip(figure.subplots(1, len(systems), sharey=True), systems, strict=True):
        axes.plot([0, 1], [0, 1], color="0.7", linestyle="--", label="right")
        for name in table.collections:
            bins = curves_of(results_of(system, results, name))
            x, y, pairs = (list(bins[key].values()) for key in ("probability", "relevant", "pairs"))
            (line,) = axes.plot(x, y, linewidth=1, label=name)
            axes.scatter(x, y, [4 * count**0.35 for count in pairs], color=line.get_color())
        axes.set(title=system.name, xlabel="probability", aspect="equal")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("share of relevant posts")
    figure.legend(*axes.get_legend_handles_labels(), loc="lower center", ncols=5)


REPORTS: Mapping[str, Report] = {f.__name__: f for f in (statistics, gains, categories, samples)}
FIGURES: Mapping[str, Draw] = {f.__name__: f for f in (depths, curves, bars, reliability)}
