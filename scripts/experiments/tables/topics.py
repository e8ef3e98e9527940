"""Topic by topic, MP-HCNN against QL: Figures 3 and 4, Tables 5 and 6 of Rao et al. (AAAI 2019)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, cast

from experiments.cells import Result, Setup
from experiments.systems import MP_HCNN, QL, YEARS
from experiments.tables.base import Table, markdown_table, results_of, save_figure
from experiments.tables.significance import values_of
from indexes.posts import Post
from pipeline.collections.collection import Collection
from pipeline.collections.trec import Qrels, ranked, read_run
from pipeline.command.errors import DataError
from pipeline.evaluation.measures import Evaluator
from pipeline.explanation.rank_changes import grade_text, places, visible
from rerankers import checkpoint
from rerankers.models._mp_hcnn_matches import PairMatches, find_matches, mean_by_word
from rerankers.models.mp_hcnn import Model
from rerankers.text.words import STOP_WORDS, URL_PLACEHOLDER, url_text, words


@dataclass(frozen=True)
class YearGains:
    """Gains of MP-HCNN over QL on one year."""

    collection: Collection
    qrels: Qrels
    ours: Result
    """Result of MP-HCNN."""
    by_system: Mapping[str, Mapping[str, float]]
    """MP-HCNN and MP-HCNN+ -> query_id -> AP minus AP of QL."""

    @property
    def neural(self) -> Mapping[str, float]:
        """query_id -> gain of MP-HCNN alone."""
        return self.by_system[MP_HCNN.name]

    def order(self) -> list[str]:
        """Topics by decreasing gain of MP-HCNN."""
        return sorted(self.neural, key=self.neural.__getitem__, reverse=True)

    def matches(
        self, query_id: str, doc_ids: Sequence[str], setup: Setup
    ) -> tuple[str, list[tuple[Post, PairMatches]]]:
        """The query, and some posts with MP-HCNN's matches."""
        found = self.collection.find_posts(doc_ids)
        posts = [found[doc_id] for doc_id in doc_ids]
        (query,) = (t.text for t in self.collection.topics if t.query_id == query_id)
        loaded = checkpoint.load(setup.checkpoint(self.ours.cell))
        texts, urls = [post.text for post in posts], [post.url for post in posts]
        matches = find_matches(cast(Model, loaded.model), loaded.encoder, query, texts, urls)
        return query, list(zip(posts, matches, strict=True))

    @classmethod
    def from_results(cls, name: str, results: Sequence[Result], setup: Setup) -> YearGains:
        """The gains on a collection.

        Raises:
            DataError: no judgments, or no finished cell of one of the two systems.
        """
        collection = setup.collection(name)
        qrels = collection.qrels
        if qrels is None:
            raise DataError(collection.missing_judgments)
        ours, base = results_of(MP_HCNN, results, name), results_of(QL, results, name)
        if not ours or not base:
            raise DataError(f"{name}: there is no finished cell of MP-HCNN and of QL to compare")
        evaluator = Evaluator(qrels, ["AP"])
        reference = values_of(base, evaluator, setup)["AP"]
        systems = {MP_HCNN.name: values_of(ours, evaluator, setup)}
        if mixture := values_of(ours, evaluator, setup, is_mixture=True):
            systems[MP_HCNN.mixture] = mixture
        by_system = {
            system: dict(zip(evaluator.query_ids, (values["AP"] - reference).tolist(), strict=True))
            for system, values in systems.items()
        }
        return cls(collection, qrels, ours[0], by_system)


EXTREMES = 5
"""Number of topics listed at either end."""

WINS = {"mb2011": (26, 13), "mb2012": (35, 19)}
"""Published numbers of topics with MP-HCNN above and below QL (section 5.2)."""


