"""Table 5 of Rao et al. (AAAI 2019): what kinds of matches are in the posts that MP-HCNN likes.

The authors sorted posts by hand; :func:`kinds_of` has a rule for each of their kinds.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from experiments.cells import Cell, Result, find_runs
from experiments.published import mp_hcnn
from experiments.tables.contract import Table, Workshop, markdown_table, results_of
from experiments.tables.gains import Gains, gains_of
from pipeline.collections.trec import ranked, read_run

if TYPE_CHECKING:
    from indexes.posts import Post
    from rerankers.checkpoint import TrainedReranker
    from rerankers.evidence import Evidence

TOPICS, POSTS = 5, 20
"""Topics with the largest gains, and posts of each."""
FAIR = 0.8
"""Cosine from which on two phrases are alike; unrelated ones reach 0.7."""
PREFIX = 4
"""First letters of a word that suffice in a URL; a shorter word has to be there whole."""

EXACT_WORD, EXACT_PHRASE, PARAPHRASE, URL = mp_hcnn.EVIDENCE

RULES = f"""\
* {EXACT_WORD}: a word of the query, stop words apart, is a word of the post;
* {EXACT_PHRASE}: two neighbours of the query's words are neighbours, in this order, in the post;
* {PARAPHRASE}: two neighbours of the query's words are matched by two other neighbours of the
  post's with a cosine of {FAIR} or more in the model's similarity layer;
* {URL}: a word of the query, stop words apart, or the first {PREFIX} letters of a longer one,
  is in the URL's host and path."""


@dataclass(frozen=True)
class TopicEvidence:
    """Posts of one topic and what the model saw in them."""

    gains: Gains
    query_id: str
    query: str
    posts: "Sequence[Post]"
    evidence: "Sequence[Evidence]"


class Categories(Table):
    """Shares of the kinds of matches among the best posts of the topics that gain most."""

    systems = (mp_hcnn.QL, mp_hcnn.MP_HCNN)
    collections = mp_hcnn.YEARS[:2]

    def report(self, results: Sequence[Result], workshop: Workshop) -> str:
        """Ours beside the paper's, and the rules."""
        present = dict.fromkeys(result.cell.collection for result in results)
        gains = [gains_of(name, results, workshop) for name in present]
        best = sorted(
            ((g.neural[query_id], query_id, g) for g in gains for query_id in g.neural),
            key=lambda row: row[0], reverse=True,
        )[:TOPICS]  # fmt: skip
        counts: Counter[str] = Counter()
        total = 0
        for _, query_id, of_year in best:
            topic = evidence_of(of_year, query_id, None, results, workshop)
            for post, seen in zip(topic.posts, topic.evidence, strict=True):
                counts.update(kinds_of(topic.query, post, seen))
                total += 1
        rows = [["category", "ours, %", "paper, %"]]
        for kind, printed in mp_hcnn.EVIDENCE.items():
            rows.append([kind, f"{100 * counts[kind] / max(1, total):.0f}", str(printed)])
        named = ", ".join(f"{query_id} (AP {gain:+.2f})" for gain, query_id, _ in best)
        about = f"The first {POSTS} posts by MP-HCNN of each of the topics {named}, {total} in all."
        return f"{markdown_table(rows)}\n\n{about}\n\n{RULES}"


def kinds_of(query: str, post: "Post", evidence: "Evidence") -> Iterator[str]:
    """The kinds of matches between a query and a post, by :data:`RULES`."""
    from rerankers.text.stop_words import STOP_WORDS
    from rerankers.text.words import URL_PLACEHOLDER, url_text, words

    asked = words(query)
    content = [word for word in asked if word not in STOP_WORDS] or asked
    of_post = [word.text for word in evidence.post_words]
    if set(content) & set(of_post):
        yield EXACT_WORD
    if set(pairwise(asked)) & set(pairwise(of_post)):
        yield EXACT_PHRASE
    if _is_paraphrased(evidence):
        yield PARAPHRASE
    link = url_text(post.url)
    if link != URL_PLACEHOLDER and any(word[:PREFIX] in link for word in content):
        yield URL


def _is_paraphrased(evidence: "Evidence") -> bool:
    words = evidence.matches["words"]
    if len(words.levels) < 2:
        return False
    similarity, post = words.levels[1], [word.text for word in evidence.post_words]
    return any(
        similarity[i, j] >= FAIR and ours != theirs
        for i, ours in enumerate(pairwise(evidence.query_words))
        for j, theirs in enumerate(pairwise(post))
    )


def evidence_of(
    gains: Gains, query_id: str, doc_ids: Sequence[str] | None, results: Sequence[Result],
    workshop: Workshop,
) -> TopicEvidence:  # fmt: skip
    """What MP-HCNN saw in posts of a topic: those of ``doc_ids``, or its best :data:`POSTS`."""
    from typing import cast

    from rerankers.evidence import compare
    from rerankers.models.mp_hcnn import Model

    cell = cell_of(gains, results)
    if doc_ids is None:
        neural = read_run(find_runs(cell, workshop.directory, workshop.data)[0])
        doc_ids = [doc_id for doc_id, _ in ranked(neural[query_id])[:POSTS]]
    found = gains.collection.find_posts(doc_ids)
    posts = [found[doc_id] for doc_id in doc_ids]
    (query,) = (t.text for t in gains.collection.topics if t.query_id == query_id)
    checkpoint = _checkpoint(cell, workshop)
    evidence = compare(
        cast(Model, checkpoint.model), checkpoint.encoder, query,
        [post.text for post in posts], [post.url for post in posts],
    )  # fmt: skip
    return TopicEvidence(gains, query_id, query, posts, evidence)


def cell_of(gains: Gains, results: Sequence[Result]) -> Cell:
    """The cell of MP-HCNN on the year of ``gains``."""
    return results_of(mp_hcnn.MP_HCNN, results, gains.collection.name)[0].cell


def _checkpoint(cell: Cell, workshop: Workshop) -> "TrainedReranker":
    from rerankers import checkpoint

    return checkpoint.load(workshop.directory / "checkpoints" / cell.key)
