"""Tables and figures of Rao et al. (2019) made from the runs and posts of a year."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from experiments.cells import Result, Setup
from experiments.rendering import Row, markdown_table
from experiments.significance_marks import values_by_topic
from experiments.tables import Table
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.trec import Place, Run, places, read_run
from tweetrerank.pipeline.explanation.topic import grade_text
from tweetrerank.rerankers import checkpoint
from tweetrerank.rerankers.explanation import visible
from tweetrerank.rerankers.networks.models._mp_hcnn_matches import (
    PairMatches,
    find_matches,
    mean_by_word,
)
from tweetrerank.rerankers.networks.models.mp_hcnn import Model
from tweetrerank.rerankers.networks.network import Network
from tweetrerank.rerankers.text.words import (
    STOP_WORDS,
    URL_PLACEHOLDER,
    url_text,
    words,
)

EXTREMES = 5  # Topics listed at each end of figures 3 and 4
TOPICS = 5  # Topics in table 5, which are those with the largest gains
POSTS = 20  # Posts of each topic in table 5
RELEVANT = 2  # Relevant posts in table 6, in addition to MP-HCNN's first post
# Similar phrases have at least this cosine; unrelated ones reach 0.7
PARAPHRASE_COSINE = 0.8
PREFIX = 4  # A URL has a word if it has this many of its first letters


class Year(NamedTuple):
    """The systems of a table, query likelihood and MP-HCNN, on the topics of a year."""

    collection: Collection
    topics: Mapping[str, str]  # query_id -> text
    ql: Run
    neural: Run  # By MP-HCNN
    gains: Mapping[str, Mapping[str, float]]
    """For MP-HCNN and MP-HCNN+, the AP minus the AP of QL by ``query_id``.

    Topics are in the order of decreasing gain of MP-HCNN.
    """
    neural_gains: Mapping[str, float]  # query_id -> gain of MP-HCNN
    network: Network

    def places(
        self,
        query_id: str,
    ) -> dict[str, tuple[Place, Place]]:
        """Return (place by QL, place by MP-HCNN) for each post, in MP-HCNN's order."""
        ql = places(self.ql[query_id])
        neural = places(self.neural[query_id])
        return {doc_id: (ql[doc_id], place) for doc_id, place in neural.items()}

    def title(self, query_id: str) -> str:
        """Return the id and the text of a topic, with its gain."""
        gain = self.neural_gains[query_id]
        return f"{query_id}: {self.topics[query_id]} (AP {gain:+.2f})"

    def matches(
        self, query_id: str, doc_ids: Sequence[str]
    ) -> list[tuple[Post, PairMatches]]:
        """Return some posts, each with the matches that MP-HCNN finds."""
        post_of = self.collection.find_posts(doc_ids)
        posts = [post_of[doc_id] for doc_id in doc_ids]
        pairs = find_matches(
            cast(Model, self.network.model),
            self.network.encoder,
            self.topics[query_id],
            [post.text for post in posts],
            [post.url for post in posts],
        )
        return list(zip(posts, pairs, strict=True))


def years(
    table: Table,
    results: Sequence[Result],
    setup: Setup,
) -> Iterator[Year]:
    """Yield the years that have results.

    Raises DataError if a year has no judgments, or no finished cell of both systems.
    """
    for name in dict.fromkeys(result.cell.collection for result in results):
        yield _year(name, table, results, setup)


def _year(
    name: str,
    table: Table,
    results: Sequence[Result],
    setup: Setup,
) -> Year:
    collection = setup.collection(name)
    if collection.qrels is None:
        raise DataError(collection.missing_judgments)
    ql_system, neural_system = table.systems
    ql_results = Row(table, ql_system, results).results_on(name)
    neural_results = Row(table, neural_system, results).results_on(name)
    if not ql_results or not neural_results:
        raise DataError(
            f"{name}: found no finished cell of MP-HCNN, expected one to compare with "
            "QL; --train computes it"
        )
    # Values by topic: [Q]
    ql = values_by_topic(ql_results, setup)["AP"]
    neural = values_by_topic(neural_results, setup)["AP"]
    mixture = values_by_topic(neural_results, setup, is_mixture=True)["AP"]
    order = np.argsort(ql - neural, kind="stable")
    query_ids = np.array(list(collection.qrels))[order].tolist()
    gains_of_system = {
        neural_system.name: _by_topic(query_ids, neural - ql, order),
        neural_system.mixture: _by_topic(query_ids, mixture - ql, order),
    }
    neural_cell = neural_results[0].cell
    return Year(
        collection,
        {topic.query_id: topic.text for topic in collection.topics},
        read_run(setup.run_file(ql_results[0].cell)),
        read_run(setup.run_file(neural_cell)),
        gains_of_system,
        gains_of_system[neural_system.name],
        cast(Network, checkpoint.load(setup.checkpoint(neural_cell))),
    )


def _by_topic(
    query_ids: Sequence[str],
    values: npt.NDArray[np.float64],
    order: npt.NDArray[np.intp],
) -> dict[str, float]:
    return dict(zip(query_ids, values[order].tolist(), strict=True))