@dataclass(frozen=True)
class Gains(Table):
    """Figures 3 and 4: gains on the topics of one year; numbers of topics above and below QL."""

    name: str
    has_figure: ClassVar[bool] = True
    systems = (QL, MP_HCNN)

    def __post_init__(self) -> None:
        object.__setattr__(self, "collections", (self.name,))

    def report(self, results: Sequence[Result], setup: Setup) -> str:
        """Wins and losses beside the paper's, and the topics at either end."""
        gains = YearGains.from_results(self.name, results, setup)
        rows = [["system", "topics above QL", "below", "paper: above", "below"]]
        for name, values in gains.by_system.items():
            above, below = (sum(sign * gain > 0 for gain in values.values()) for sign in (1, -1))
            published = WINS[self.name] if name == MP_HCNN.name else ("-", "-")
            rows.append([name, str(above), str(below), *map(str, published)])
        texts = {topic.query_id: topic.text for topic in gains.collection.topics}
        order = gains.order()
        listed = [["topic", "", "AP - AP of QL"]]
        for query_id in dict.fromkeys([*order[:EXTREMES], *order[-EXTREMES:]]):
            listed.append([query_id, texts.get(query_id, ""), f"{gains.neural[query_id]:+.3f}"])
        return f"{markdown_table(rows)}\n\n{markdown_table(listed)}"

    def draw(self, path: Path, results: Sequence[Result], setup: Setup) -> None:
        """Two bars per topic, by decreasing gain of MP-HCNN."""
        from matplotlib.figure import Figure

        gains = YearGains.from_results(self.name, results, setup)
        order = gains.order()
        figure = Figure(figsize=(12, 4))
        axes = figure.subplots()
        for shift, (name, values) in zip((-0.2, 0.2), gains.by_system.items(), strict=True):
            positions = [position + shift for position in range(len(order))]
            axes.bar(positions, [values[query_id] for query_id in order], 0.4, label=name)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(order)), order, rotation=90, fontsize=7)
        axes.set_xlim(-1, len(order))
        axes.set_xlabel(f"topics of {self.name}")
        axes.set_ylabel("AP - AP of QL")
        axes.legend()
        save_figure(figure, path)


TOPICS, POSTS = 5, 20
"""Table 5: topics with the largest gains, and posts of each."""

CATEGORIES = {
    "exact word match": 100,
    "exact phrase match": 44,
    "partial paraphrase match": 59,
    "partial URL match": 29,
}
"""Table 5: published percentages of 100 posts, sorted by hand."""

EXACT_WORD, EXACT_PHRASE, PARAPHRASE, URL = CATEGORIES

PARAPHRASE_COSINE = 0.8
"""Least cosine of similar phrases; unrelated ones reach 0.7."""

PREFIX = 4
"""Number of first letters of a word that suffice in a URL."""

RULES = f"""\
* {EXACT_WORD}: a word of the query, stop words apart, is a word of the post;
* {EXACT_PHRASE}: two neighbours of the query's words are neighbours, in this order, in the post;
* {PARAPHRASE}: two neighbours of the query's words are matched by two other neighbours of the
  post's with a cosine of {PARAPHRASE_COSINE} or more in the model's similarity layer;
* {URL}: a word of the query, stop words apart, or the first {PREFIX} letters of a longer one,
  is in the URL's host and path."""


class Categories(Table):
    """Table 5: categories of matches in the best posts of the topics with the largest gains.

    The authors sorted posts by hand; :func:`categories_of` has a rule for each category.
    """

    systems = (QL, MP_HCNN)
    collections = YEARS[:2]

    def report(self, results: Sequence[Result], setup: Setup) -> str:
        """Our percentages beside the paper's, and the rules."""
        names = dict.fromkeys(result.cell.collection for result in results)
        years = [YearGains.from_results(name, results, setup) for name in names]
        gains = [(gain, query_id, year) for year in years for query_id, gain in year.neural.items()]
        best = sorted(gains, key=lambda row: row[0], reverse=True)[:TOPICS]
        counts: Counter[str] = Counter()
        for _, query_id, year in best:
            neural = read_run(setup.run_file(year.ours.cell))[query_id]
            doc_ids = [doc_id for doc_id, _ in ranked(neural)[:POSTS]]
            query, posts = year.matches(query_id, doc_ids, setup)
            for post, pair in posts:
                counts.update(["posts", *categories_of(query, post, pair)])
        total = counts["posts"]
        rows = [["category", "ours, %", "paper, %"]]
        for category, published in CATEGORIES.items():
            share = 100 * counts[category] / max(1, total)
            rows.append([category, f"{share:.0f}", str(published)])
        topics = ", ".join(f"{query_id} (AP {gain:+.2f})" for gain, query_id, _ in best)
        intro = f"The first {POSTS} posts by MP-HCNN of each of the topics {topics}, {total} in all"
        return f"{markdown_table(rows)}\n\n{intro}.\n\n{RULES}"