def gains(
    table: Table,
    results: Sequence[Result],
    setup: Setup,
) -> str:
    """Return the numbers behind figures 3 and 4, as Markdown.

    One table has the wins and losses, ours and the paper's. Another one lists the
    topics with the largest gains and losses.
    """
    (year,) = years(table, results, setup)
    rows = [["system", "topics above QL", "below", "paper: above", "below"]]
    for name, values in year.gains.items():
        above = sum(gain > 0 for gain in values.values())
        below = sum(gain < 0 for gain in values.values())
        paper_above, paper_below = table.paper.get(name, ["-", "-"])
        rows.append([name, str(above), str(below), str(paper_above), str(paper_below)])
    extremes = [["topic", "", "AP - AP of QL"]]
    query_ids = list(year.neural_gains)
    for query_id in dict.fromkeys(query_ids[:EXTREMES] + query_ids[-EXTREMES:]):
        gain = f"{year.neural_gains[query_id]:+.3f}"
        extremes.append([query_id, year.topics[query_id], gain])
    return f"{markdown_table(rows)}\n\n{markdown_table(extremes)}"


def categories(
    table: Table,
    results: Sequence[Result],
    setup: Setup,
) -> str:
    """Return table 5: categories of matches in posts of the most improved topics."""
    candidates = []
    for year in years(table, results, setup):
        for query_id, gain in year.neural_gains.items():
            candidates.append((year, query_id, gain))
    best = sorted(candidates, key=lambda candidate: -candidate[2])[:TOPICS]
    posts = []
    for year, query_id, _ in best:
        doc_ids = list(year.places(query_id))[:POSTS]
        for post, pair in year.matches(query_id, doc_ids):
            posts.append(
                categories_of(
                    year.topics[query_id],
                    post,
                    pair,
                )
            )
    rows = [["category", "ours, %", "paper, %"]]
    shares = np.mean(posts, axis=0)
    for (name, paper), share in zip(table.paper.items(), shares, strict=True):
        row = [name, f"{100 * share:.0f}"]
        row += [str(figure) for figure in paper]
        rows.append(row)
    topics = ", ".join(f"{query_id} (AP {gain:+.2f})" for _, query_id, gain in best)
    return (
        f"{markdown_table(rows)}\n\nThe first {POSTS} posts by MP-HCNN of each of the "
        f"topics {topics}, {len(posts)} in all."
    )


def categories_of(
    query: str,
    post: Post,
    pair: PairMatches,
) -> list[bool]:
    """Return whether each category fits a post, by the rules below table 5."""
    query_words = words(query)
    post_words = [word.text for word in pair.post_words]
    content = [word for word in query_words if word not in STOP_WORDS] or query_words
    link = url_text(post.url)
    has_link = link != URL_PLACEHOLDER
    return [
        not set(content).isdisjoint(post_words),
        not set(pairwise(query_words)).isdisjoint(pairwise(post_words)),
        _has_paraphrase(pair, post_words),
        has_link and any(word[:PREFIX] in link for word in content),
    ]


def _has_paraphrase(pair: PairMatches, post_words: Sequence[str]) -> bool:
    """Whether two different phrases of two words each have similar vectors."""
    cosines = pair.matches["words"][1].values  # [Lq, Ld]
    query_phrases = enumerate(pairwise(pair.query_words))
    post_phrases = enumerate(pairwise(post_words))
    for (row, phrase), (column, other) in product(query_phrases, post_phrases):
        if cosines[row, column] >= PARAPHRASE_COSINE and phrase != other:
            return True
    return False


def samples(
    table: Table,
    results: Sequence[Result],
    setup: Setup,
) -> str:
    """Return table 6: posts of the topics with the largest gain and largest loss."""
    rows = [["topic", "post", "judged", "QL: score (rank)", "MP-HCNN", "matches"]]
    (year,) = years(table, results, setup)
    query_ids = list(year.neural_gains)
    rows += _samples_of(year, query_ids[0], 1)
    rows += _samples_of(year, query_ids[-1], -1)
    return markdown_table(rows)


def _samples_of(
    year: Year,
    query_id: str,
    sign: int,
) -> Iterator[list[str]]:
    """Yield rows for MP-HCNN's first post and the relevant posts that moved most.

    ``sign`` is 1 for posts that moved up, and -1 for posts that moved down.
    """
    places_of = year.places(query_id)
    grades = (year.collection.qrels or {})[query_id]
    climbs = {}
    for doc_id, (ql, neural) in places_of.items():
        climbs[doc_id] = ql.rank - neural.rank
    moved = sorted(climbs, key=lambda doc_id: -sign * climbs[doc_id])
    relevant = [doc_id for doc_id in moved if grades.get(doc_id, 0) > 0]
    first = next(iter(places_of))
    doc_ids = list(dict.fromkeys([first, *relevant]))[: 1 + RELEVANT]
    title = year.title(query_id)
    for post, pair in year.matches(query_id, doc_ids):
        text = visible(" ".join(f"{post.text} {post.url}".split())).replace("|", "\\|")
        row = [title, text, grade_text(grades.get(post.doc_id))]
        for place in places_of[post.doc_id]:
            row.append(f"{place.score:.2f} (#{place.rank})")
        row.append(_matches(pair))
        yield row
        title = ""


def _matches(pair: PairMatches) -> str:
    """Return each query word with its best matches by words, phrases and in the URL."""
    by_words, by_phrases = pair.matches["words"][:2]
    best: list[Sequence[float | None]] = [
        by_words.best().tolist(),
        by_phrases.best().tolist(),
    ]
    if pair.url:
        by_trigrams = pair.matches["url_trigrams"][1].best()
        best.append(mean_by_word(by_trigrams, pair.query_words))
    texts = []
    for word, *values in zip(pair.query_words, *best, strict=True):
        figures = [f"{value:.2f}" for value in values if value is not None]
        texts.append(" ".join([word, *figures]))
    return ", ".join(texts)