def categories_of(query: str, post: Post, pair: PairMatches) -> Iterator[str]:
    """Categories of matches between a query and a post, by :data:`RULES`."""
    query_words = words(query)
    content = [word for word in query_words if word not in STOP_WORDS] or query_words
    post_words = [word.text for word in pair.post_words]
    if set(content) & set(post_words):
        yield EXACT_WORD
    if set(pairwise(query_words)) & set(pairwise(post_words)):
        yield EXACT_PHRASE
    levels = pair.matches["words"].levels
    if len(levels) > 1 and any(
        levels[1][i, j] >= PARAPHRASE_COSINE and ours != theirs
        for i, ours in enumerate(pairwise(pair.query_words))
        for j, theirs in enumerate(pairwise(post_words))
    ):
        yield PARAPHRASE
    link = url_text(post.url)
    if link != URL_PLACEHOLDER and any(word[:PREFIX] in link for word in content):
        yield URL


RELEVANT = 2
"""Table 6: relevant posts besides the one that MP-HCNN ranks first."""

SAMPLE_NOTES = """\
Each word of the query is followed by its best match in the post (cosine of single words), then by
that of the two words from it on, then by that of its letters in the URL. `python -m
pipeline.explain` shades the texts themselves."""


class Samples(Table):
    """Table 6: posts of the topics with the largest gain and the largest loss of a year."""

    systems = (QL, MP_HCNN)
    collections = YEARS

    def default_collections(self, data: Path | None) -> Sequence[str]:
        """The year of the paper's samples."""
        return self.collections[:1]

    def report(self, results: Sequence[Result], setup: Setup) -> str:
        """A row per post: MP-HCNN's first, and the relevant ones that moved most."""
        rows = [["topic", "post", "judged", "QL: score (rank)", "MP-HCNN", "matches"]]
        for name in dict.fromkeys(result.cell.collection for result in results):
            gains = YearGains.from_results(name, results, setup)
            order = gains.order()
            rows += _sample_rows(gains, order[0], True, setup)
            rows += _sample_rows(gains, order[-1], False, setup)
        return f"{markdown_table(rows)}\n\n{SAMPLE_NOTES}"


def _sample_rows(
    gains: YearGains, query_id: str, is_gain: bool, setup: Setup
) -> Iterator[list[str]]:
    neural = read_run(setup.run_file(gains.ours.cell))[query_id]
    before, after = places(read_run(gains.collection.runs["ql"])[query_id]), places(neural)
    grades = gains.qrels[query_id]
    relevant = sorted(
        (doc_id for doc_id in neural if grades.get(doc_id, 0) > 0),
        key=lambda doc_id: before[doc_id].rank - after[doc_id].rank,
        reverse=is_gain,
    )
    first = min(after, key=lambda doc_id: after[doc_id].rank)
    doc_ids = list(dict.fromkeys([first, *relevant]))[: 1 + RELEVANT]
    query, posts = gains.matches(query_id, doc_ids, setup)
    title = f"{query_id}: {query} (AP {gains.neural[query_id]:+.2f})"
    for post, pair in posts:
        text = visible(" ".join(f"{post.text} {post.url}".split())).replace("|", "\\|")
        ranks = [
            f"{score:.2f} (#{rank})" for rank, score in (before[post.doc_id], after[post.doc_id])
        ]
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
